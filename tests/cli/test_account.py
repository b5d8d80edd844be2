from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import GOLDEN, refused, replaced, run

from discreet import methods
from discreet.stages.sampling import Horizon


def test_the_golden_number() -> None:
    answer = run("account", *GOLDEN, "--json").json
    assert set(answer) == {"method", "certified", "claimed"}
    assert set(answer["certified"]) == {"epsilon", "delta", "accountant", "relation", "assumptions"}
    assert answer["method"] == "dp-sgd"
    assert answer["claimed"] is None
    assert 4.2577 <= answer["certified"]["epsilon"] <= 4.28
    assert answer["certified"]["delta"] == 1e-5
    assert answer["certified"]["relation"] == "add/remove"
    assert answer["certified"]["assumptions"]


def test_the_command_line_says_what_the_plan_says() -> None:
    words = ("--method", "adaptive-quantile", "--noise", "1.3", "--records", "6000", "--batch", "100")
    words += ("--epochs", "3", "--delta", "1e-6", "--count-noise", "4", "--clip", "0.5")
    answer = run("account", *words, "--json").json
    plan = methods.adaptive_quantile(clip=0.5, count_noise=4.0)
    bound = plan.bind(noise=1.3, horizon=Horizon.of(records=6000, batch=100, epochs=3), delta=1e-6)
    assert answer["certified"] == bound.certificate().to_json()


def test_a_parameter_that_matters_reaches_the_recipe() -> None:
    words = replaced(GOLDEN, method="adaptive-quantile")
    quiet = run("account", *words, "--count-noise", "100", "--json").json["certified"]["epsilon"]
    loud = run("account", *words, "--count-noise", "0.6", "--json").json["certified"]["epsilon"]
    assert loud > 1.2 * quiet


def test_epochs_of_a_rate_are_passes_of_whole_steps() -> None:
    by_steps = run("account", *replaced(GOLDEN, rate="0.01", steps="300"), "--json").json
    by_epochs = run("account", *replaced(GOLDEN, rate="0.01", steps=None, epochs="3"), "--json").json
    assert by_steps == by_epochs


@pytest.mark.parametrize(
    ("sampling", "changes", "same_as"),
    [
        ("poisson", {}, None),
        # A loader of one's own may move every batch by two clips: four full batches' worth a step.
        ("own-loader", {"rate": None, "steps": "10"}, ("full-batch", {"rate": None, "steps": "40"})),
        ("balls-in-bins", {"rate": "0.1", "steps": "30"}, ("full-batch", {"rate": None, "steps": "3"})),
    ],
)
def test_samplings(sampling: str, changes: dict[str, str], same_as: tuple[str, dict[str, str]] | None) -> None:
    epsilon = run("account", *replaced(GOLDEN, **changes, sampling=sampling), "--json").json["certified"]["epsilon"]
    name, other = same_as or ("poisson", changes)
    expected = run("account", *replaced(GOLDEN, **other, sampling=name), "--json").json["certified"]["epsilon"]
    assert epsilon == pytest.approx(expected, rel=1e-6)


def test_fixed_size_is_for_replace_one() -> None:
    words = replaced(GOLDEN, rate=None, records="1000", batch="20", steps="50", sampling="fixed-size")
    refused(run("account", *words), "FixedSize", "replace-one")
    answer = run("account", *words, "--relation", "replace-one", "--json").json
    assert answer["certified"]["relation"] == "replace-one"


def test_truncated_poisson_needs_its_cap() -> None:
    words = replaced(GOLDEN, rate=None, records="1000", batch="20", steps="50", sampling="truncated-poisson")
    refused(run("account", *words), "--cap")
    capped = run("account", *words, "--cap", "40", "--json").json["certified"]["epsilon"]
    plain = run("account", *replaced(tuple(words), sampling="poisson"), "--json").json["certified"]["epsilon"]
    assert plain < capped < 3 * plain
    refused(run("account", *replaced(tuple(words), sampling="poisson"), "--cap", "40"), "truncated-poisson")


