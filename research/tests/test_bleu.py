"""BLEU against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from discreet.core.check import Refused
from research.tasks.bleu import bleu


def test_a_worked_example() -> None:
    """All six words are in the reference, and of 5, 4, 3 longer n-grams 4, 3, 2; the reference is a word longer."""
    found = bleu(["the cat sat on the rug"], [["a cat sat on the rug the"]])
    right, tried = (6, 4, 3, 2), (6, 5, 4, 3)  # only "the cat" is not there
    penalty = 1 - 7 / 6
    expected = 100 * math.exp(penalty) * math.prod(r / t for r, t in zip(right, tried, strict=True)) ** 0.25
    assert found == pytest.approx(expected)


def test_a_word_counts_as_often_as_in_one_reference() -> None:
    """ "the" seven times against two and one: two count (Papineni et al.); no pair is right, so BLEU is 0."""
    assert (
        bleu(["the the the the the the the"], [["the cat is on the mat", "there is a cat on the mat"]]) == 0
    )


def test_counts_are_of_the_corpus_not_of_the_mean_text() -> None:
    """One text without a right 4-gram does not make the whole 0."""
    outputs, references = ["a b c d e", "x y"], [["a b c d e"], ["x z"]]
    expected = 100 * ((6 / 7) * (4 / 5) * (3 / 3) * (2 / 2)) ** 0.25
    assert bleu(outputs, references) == pytest.approx(expected)


def test_any_reference_will_do_and_the_closest_sets_the_length() -> None:
    assert bleu(["one two three four"], [["one two three four five six", "One two three four"]]) == 100
    longer = bleu(["one two three four"], [["one two three four five six"]])
    assert longer == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_one_set_of_references_for_each_output() -> None:
    with pytest.raises(Refused, match="one output and at least one reference"):
        bleu(["a"], [])
    with pytest.raises(Refused, match="one output and at least one reference"):
        bleu(["a"], [[]])
