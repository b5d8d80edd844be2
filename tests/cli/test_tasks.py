"""Regression and several labels from the command line: train, compare, predict, evaluate; CSV, Parquet and npz."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import refused, run

SCHEMA = {
    "age": {"bounds": [0, 100]},
    "ward": {"categories": ["A", "B", "C"]},
    "pay": {"bounds": [0, 5000]},
    "ill": {"categories": ["no", "yes"]},
    "old": {"categories": ["no", "yes"]},
}
BUDGET = ("--epsilon", "8", "--delta", "1e-4", "--records", "1500")


def people(records: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    age, ward = random.uniform(0, 100, records).round(), random.choice(list("ABC"), records)
    pay = 40 * age + 500 * (ward == "A") + random.normal(0, 150, records)
    yes = {"ill": (ward == "B") ^ (random.random(records) < 0.05), "old": age + random.normal(0, 5, records) > 50}
    return {"age": age, "ward": ward, "pay": pay, **{name: np.where(one, "yes", "no") for name, one in yes.items()}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same kind of table in three formats, and a schema."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, records, seed in (("train", 1500, 0), ("test", 400, 1)):
        columns = people(records, seed)
        with open(folder / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        np.savez(folder / f"{name}.npz", **columns)  # type: ignore[arg-type]
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    return folder


def words(folder: Path, kind: str, label: str, task: str) -> tuple[object, ...]:
    table = ("--data", folder / f"train.{kind}", "--test", folder / f"test.{kind}", "--schema", folder / "schema.json")
    return (*table, "--label", label, "--task", task, *BUDGET)


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_number(place: Path, tmp_path: Path, kind: str) -> None:
    answer = run("train", *words(place, kind, "pay", "regression"), "--out", tmp_path / "run", "--json").json
    assert answer["measure"] == "R²"
    assert answer["test_accuracy"] == answer["scores"]["R²"] > 0.8
    assert answer["spent"]["certified"]["epsilon"] <= 8
    test = place / f"test.{kind}"
    found = run("evaluate", test, "--run", tmp_path / "run", "--json").json
    assert found["r2"] == pytest.approx(answer["scores"]["R²"])
    assert (found["mae"], found["rmse"]) == pytest.approx((answer["scores"]["MAE"], answer["scores"]["RMSE"]))
    given = run("predict", test, "--run", tmp_path / "run", "--json").json["predictions"]
    assert np.abs(np.array(given) - people(400, 1)["pay"].clip(0, 5000)).mean() == pytest.approx(found["mae"], rel=1e-3)
    assert run("predict", test, "--run", tmp_path / "run").out.startswith("pay")
    shown = run("evaluate", test, "--run", tmp_path / "run").out
    assert "RMSE" in shown
    assert "units of the label" in shown


def test_several_labels(place: Path, tmp_path: Path) -> None:
    answer = run("train", *words(place, "csv", "ill,old", "multilabel"), "--out", tmp_path / "run", "--json").json
    assert answer["measure"] == "label accuracy"
    assert answer["test_accuracy"] > 0.85
    assert run("predict", place / "test.csv", "--run", tmp_path / "run", "--out", tmp_path / "p.csv").code == 0
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["ill", "old", "p(ill)", "p(old)"]
    truth = people(400, 1)
    right = [[row[name] == truth[name][place] for name in ("ill", "old")] for place, row in enumerate(rows)]
    assert np.mean(right) == pytest.approx(answer["test_accuracy"])
    found = run("evaluate", place / "test.csv", "--run", tmp_path / "run", "--json").json
    assert found["accuracy"] == pytest.approx(answer["test_accuracy"])
    assert found["exact"] == pytest.approx(np.all(right, axis=1).mean())
    assert found["auc"] > 0.9
    assert "all labels right" in run("evaluate", place / "test.csv", "--run", tmp_path / "run").out


def test_arrays(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (1200, 5)).astype(np.float32)
    y = np.clip(0.5 + 0.2 * x[:, 0] - 0.2 * x[:, 1] + random.normal(0, 0.02, 1200), 0, 1)
    np.savez(tmp_path / "a.npz", x_train=x[:900], y_train=y[:900], x_test=x[900:], y_test=y[900:])
    settings = ("--model", "head", "--clip", "1", "--learning-rate", "0.3", "--steps", "60", "--batch", "300")
    shared = ("--data", tmp_path / "a.npz", "--task", "regression", "--epsilon", "8", "--delta", "1e-4")
    answer = run("train", *shared, "--records", "900", *settings, "--out", tmp_path / "run", "--json").json
    assert answer["test_accuracy"] > 0.5
    found = run("evaluate", tmp_path / "a.npz", "--run", tmp_path / "run", "--json").json
    assert found["r2"] == pytest.approx(answer["test_accuracy"])


def test_images_on_public_features(tmp_path: Path) -> None:
    """What was trained on features computes those of new records itself."""
    random, parts = np.random.default_rng(0), {}
    for part, records in (("train", 600), ("test", 200)):
        y = np.arange(records) % 2
        x = random.integers(0, 120, (records, 1, 8, 8))
        x[y == 1, :, :, 2:5] += 120  # a bright stroke
        parts |= {f"x_{part}": x.astype(np.uint8), f"y_{part}": y}
    np.savez(tmp_path / "images.npz", **parts)  # type: ignore[arg-type]
    public = {f"x_{part}": random.integers(0, 255, (300, 1, 8, 8)).astype(np.uint8) for part in ("train", "test")}
    labels = {f"y_{part}": np.zeros(300, dtype=np.int64) for part in ("train", "test")}
    np.savez(tmp_path / "public.npz", **public, **labels)  # type: ignore[arg-type]
    features = ("--model", "head", "--features", "scattering", "--public-records", tmp_path / "public.npz")
    settings = ("--records", "600", "--classes", "2", "--clip", "0.3", "--learning-rate", "5", "--steps", "30")
    budget = ("--batch", "200", "--epsilon", "8", "--delta", "1e-4", "--out", tmp_path / "run")
    answer = run("train", "--data", tmp_path / "images.npz", *features, *settings, *budget, "--json").json
    assert answer["test_accuracy"] > 0.9
    assert run("evaluate", tmp_path / "images.npz", "--run", tmp_path / "run", "--json").json["accuracy"] == (
        pytest.approx(answer["test_accuracy"])
    )
    np.savez(tmp_path / "new.npz", x=parts["x_test"][:5])
    given = run("predict", tmp_path / "new.npz", "--run", tmp_path / "run", "--json").json["predictions"]
    assert [one["label"] for one in given] == ["0", "1", "0", "1", "0"]


@pytest.mark.slow
def test_a_comparison_ranks_by_the_measure_of_the_task(place: Path, tmp_path: Path) -> None:
    rows = ("--methods", "dp-sgd,auto-s", "--repeats", "2", "--public-data", "--out", tmp_path / "compare")
    answer = run("compare", *words(place, "csv", "pay", "regression"), *rows, "--json").json
    assert answer["measure"] == "R²"
    assert [one["name"] for one in answer["references"]] == ["without privacy", "mean label"]
    page = (tmp_path / "compare" / "report.html").read_text()
    assert "R² against steps" in page
    assert "dp-sgd" in page
    assert "test accuracy" not in page


def only(place: Path) -> tuple[Any, ...]:
    return words(place, "csv", "pay", "regression")


def test_what_counts_right_answers_takes_classes_only(place: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    refused(run("train", *only(place), *out, "--model", "logistic"), "classification for the model logistic")
    refused(run("tune", *only(place), *out, "--runs", "2", "--space", "learning_rate=0.1,0.2"), "classification for")
    stand_in = ("--tune-on", "digits", "--methods", "dp-sgd")
    refused(run("compare", *only(place), *out, *stand_in), "classification for --tune-on")
    refused(run("train", "--data", "digits", "--task", "regression", "--epsilon", "3", "--delta", "1e-5", *out), "task")
    refused(run("train", *words(place, "csv", "pay", "rank"), *out), "task to be one of classification, regression")
    assert not (tmp_path / "run").exists()