def test_no_noise_is_said_to_be_infinite() -> None:
    answer = run("account", *replaced(GOLDEN, noise="0"), "--json")
    assert answer.json["certified"]["epsilon"] == "inf"
    assert "Infinity" not in answer.out
    assert "no proven guarantee" in run("account", *replaced(GOLDEN, noise="0")).out


def test_a_budget_instead_of_a_noise() -> None:
    answer = run("account", *replaced(GOLDEN, noise=None, epsilon="3"), "--json").json
    assert 3 * 0.995 <= answer["certified"]["epsilon"] <= 3
    assert answer["noise"] > 1.1


# -- schedules ----------------------------------------------------------------------------------------------


def test_schedules(tmp_path: Path) -> None:
    words = replaced(GOLDEN, rate="0.25", steps=None, epochs="2")

    def epsilon(*more: object) -> float:
        return float(run("account", *words, *more, "--json").json["certified"]["epsilon"])

    constant = epsilon()
    assert epsilon("--schedule", "constant") == constant
    assert epsilon("--schedule", "1,1,1,1,1,1,1,1") == constant
    by_epoch = epsilon("--schedule", "2, 1", "--schedule-per", "epoch")
    assert by_epoch < constant
    assert epsilon("--schedule", "2,2,2,2,1,1,1,1", "--schedule-per", "step") == by_epoch
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"factors": [2, 1], "per": "epoch"}))
    assert epsilon("--schedule", table) == by_epoch
    table.write_text("[2, 1]")
    assert epsilon("--schedule", table, "--schedule-per", "epoch") == by_epoch
    refused(run("account", *words, "--schedule", table), "table")  # too short for steps


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '["a"]', "[true]", '{"factors": 3}', '{"per": "step"}', '{"factors": [1], "per": "year"}'],
)
def test_a_bad_schedule_file_is_refused(tmp_path: Path, text: str) -> None:
    table = tmp_path / "table.json"
    table.write_text(text)
    refused(run("account", *GOLDEN, "--schedule", table))


# -- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"rate": "1.3"}, ["rate in (0, 1]", "1.3"]),
        ({"rate": "0"}, ["rate in (0, 1]"]),
        ({"rate": "nan"}, ["rate", "nan"]),
        ({"delta": "0"}, ["delta in (0, 1)", "delta=0"]),
        ({"delta": "1"}, ["delta in (0, 1)"]),
        ({"delta": None}, ["--delta"]),
        ({"noise": "-1"}, ["noise >= 0", "-1"]),
        ({"noise": "inf"}, ["noise"]),
        ({"noise": None}, ["--noise"]),
        ({"noise": "much"}, ["--noise"]),
        ({"steps": "0"}, ["steps"]),
        ({"steps": "-3"}, ["steps"]),
        ({"steps": "2.5"}, ["--steps"]),
        ({"steps": None}, ["--steps or --epochs"]),
        ({"method": "dpsgd"}, ["did you mean dp-sgd", "'dpsgd'"]),
        ({"method": "DP-SGD"}, ["did you mean dp-sgd"]),
        ({"method": "a\nb"}, ["dp-sgd"]),
        ({"method": None}, ["--method"]),
        ({"records": "60000"}, ["--rate", "--records"]),
        ({"batch": "60"}, ["--rate", "--batch"]),
        ({"epochs": "3"}, ["--steps", "--epochs"]),
        ({"epsilon": "3"}, ["--noise", "--epsilon"]),
        ({"rate": None}, ["--rate, or --records with --batch"]),
        ({"rate": None, "records": "60000"}, ["--batch"]),
        ({"rate": None, "records": "600", "batch": "601"}, ["batch <= records"]),
        ({"rate": None, "records": "600", "batch": "-1"}, ["batch > 0"]),
        ({"relation": "replace-one"}, ["add/remove", "replace-one"]),
        ({"relation": "substitute"}, ["--relation"]),
        ({"sampling": "shuffle"}, ["--sampling"]),
        ({"sampling": "full-batch"}, ["rate 1"]),
        ({"sampling": "fixed-size", "relation": "replace-one"}, ["records"]),
        ({"cap": "3"}, ["truncated-poisson"]),
        ({"schedule": "no-such-file.json"}, ["--schedule", "no-such-file.json"]),
        ({"schedule": "1,0.5"}, ["table"]),
        ({"schedule": "1,-1"}, ["factor > 0"]),
        ({"schedule_per": "epoch"}, ["--schedule-per"]),
        ({"clip": "-1"}, ["clip > 0"]),
        ({"clip": "wide"}, ["--clip", "number", "'wide'"]),
        ({"gamma": "0.1"}, ["flags of dp-sgd (--clip)", "--gamma", "auto-s"]),
        ({"curve": "curve.pdf"}, [".svg", ".png"]),
        ({"curve": "no-such-directory/curve.svg"}, ["directory"]),
        ({"ledger": "no-such-ledger.jsonl"}, ["--ledger with --delta alone", "--noise"]),
        ({"no_such_flag": "1"}, ["--no-such-flag"]),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_bad_input_is_one_line(changes: dict[str, str | None], parts: list[str]) -> None:
    refused(run("account", *replaced(GOLDEN, **changes)), *parts)


