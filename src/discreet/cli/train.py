"""`discreet train` and `discreet resume`: one private run from the command line."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from discreet.cli import recipes
from discreet.cli.flags import (
    AcceptDeltaFlag,
    CapFlag,
    ClassesFlag,
    DataDirFlag,
    DataFlag,
    DeltaFlag,
    DownloadFlag,
    EpochsFlag,
    EpsilonFlag,
    JsonFlag,
    MethodFlag,
    MicroBatchFlag,
    ModelFlag,
    NoiseFlag,
    OutFlag,
    PublicDataFlag,
    RecordsFlag,
    RelationFlag,
    SamplingFlag,
    StepsFlag,
    ToClaimFlag,
    WholeBatchFlag,
    flag,
    required_delta,
    required_out,
)
from discreet.cli.output import INTERRUPTED, emit
from discreet.core import check
from discreet.core.files import check_directory

if TYPE_CHECKING:
    from discreet.runs import RunConfig, RunResult


class Optimizer(enum.Enum):
    """The optimizers, as flags name them."""

    SGD = "sgd"
    ADAM = "adam"


@final
@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Everything that names a run; what is not given is the default for the data."""

    data: DataFlag = None
    out: OutFlag = None
    model: ModelFlag = None
    method: MethodFlag = None
    accept_uncertified: Annotated[bool, flag("Train with a method for which nothing is proven.")] = False
    epsilon: EpsilonFlag = None
    noise: NoiseFlag = None
    delta: DeltaFlag = None
    accept_delta: AcceptDeltaFlag = False
    calibrate_to_claim: ToClaimFlag = False
    batch: WholeBatchFlag = None
    epochs: EpochsFlag = None
    steps: StepsFlag = None
    relation: RelationFlag = None
    sampling: SamplingFlag = None
    cap: CapFlag = None
    data_dir: DataDirFlag = None
    download: DownloadFlag = False
    classes: ClassesFlag = None
    records: RecordsFlag = None
    public_data: PublicDataFlag = False
    optimizer: Annotated[Optimizer | None, flag("Takes the noisy gradient.", "Training")] = None
    learning_rate: Annotated[float | None, flag("Step size on the noisy mean.", "Training")] = None
    momentum: Annotated[float | None, flag("As in torch.optim.SGD.", "Training")] = None
    weight_decay: Annotated[float | None, flag("As in torch.optim.", "Training")] = None
    average: Annotated[float | None, flag("Decay of averaged iterates; 0: none.", "Training")] = None
    micro_batch: MicroBatchFlag = None
    eval_every: Annotated[int | None, flag("Steps between evaluations.", "Training")] = None
    checkpoint_every: Annotated[int | None, flag("Steps between checkpoints.", "Training")] = None
    device: Annotated[str | None, flag("As torch names it, e.g. cpu.", "Training")] = None
    seed: Annotated[int | None, flag("To repeat a run, which is then NOT private.", "Training")] = None
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
    check.require(
        flags.accept_uncertified or not flags.calibrate_to_claim,
        "noise that is proven to be enough",
        "--calibrate-to-claim",
        "give --accept-uncertified too: the certificate of that noise will stand beside the claim",
    )
    parameters = recipes.arguments(method, flags.recipe_flags)
    check_directory(required_out(flags.out))
    required_delta(flags.delta)
    for name in ("batch", "micro_batch", "epochs", "steps", "eval_every", "checkpoint_every"):
        if (value := getattr(flags, name)) is not None:
            check.count("leave the flag out for the usual value", **{name: value})

    from discreet import runs

    skipped = ("recipe_flags", "accept_uncertified", "accept_delta")
    given = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name not in skipped}
    settings = {name: _plain(value) for name, value in given.items() if value is not None}
    return runs.RunConfig(**settings, parameters=tuple(parameters.items()), accept_large_delta=flags.accept_delta)


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

        warnings = [f"Warning: {warning}" for warning in result.spent.warnings]
        terminal.show(terminal.run_table(result), *warnings)
    return 0


def _watched(config: RunConfig, resuming: bool, as_json: bool) -> RunResult:
    from discreet import runs
    from discreet.report import terminal

    with terminal.training_bar(visible=not as_json and terminal.is_live()) as listener:
        return runs.train(config, on_progress=listener, resume=resuming)


def _interrupted(place: Path | None) -> None:
    from discreet import runs
    from discreet.runs.folder import resume_line

    if place is not None and runs.RunFolder(place).run.is_file():
        line = f"Stopped and saved. Go on with: {resume_line(place)}"
    else:
        line = "Stopped before the run began: nothing was charged."
    print(line, file=sys.stderr)
