"""Flags that several commands share, and what is said when a needed one is missing."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, final

import typer

from discreet.core import check
from discreet.core.relation import Neighbouring

_Value = TypeVar("_Value")


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
AcceptDeltaFlag = Annotated[bool, flag("Accept delta >= 1/records, which protects no single record.", "Budget")]
ToClaimFlag = Annotated[bool, flag("Take the noise that the method's paper claims for --epsilon.", "Budget")]

BatchFlag = Annotated[float | None, flag("Expected records in a step (public).", "Run")]
WholeBatchFlag = Annotated[int | None, flag("Expected records in a step (public).", "Run")]
StepsFlag = Annotated[int | None, flag("Steps of the run.", "Run")]
EpochsFlag = Annotated[int | None, flag("Passes; one is ceil(records/batch) steps.", "Run")]

RelationFlag = Annotated[Neighbouring | None, flag("Which datasets are neighbours.", "Guarantee")]
SamplingFlag = Annotated[SamplingName | None, flag("How batches are drawn.", "Guarantee")]
CapFlag = Annotated[int | None, flag("Largest batch of truncated-poisson.", "Guarantee")]

DataDirFlag = Annotated[Path | None, flag("Where the dataset's files are.", "Data")]
MicroBatchFlag = Annotated[
    int | None, flag("The most records in memory at once (default: from an estimate of the memory).", "Training")
]


@final
@dataclass(frozen=True, kw_only=True)
class TaskFlags:
    """What a run and a comparison share; a flag that is not given has the default of the data."""

    data: Annotated[str | None, flag("A dataset's name, or your own .npz file (default: digits).")] = None
    out: Annotated[Path | None, flag("The directory to write. Required.")] = None
    model: Annotated[str | None, flag("A model's name (default: the usual one for the data).")] = None
    delta: DeltaFlag = None
    accept_delta: AcceptDeltaFlag = False
    batch: WholeBatchFlag = None
    epochs: EpochsFlag = None
    steps: StepsFlag = None
    data_dir: DataDirFlag = None
    download: Annotated[bool, flag("Fetch the dataset if it is not on this machine.", "Data")] = False
    classes: Annotated[int | None, flag("Public number of classes of an .npz file.", "Data")] = None
    records: Annotated[int | None, flag("Public number of records of an .npz file.", "Data")] = None
    public_data: Annotated[bool, flag("The training records are public.", "Data")] = False
    public_records: Annotated[
        str | None, flag("A dataset or .npz file without protected records, for gep and b-gep.", "Data")
    ] = None
    micro_batch: MicroBatchFlag = None
    eval_every: Annotated[int | None, flag("Steps between evaluations (default: 20 evaluations).", "Training")] = None

    def settings(self) -> dict[str, Any]:
        """The given flags as settings of a run or a comparison, without `out`."""
        return {
            **given(self, leave_out=("out", "accept_delta")),
            "delta": required_delta(self.delta),
            "accept_large_delta": self.accept_delta,
        }


def given(flags: Any, *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """The flags of a group that were given, as plain values."""
    names = [field.name for field in dataclasses.fields(flags) if field.name not in leave_out]
    return {name: _plain(getattr(flags, name)) for name in names if getattr(flags, name) is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def required_delta(delta: float | None) -> float:
    """delta, which the user must give."""
    delta = _required("delta", delta, "choose it far below 1/records, e.g. --delta 1e-5")
    check.inside_unit("delta is far below 1/records, e.g. 1e-5", delta=delta)
    return delta


def required_noise(noise: float | None) -> float:
    """The noise multiplier, which the user must give here."""
    noise = _required("noise", noise, "give the multiplier, e.g. --noise 1.1, or a budget with --epsilon")
    check.not_negative("noise is the standard deviation on the sum divided by the clip", noise=noise)
    return noise


def required_epsilon(epsilon: float | None) -> float:
    """The budget, which the user must give here."""
    epsilon = _required("epsilon", epsilon, "give the budget, e.g. --epsilon 3")
    check.positive("the budget that the certificate stays within", epsilon=epsilon)
    return epsilon


def required_out(out: Path | None) -> Path:
    """The directory, which the user must give here."""
    return _required("out", out, "name a directory to write, e.g. --out runs/first")


def _required(name: str, value: _Value | None, remedy: str) -> _Value:
    if value is None:
        check.refuse(f"--{name}", "none", remedy)
    return value
