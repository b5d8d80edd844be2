"""`discreet train` and `discreet resume`: one private run from the command line."""

from __future__ import annotations

import dataclasses
import enum
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from discreet.cli import recipes
from discreet.cli.output import emit
from discreet.cli.plans import (
    CapFlag,
    DeltaFlag,
    EpochsFlag,
    EpsilonFlag,
    JsonFlag,
    MethodFlag,
    NoiseFlag,
    RelationFlag,
    SamplingFlag,
    StepsFlag,
    flag,
)
from discreet.core import check

if TYPE_CHECKING:
    from discreet.runs import RunConfig, RunResult

INTERRUPTED = 130


class Optimizer(enum.Enum):
    """The optimizers, as flags name them."""

    SGD = "sgd"
    ADAM = "adam"


@final
@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Everything that names a run; what is not given is the default for the data."""

    data: Annotated[str | None, flag("A dataset's name, or an .npz file of your own (default: digits).")] = (
        None
    )
    out: Annotated[Path | None, flag("A new directory for the run. Required.")] = None
    model: Annotated[str | None, flag("A model's name.")] = None
    method: MethodFlag = None
    accept_uncertified: Annotated[bool, flag("Train with a method for which nothing is proven.")] = False
    epsilon: EpsilonFlag = None
    noise: NoiseFlag = None
    delta: DeltaFlag = None
    batch: Annotated[int | None, flag("Expected records in a step (public).", "Run")] = None
    epochs: EpochsFlag = None
    steps: StepsFlag = None
    relation: RelationFlag = None
    sampling: SamplingFlag = None
    cap: CapFlag = None
    data_dir: Annotated[Path | None, flag("Where the dataset's files are.", "Data")] = None
    download: Annotated[bool, flag("Fetch the dataset if it is not on this machine.", "Data")] = False
    classes: Annotated[int | None, flag("Public number of classes of an .npz file.", "Data")] = None
    records: Annotated[int | None, flag("Public number of records of an .npz file.", "Data")] = None
    public_data: Annotated[
        bool, flag("The training records are public: show their accuracy too.", "Data")
    ] = False
    optimizer: Annotated[Optimizer | None, flag("Takes the noisy gradient.", "Training")] = None
    learning_rate: Annotated[float | None, flag("Step size on the noisy mean.", "Training")] = None
    momentum: Annotated[float | None, flag("As in torch.optim.SGD.", "Training")] = None
    weight_decay: Annotated[float | None, flag("As in torch.optim.", "Training")] = None
    average: Annotated[
        float | None, flag("Decay of the average of iterates; 0 turns it off.", "Training")
    ] = None
    micro_batch: Annotated[int | None, flag("The most records in memory at once.", "Training")] = None
    eval_every: Annotated[int | None, flag("Steps between evaluations.", "Training")] = None
    checkpoint_every: Annotated[int | None, flag("Steps between checkpoints.", "Training")] = None
    device: Annotated[str | None, flag("As torch names it, e.g. cpu.", "Training")] = None
    seed: Annotated[
        int | None, flag("For tests: a seeded run can be repeated and is NOT private.", "Training")
    ] = None
    recipe_flags: recipes.Given = field(default_factory=dict)


def train(flags: TrainFlags, as_json: JsonFlag = False) -> int:
    """Train privately and leave a run directory: model, ledger, metrics and a privacy statement."""
    return _run(lambda: _config(flags), False, as_json)


def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    as_json: JsonFlag = False,
) -> int:
    """Go on with a run after a crash or Ctrl-C; steps that were charged are not run again."""

    def config() -> RunConfig:
        from discreet import runs

        return runs.load_config(directory)

    return _run(config, True, as_json)


def _config(flags: TrainFlags) -> RunConfig:
    method = recipes.method_called(flags.method)
    check.require(
        method.certified or flags.accept_uncertified,
        "a method with a certificate",
        f"{method.name} ({method.guarantee})",
        "choose another, or give --accept-uncertified: the result will say that nothing is proven",
    )
    parameters = recipes.arguments(method, flags.recipe_flags)
    if flags.out is None:
        check.refuse("--out", "none", "name a new directory for the run, e.g. --out runs/first")
    if flags.delta is None:
        check.refuse("--delta", "none", "choose it far below 1/records, e.g. --delta 1e-5")

    from discreet import runs

    skipped = ("recipe_flags", "accept_uncertified")
    given = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name not in skipped}
    settings = {name: _plain(value) for name, value in given.items() if value is not None}
    return runs.RunConfig(**settings, parameters=tuple(parameters.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _run(config: Callable[[], RunConfig], resuming: bool, as_json: bool) -> int:
    place: Path | None = None
    try:
        settings = config()
        place = Path(settings.out)
        result = _watched(settings, resuming, as_json)
    except KeyboardInterrupt:
        _interrupted(place)
        return INTERRUPTED
    if as_json:
        emit({**result.to_json(), "directory": str(result.directory)})
    else:
        from discreet.report import terminal

        terminal.show(terminal.run_table(result))
    return 0


def _watched(config: RunConfig, resuming: bool, as_json: bool) -> RunResult:
    from discreet import runs
    from discreet.report import terminal

    with terminal.training_bar(visible=not as_json and terminal.is_live()) as listener:
        return runs.train(config, on_progress=listener, resume=resuming)


def _interrupted(place: Path | None) -> None:
    from discreet import runs

    if place is not None and runs.RunFolder(place).run.is_file():
        line = f"Stopped and saved. Go on with: discreet resume {shlex.quote(str(place))}"
    else:
        line = "Stopped before the run began: nothing was charged."
    print(line, file=sys.stderr)
