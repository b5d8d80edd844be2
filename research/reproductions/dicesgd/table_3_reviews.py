"""DiceSGD (paper 004), in place of Table 3: a head on a sentence encoder, clothing reviews, epsilon 8."""

from __future__ import annotations

from typing import Final

from research.reproductions.bench import Bench
from research.reproductions.dicesgd.heads import NOISE, UNIT, Setting, summary, ways
from research.reproductions.experiment import Outcome, Status
from research.tasks.sentences import review_features

TEXTS: Final = (
    "The paper fine-tunes GPT-2 on E2E and reports BLEU; here a softmax head (770 parameters) is trained on frozen "
    "features of all-MiniLM-L6-v2, to tell whether a review recommends. Only the comparison of methods carries over.",
    *NOISE,
)


def text(bench: Bench) -> Outcome:
    """In place of Table 3: all methods on reviews, at epsilon 8 and C = 1."""
    rows = ways(bench, text_head(bench), 1.0, papers=(None, None))
    return Outcome(unit=UNIT, rows=tuple(rows), status=Status.PARTLY, summary=summary(rows), guesses=TEXTS)


def text_head(bench: Bench) -> Setting:
    file = review_features(note=bench.note)
    epochs = 2 if bench.quick else 10
    return Setting(file=file, classes=2, records=6000, batch=600, epochs=epochs, epsilon=8.0, delta=8e-6)
