"""`discreet presets`, `--preset` and `--features`."""

from pathlib import Path

import numpy as np
import pytest
from cli_runner import refused, run

from discreet import runs

FEATURES = ("--data", "digits", "--features", "scattering", "--model", "head", "--method", "dp-sgd", "--epsilon", "3")
FEATURES += ("--delta", "1e-5", "--batch", "200", "--steps", "3", "--seed", "0")


@pytest.fixture
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of public images; features are kept apart from those of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    y = np.arange(40) % 10
    np.savez(tmp_path / "public.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    return tmp_path / "public.npz"


def test_every_preset_is_listed_with_its_settings() -> None:
    shown = run("presets")
    assert (shown.code, shown.err) == (0, "")
    assert "best for fashion-mnist" in shown.out
    assert "scattering + patches (statistics of cifar10), model head, batch 8192" in shown.out
    assert "image for records of your own" in shown.out
    held = run("presets", "--data", "adult", "--json").json["presets"]
    assert [preset["data"] for preset in held] == ["adult"]
    assert held[0]["budgets"][0][1]["features"] == ["bins"]


def test_a_run_on_public_features(tmp_path: Path, public: Path) -> None:
    out = tmp_path / "run"
    answer = run("train", *FEATURES, "--public-records", public, "--schedule", "cosine", "--out", out, "--json").json
    assert answer["steps"] == 3
    config = runs.load_config(out)
    assert (config.features, config.schedule, config.public_records) == (("scattering",), "cosine", str(public))
    assert "features scattering, statistics of public" in (out / "run.json").read_text()
    assert run("resume", out, "--json").json == answer


def test_features_without_public_records_or_with_the_private_ones_are_refused(tmp_path: Path, public: Path) -> None:
    out = ("--out", tmp_path / "run")
    refused(run("train", *FEATURES, *out), "public records", "--public-records")
    refused(run("train", *FEATURES, "--public-records", "digits", *out), "digits for both")
    refused(run("train", *FEATURES, "--features", "no-such", *out), "features of scattering")
    assert not (tmp_path / "run").exists()


def test_a_preset_is_for_dp_sgd_unless_another_method_is_named(tmp_path: Path) -> None:
    words = ("--data", "digits", "--preset", "no-such", "--epsilon", "3", "--delta", "1e-5", "--out", tmp_path / "run")
    refused(run("train", *words), "a preset for digits (best, image, photo, text, table)")


@pytest.mark.slow
def test_a_search_on_a_stand_in_uses_its_features(tmp_path: Path, public: Path) -> None:
    """Every method has six trials; the stand-in has images of another size."""
    chance = np.random.default_rng(1)
    for name, side in (("own", 8), ("stand-in", 12)):
        x, y = chance.integers(0, 256, (200, 1, side, side), dtype=np.uint8), np.arange(200) % 10
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    words = ("--data", tmp_path / "own.npz", "--classes", "10", "--records", "200", "--features", "scattering")
    words += ("--public-records", public, "--model", "head", "--methods", "auto-s", "--epsilon", "3", "--delta", "1e-5")
    words += ("--batch", "40", "--steps", "2", "--tune-on", tmp_path / "stand-in.npz", "--out", tmp_path / "page")
    tuned = run("compare", *words, "--json").json["tuned"]
    assert (tuned["trials"], tuned["model"]) == (6, "head")


def test_a_comparison_on_public_features(tmp_path: Path, public: Path) -> None:
    words = ("--data", "digits", "--features", "scattering", "--public-records", public, "--model", "head")
    words += ("--methods", "dp-sgd,auto-s", "--epsilon", "3", "--delta", "1e-5", "--batch", "200", "--steps", "3")
    held = run("compare", *words, "--seeds", "0", "--out", tmp_path / "page", "--json").json
    assert [row["name"] for row in held["references"]] == ["without privacy", "majority class"]
    assert held["references"][0]["accuracy"] > held["references"][1]["accuracy"]
    assert {entry["name"] for entry in held["entries"]} == {"dp-sgd", "auto-s"}
    assert all(entry["runs"] for entry in held["entries"])
