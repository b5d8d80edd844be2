"""Flags that several commands share, and what is said when a needed one is missing."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.core import check
from discreet.core.relation import Neighbouring


class SamplingName(enum.Enum):
    """The samplings, as flags name them."""

    POISSON = "poisson"
    TRUNCATED_POISSON = "truncated-poisson"
    FIXED_SIZE = "fixed-size"
    BALLS_IN_BINS = "balls-in-bins"
    FULL_BATCH = "full-batch"
    OWN_LOADER = "own-loader"


def flag(text: str, panel: str | None = None) -> Any:
    """An option with its help."""
    return typer.Option(help=text, rich_help_panel=panel, show_default=False)


MethodFlag = Annotated[str | None, flag("A method that `discreet methods` lists.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]

NoiseFlag = Annotated[float | None, flag("Noise multiplier z: deviation on the sum / clip.", "Budget")]
EpsilonFlag = Annotated[float | None, flag("Certified epsilon to stay within.", "Budget")]
DeltaFlag = Annotated[float | None, flag("Probability that the bound fails, e.g. 1e-5. Required.", "Budget")]
AcceptDeltaFlag = Annotated[
    bool, flag("Accept a delta of 1/records or more, which protects no single record.", "Budget")
]
ToClaimFlag = Annotated[bool, flag("Take the noise that the method's paper claims for --epsilon.", "Budget")]

BatchFlag = Annotated[float | None, flag("Expected records in a step (public).", "Run")]
WholeBatchFlag = Annotated[int | None, flag("Expected records in a step (public).", "Run")]
StepsFlag = Annotated[int | None, flag("Steps of the run.", "Run")]
EpochsFlag = Annotated[int | None, flag("Passes; one is ceil(records/batch) steps.", "Run")]

RelationFlag = Annotated[Neighbouring | None, flag("Which datasets are neighbours.", "Guarantee")]
SamplingFlag = Annotated[SamplingName | None, flag("How batches are drawn.", "Guarantee")]
CapFlag = Annotated[int | None, flag("Largest batch of truncated-poisson.", "Guarantee")]

DataFlag = Annotated[str | None, flag("A dataset's name, or your own .npz file (default: digits).")]
OutFlag = Annotated[Path | None, flag("The directory to write. Required.")]
ModelFlag = Annotated[str | None, flag("A model's name (default: the usual one for the data).")]
DataDirFlag = Annotated[Path | None, flag("Where the dataset's files are.", "Data")]
DownloadFlag = Annotated[bool, flag("Fetch the dataset if it is not on this machine.", "Data")]
ClassesFlag = Annotated[int | None, flag("Public number of classes of an .npz file.", "Data")]
RecordsFlag = Annotated[int | None, flag("Public number of records of an .npz file.", "Data")]
PublicDataFlag = Annotated[bool, flag("The training records are public.", "Data")]
MicroBatchFlag = Annotated[
    int | None, flag("The most records in memory at once (default: by a memory estimate).", "Training")
]


def required_delta(delta: float | None) -> float:
    """delta, which the user must give."""
    if delta is None:
        check.refuse("--delta", "none", "choose it far below 1/records, e.g. --delta 1e-5")
    check.inside_unit("delta is far below 1/records, e.g. 1e-5", delta=delta)
    return delta


def required_noise(noise: float | None) -> float:
    """The noise, which must be given here."""
    if noise is None:
        check.refuse("--noise", "none", "give the multiplier, e.g. --noise 1.1, or a budget with --epsilon")
    check.not_negative("noise is the standard deviation on the sum divided by the clip", noise=noise)
    return noise


def required_epsilon(epsilon: float | None) -> float:
    """The budget, which must be given here."""
    if epsilon is None:
        check.refuse("--epsilon", "none", "give the budget, e.g. --epsilon 3")
    check.positive("the budget that the certificate stays within", epsilon=epsilon)
    return epsilon


def required_out(out: Path | None) -> Path:
    """The directory, which must be given here."""
    if out is None:
        check.refuse("--out", "none", "name a directory to write, e.g. --out runs/first")
    return out
