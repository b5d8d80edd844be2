"""Corpus BLEU (Papineni et al. 2002) against several references, words cut as mteval-13a cuts English."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from discreet.core.check import require

LONGEST = 4


def words(text: str) -> list[str]:
    """Lower case; ASCII marks apart, but for apostrophes, hyphens in words, and points and commas in numbers.

    >>> words("It's family-friendly, 3-star (£10.50).")
    ["it's", 'family-friendly', ',', '3', '-', 'star', '(', '£10.50', ')', '.']
    """
    text = re.sub(r"([!-&(-+/:-@[-`{-~])", r" \1 ", text.lower())
    text = re.sub(r"(?<!\d)([.,])|([.,])(?!\d)", r" \1\2 ", text)
    return re.sub(r"(\d)-", r"\1 - ", text).split()


def bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """100 times the geometric mean of the precisions of 1- to 4-grams, times the penalty for brevity; no smoothing.

    >>> bleu(["the cat sat on the mat"], [["The cat sat on the mat", "A cat sat there"]])
    100.0
    """
    require(
        len(outputs) == len(references) > 0 and all(references),
        "one output and at least one reference for each text",
        f"{len(outputs)} outputs for {len(references)} sets of references",
        "give both in the same order",
    )
    right, tried = [0] * LONGEST, [0] * LONGEST
    written = wanted = 0
    for output, own in zip(outputs, references, strict=True):
        made, known = words(output), [words(reference) for reference in own]
        written += len(made)
        wanted += min((abs(len(ref) - len(made)), len(ref)) for ref in known)[1]
        for order in range(1, LONGEST + 1):
            found = _grams(made, order)
            most: Counter[tuple[str, ...]] = Counter()
            for reference in known:
                most |= _grams(reference, order)
            right[order - 1] += (found & most).total()
            tried[order - 1] += found.total()
    if 0 in right:
        return 0.0
    mean = math.fsum(math.log(r / t) for r, t in zip(right, tried, strict=True)) / LONGEST
    return 100 * math.exp(mean + min(0.0, 1 - wanted / written))


def _grams(text: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    if order == 2:
        return Counter(pairwise(text))
    return Counter(tuple(text[i : i + order]) for i in range(len(text) - order + 1))
