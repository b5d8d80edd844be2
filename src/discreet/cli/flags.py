"""What commands share: flags, refusals of missing ones, JSON output and exit codes."""

import dataclasses
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, final

import typer

from discreet.core import check
from discreet.core.own_files import is_own, is_table
from discreet.core.plain import plain
from discreet.core.relation import Neighbouring

_Value = TypeVar("_Value")

FAILED = 1  # the command did its work, and the answer is bad
BAD_INPUT = 2  # refused before anything was spent
STOPPED = 3  # refused after the run had spent
# From here on as in sysexits.h.
DAMAGED = 65
INTERNAL = 70
NO_MEMORY = 71
FILES = 74
PROCESS_LOST = 75
INTERRUPTED = 130


def emit(answer: dict[str, Any]) -> None:
    """One JSON object; an infinite number is the string "inf"."""
    print(json.dumps(plain(answer), allow_nan=False))


def flag(text: str, panel: str | None = None, *, rare: bool = False) -> Any:
    """An option; the help lists a rare one only after `--help all`."""
    return typer.Option(help=text, rich_help_panel=panel, show_default=False, hidden=rare)


MethodFlag = Annotated[str | None, flag("A method that `discreet methods` lists.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]

NoiseFlag = Annotated[float | None, flag("Noise multiplier z: deviation on the sum / clip.", "Budget")]
EpsilonFlag = Annotated[float | None, flag("Certified epsilon to stay within.", "Budget")]
DeltaFlag = Annotated[float | None, flag("Probability that it fails, e.g. 1e-5. Required.", "Budget")]
AcceptDeltaFlag = Annotated[
    bool, flag("Accept delta >= 1/records, which protects no single record.", "Budget", rare=True)
]
ToClaimFlag = Annotated[bool, flag("Take the noise that the method's paper claims for --epsilon.", "Budget", rare=True)]

WholeBatchFlag = Annotated[int | None, flag("Expected records in a step (public).", "Run")]
StepsFlag = Annotated[int | None, flag("Steps of the run.", "Run")]
EpochsFlag = Annotated[int | None, flag("Passes; one is ceil(records/batch) steps.", "Run")]

RelationFlag = Annotated[Neighbouring | None, flag("Which datasets are neighbours.", "Guarantee", rare=True)]
_Drawn = Literal["poisson", "truncated-poisson", "fixed-size", "balls-in-bins", "full-batch", "own-loader"]
_Returning = Literal["fixed-bins", "cyclic-poisson", "fixed-order", "reshuffled", "one-pass"]
SamplingName = Literal[_Drawn, _Returning]
SamplingFlag = Annotated[SamplingName | None, flag("How batches are drawn.", "Guarantee", rare=True)]
CapFlag = Annotated[int | None, flag("Largest batch of truncated-poisson.", "Guarantee", rare=True)]

BudgetFlag = Annotated[
    Path | None, flag("The budget file of the records, which is charged before they are read.", "Budget", rare=True)
]
DataDirFlag = Annotated[Path | None, flag("Where the dataset's files are.", "Data", rare=True)]
MicroBatchFlag = Annotated[
    int | None,
    flag("The most records in memory at once (default: from an estimate of the memory).", "Training", rare=True),
]


@final
@dataclass(frozen=True, kw_only=True)
class TaskFlags:
    """What a run and a comparison share; a flag that is not given has the default of the data."""

    data: Annotated[str | None, flag("A dataset's name, or a .csv, .parquet, .npz file.")] = None
    out: Annotated[Path | None, flag("The directory to write. Required.")] = None
    model: Annotated[str | None, flag("A model's name (default: the usual one).")] = None
    delta: DeltaFlag = None
    accept_delta: AcceptDeltaFlag = False
    batch: WholeBatchFlag = None
    epochs: EpochsFlag = None
    steps: StepsFlag = None
    data_dir: DataDirFlag = None
    download: Annotated[bool, flag("Fetch the dataset if it is not on this machine.", "Data", rare=True)] = False
    task: Annotated[str | None, flag("classification, regression or multilabel.", "Data")] = None
    label: Annotated[str | None, flag("Column to predict, or columns a,b,c.", "Data")] = None
    schema: Annotated[Path | None, flag("A table's public schema, a JSON file.", "Data")] = None
    test: Annotated[Path | None, flag("Test records, which no epsilon protects.", "Data")] = None
    hold_out: Annotated[float | None, flag("Share of rows to test on; not protected.", "Data")] = None
    unit: Annotated[str | None, flag("Column of owners, who are protected.", "Data")] = None
    per_user: Annotated[int | None, flag("Most records of one owner that are used.", "Data", rare=True)] = None
    sample: Annotated[
        Literal["users", "records"] | None, flag("What is drawn with --unit (default: users).", "Data", rare=True)
    ] = None
    classes: Annotated[int | None, flag("Public number of classes of an .npz file.", "Data")] = None
    records: Annotated[int | None, flag("Public number of records of your own file.", "Data")] = None
    public_data: Annotated[bool, flag("The training records are public.", "Data", rare=True)] = False
    public_records: Annotated[
        str | None,
        flag("A file without protected records, for gep, b-gep and statistics of features.", "Data", rare=True),
    ] = None
    features: Annotated[str | None, flag("Public features of the records, as a list a,b.", "Data")] = None
    preset: Annotated[str | None, flag("Settings that `discreet presets` lists, e.g. best.")] = None
    budget: BudgetFlag = None
    micro_batch: MicroBatchFlag = None
    eval_every: Annotated[int | None, flag("Steps between evaluations.", "Training", rare=True)] = None

    def require(self, **budget: object) -> None:
        """Refuse a command line that lacks any flag, all at once; a file of the user needs more of them."""
        own: dict[str, object] = {}
        if is_table(self.data, self.label):
            own = {"label": self.label, "schema": self.schema, "records": self.records}
            if None in own.values():  # alone, it is refused with what it means for the records
                own["hold_out"] = self.hold_out if self.test is None else self.test
        elif is_own(self.data):
            own = {"records": self.records}
            own |= {} if self.task == "regression" else {"classes": self.classes}
        require_all(**budget, delta=self.delta, out=self.out, **own)

    def settings(self) -> dict[str, Any]:
        """The given flags as settings of a run or a comparison, without `out`."""
        features = {} if self.features is None else {"features": features_called(self.features)}
        return {
            **given(self, leave_out=("out", "accept_delta", "features", "schema")),
            **features,
            **({} if self.schema is None else {"schema": schema_text(self.schema)}),
            "delta": required_delta(self.delta),
            "accept_large_delta": self.accept_delta,
        }


def schema_text(path: Path) -> str:
    """The schema of a file, in one form, so that a run can be resumed wherever the file is."""
    remedy = 'write one from public knowledge: {"age": {"bounds": [18, 90]}, "city": {"categories": ["a", "b"]}, ...}'
    check.require(path.is_file(), "a schema file", f"no file {path}", remedy)
    try:
        return json.dumps(json.loads(path.read_text(encoding="utf-8")), sort_keys=False)
    except ValueError as error:
        check.refuse(f"{path} to be JSON", error, 'write {"age": {"bounds": [18, 90]}, ...}')


def features_called(text: str) -> tuple[str, ...]:
    """The features of a list a,b; `none` for the records themselves."""
    return () if text.strip() == "none" else tuple(name.strip() for name in text.split(","))


def given(flags: Any, *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """The flags of a group that were given, as plain values."""
    values = {field.name: getattr(flags, field.name) for field in dataclasses.fields(flags)}
    values = {name: value.value if isinstance(value, enum.Enum) else value for name, value in values.items()}
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if value is not None and name not in leave_out
    }


def listed(name: str, text: str, kind: Callable[[str], _Value], words: str, example: str) -> tuple[_Value, ...]:
    """The values of a flag that takes a list a,b,c."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        check.refuse(f"--{name} to be {words}", repr(text), f"e.g. --{name} {example}")


def required_delta(delta: float | None) -> float:
    delta = required("delta", delta, "choose it far below 1/records, e.g. --delta 1e-5")
    check.inside_unit("delta is far below 1/records, e.g. 1e-5", delta=delta)
    return delta


def required_noise(noise: float | None) -> float:
    noise = required("noise", noise, "give the multiplier, e.g. --noise 1.1, or a budget with --epsilon")
    check.not_negative("noise is the standard deviation on the sum divided by the clip", noise=noise)
    return noise


def required_epsilon(epsilon: float | None) -> float:
    epsilon = required("epsilon", epsilon, "give the budget, e.g. --epsilon 3")
    check.positive("the budget that the certificate stays within", epsilon=epsilon)
    return epsilon


def required_out(out: Path | None) -> Path:
    return required("out", out, "name a directory to write, e.g. --out runs/first")


def require_all(examples: Mapping[str, str] | None = None, /, **given: object) -> None:
    """Refuse a command line that lacks any of these flags, and name all of them at once.

    >>> require_all(epsilon=None, delta=None, out="runs/a")
    Traceback (most recent call last):
    ...
    discreet.core.check.Refused: Expected --epsilon and --delta, got neither. Remedy: add e.g. --epsilon 3 --delta 1e-5.
    """
    missing = [name for name, value in given.items() if value is None]
    if missing:
        names = [f"--{name.replace('_', '-')}" for name in missing]
        expected = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        got = ("none", "neither", "none of them")[min(len(names), 3) - 1]
        shown = {**_EXAMPLES, **(examples or {})}
        check.refuse(expected, got, "add e.g. " + " ".join(f"{flag} {shown[flag[2:]]}" for flag in names))


_EXAMPLES = {
    "epsilon": "3",
    "delta": "1e-5",
    "noise": "1.1",
    "out": "runs/first",
    "records": "50000",
    "label": "COLUMN",
    "classes": "10",
    "schema": "schema.json",
    "hold-out": "0.2",
    "run": "runs/first",
    "numbers": "age,income",
    "method": "dp-sgd",
}


def required(name: str, value: _Value | None, remedy: str) -> _Value:
    if value is None:
        check.refuse(f"--{name}", "none", remedy)
    return value
