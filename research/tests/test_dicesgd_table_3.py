"""DiceSGD on a language model: the whole study on a tiny one, and the quick study where the weights are."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from research.extra import NEEDED

pytest.importorskip("peft", reason=NEEDED)
pytest.importorskip("sacrebleu", reason=NEEDED)

import numpy as np
from small_llama import TOKENS, small

from discreet.core.check import Refused
from research.reproductions import Bench, results
from research.reproductions.dicesgd import table_3
from research.reproductions.dicesgd.table_3 import DRAWN, Size, bleu, language
from research.reproductions.experiment import Experiment, Outcome
from research.reproductions.results import perform
from research.tasks import e2e
from research.tasks.smollm2 import SmolLM2

SMALL = Size(train=40, test=12, batch=20, epochs=1, spoken=3, vocabulary=len(TOKENS))


def texts(split: str, *, data_dir: str | None = None) -> e2e.Texts:
    places = 30 if split == "train" else 12
    return {f"name[{split} {i}]": ["A is at the end.", "The one at the end!"] for i in range(places)}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A tiny random model in the place of SmolLM2, made texts in the place of E2E."""
    known = small()
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    monkeypatch.setattr(e2e, "texts", texts)
    monkeypatch.setattr(SmolLM2, "load", staticmethod(lambda **_: known))
    monkeypatch.setattr(table_3, "QUICK", SMALL)
    return tmp_path


def bench(folder: Path) -> Bench:
    return Bench(quick=True, seeds=(0,), folder=folder / "runs")


def check_rows(found: Outcome) -> None:
    rows = {row.setting: row for row in found.rows}
    assert list(rows)[:3] == ["SmolLM2, no fine-tuning", "without privacy", "DPSGD-GC"]
    assert rows["SmolLM2, no fine-tuning"].certified == 0
    assert rows["without privacy"].certified == math.inf
    for name in ("DPSGD-GC", "DiceSGD, certified", "two-level", "automatic (AUTO-S)"):
        certified = rows[name].certified
        assert certified is not None
        assert 7.9 < certified <= 8
    drawn = rows[DRAWN]
    assert drawn.claimed == 8
    assert drawn.certified is not None
    assert drawn.certified > 100  # what the paper's noise proves, beside what it claims
    assert (rows["DPSGD-GC"].paper, drawn.paper, rows["without privacy"].paper) == (56.8, 62.6, 70.4)
    losses = {curve.name: curve.y for curve in found.figures[0].curves}
    assert losses["without privacy"][2] < losses["without privacy"][0]
    assert losses["DiceSGD, certified"][2] != losses["DPSGD-GC"][2]


def test_the_study_on_a_tiny_model(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row has its epsilons; the record names no place; what is kept is not trained again."""
    experiment = Experiment(
        name="dice-e2e", paper="004", artefact="Table 3", what="", minutes_quick=1, minutes_full=1, run=language
    )
    record = perform(experiment, bench(tiny), command="python -m research.reproductions dice-e2e --quick")
    check_rows(record.outcome)
    text = results.write(record, tiny / "results").read_text(encoding="utf-8")
    kept = sorted((tiny / "runs" / "values").iterdir())
    assert len(kept) == len(record.outcome.rows)
    assert not any(str(tiny) in line for line in (text, *(file.read_text("utf-8") for file in kept)))

    def never(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(table_3._Study, "_train", never)
    assert language(bench(tiny)) == record.outcome
    for file in kept:  # the control: without them there is something to train
        file.unlink()
    with pytest.raises(AssertionError, match="trained again"):
        language(bench(tiny))


def test_the_rate_warms_up_and_falls() -> None:
    size = Size(train=2000, test=1, batch=100, epochs=2, spoken=1)
    rates = [size.rate_at(step) for step in range(size.steps)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert np.all(np.diff(rates[4:]) < 0)
    assert 0 < rates[-1] < 0.05


@pytest.mark.slow
def test_the_quick_study_with_the_real_model(tmp_path: Path) -> None:
    try:
        SmolLM2.load(adapters=table_3.ADAPTERS)
        e2e.texts("test")
    except Refused as missing:
        pytest.skip(str(missing))
    check_rows(found := language(bench(tmp_path)))
    rows = {row.setting: row.ours or 0.0 for row in found.rows}
    losses = {curve.name: curve.y for curve in found.figures[0].curves}
    start, _, end = losses["without privacy"]
    assert start == pytest.approx(2.430, abs=0.005)  # the public model: only float rounding can move it
    assert end < start - 0.2
    assert rows["without privacy"] > rows["SmolLM2, no fine-tuning"] > 5


# -- BLEU, against numbers worked out by hand ---------------------------------------------------------------------


def test_a_worked_example() -> None:
    """All six words are in the reference, and of 5, 4, 3 longer n-grams 4, 3, 2; the reference is a word longer."""
    found = bleu(["the cat sat on the rug"], [["a cat sat on the rug the"]])
    right, tried = (6, 4, 3, 2), (6, 5, 4, 3)  # only "the cat" is not there
    penalty = 1 - 7 / 6
    expected = 100 * math.exp(penalty) * math.prod(r / t for r, t in zip(right, tried, strict=True)) ** 0.25
    assert found == pytest.approx(expected)


def test_a_word_counts_as_often_as_in_one_reference() -> None:
    """ "the" seven times against two and one: two count (Papineni et al.); no pair is right, so BLEU is 0."""
    assert bleu(["the the the the the the the"], [["the cat is on the mat", "there is a cat on the mat"]]) == 0


def test_counts_are_of_the_corpus_not_of_the_mean_text() -> None:
    """One text without a right 4-gram does not make the whole 0."""
    outputs, references = ["a b c d e", "x y"], [["a b c d e"], ["x z"]]
    expected = 100 * ((6 / 7) * (4 / 5) * (3 / 3) * (2 / 2)) ** 0.25
    assert bleu(outputs, references) == pytest.approx(expected)


def test_any_reference_will_do_and_the_closest_sets_the_length() -> None:
    assert bleu(["one two three four"], [["one two three four five six", "One two three four"]]) == pytest.approx(100)
    longer = bleu(["one two three four"], [["one two three four five six"]])
    assert longer == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_case_and_punctuation_follow_mteval_13a() -> None:
    """Marks are words of their own, apart from hyphens in words and points in numbers."""
    assert bleu(["It's family-friendly, £10.50."], [["it's FAMILY-friendly , £10.50 ."]]) == pytest.approx(100)
    assert bleu(["One two three four five"], [["one two three four 5"]]) < 100


def test_texts_may_have_different_numbers_of_references() -> None:
    outputs = ["a b c d e", "v w x y z"]
    assert bleu(outputs, [["a b c d e"], ["q r s t u", "v w x y z"]]) == pytest.approx(100)
    assert bleu(outputs, [["a b c d e"], ["q r s t u"]]) < 60