@pytest.mark.parametrize("words", [["account", "--noise"], ["account", "surplus"], ["--loud"]])
def test_usage_errors_are_one_line(words: list[str]) -> None:
    refused(run(*words), "--help")


def test_a_misspelt_command_is_told_the_nearest() -> None:
    refused(run("acount"), "discreet account")


# -- what people see ----------------------------------------------------------------------------------------


def test_the_table_shows_no_less_than_is_proven() -> None:
    result = run("account", *GOLDEN)
    assert result.code == 0
    shown = next(line for line in result.out.splitlines() if line.strip().startswith("epsilon")).split()[1]
    proven = run("account", *GOLDEN, "--json").json["certified"]["epsilon"]
    assert proven <= float(shown) <= proven + 0.01
    for part in ("certified", "claimed", "PLD", "add/remove", "assumes", "sampled independently"):
        assert part in result.out


def test_curves(tmp_path: Path) -> None:
    for name in ("curve.svg", "curve.png"):
        result = run("account", *replaced(GOLDEN, steps="40", curve=str(tmp_path / name)))
        assert result.code == 0, result.err
        assert "40 steps" in result.out
        assert "█" in result.out
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    refused(run("account", *replaced(GOLDEN, noise="0", curve=str(tmp_path / "none.svg"))), "no proven guarantee")
    assert not (tmp_path / "none.svg").exists()
    silent = run("account", *replaced(GOLDEN, steps="40", curve=str(tmp_path / "again.svg")), "--json")
    assert silent.json["method"] == "dp-sgd"
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "curve.svg").read_bytes()


def test_help_version_and_nothing() -> None:
    assert run("--version").out.startswith("discreet ")
    for words in ([], ["--help"], ["account", "--help"], ["calibrate", "--help"], ["methods", "--help"]):
        result = run(*words)
        assert (result.code, result.err) == (0, "")
        assert "Usage" in result.out


def test_methods_are_all_listed_with_their_guarantee() -> None:
    listed = run("methods", "--json").json["methods"]
    assert [row["name"] for row in listed] == list(methods.METHODS)
    for row in listed:
        assert row["guarantee"]
        assert row["summary"]
        assert row["certified"] is methods.METHODS[row["name"]].certified
    table = run("methods")
    assert table.code == 0
    for name in methods.METHODS:
        assert name in table.out


def test_a_fault_of_ours_is_not_called_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken\ninside")

    monkeypatch.setattr("discreet.cli.account.recipe_of", broken)
    result = run("account", *GOLDEN)
    assert result.code == 70
    assert result.err.count("\n") == 1
    assert "RuntimeError: broken inside" in result.err


def test_numbers_out_of_range_are_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object, **__: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("discreet.cli.account.recipe_of", too_large)
    refused(run("account", *GOLDEN), "OverflowError")


@pytest.mark.parametrize(("noise", "rate"), [("1e20", "0.01"), ("1.1", "1e-300"), ("1e20", "1e-300"), ("1e-8", "0.01")])
def test_extreme_steps_have_a_price(noise: str, rate: str) -> None:
    words = replaced(GOLDEN, noise=noise, rate=rate, steps="50")
    assert run("account", *words, "--json").json["certified"]["epsilon"] >= 0
