"""`discreet train` and `discreet resume`: one private run from the command line."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, final

import typer

from discreet import runs
from discreet.cli import flags as shared
from discreet.cli import recipes
from discreet.cli.flags import INTERRUPTED, JsonFlag, TaskFlags, emit, flag, given, required_out
from discreet.core import check
from discreet.core.files import check_directory
from discreet.core.launch import process_number
from discreet.runs.config import RunConfig
from discreet.runs.folder import RunFolder, resume_line

USUAL_METHOD: Final = "dp-sgd"


@final
@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """What one run takes besides; a flag that is not given has the default of the data."""

    method: shared.MethodFlag = None
    accept_uncertified: Annotated[bool, flag("Train with a method for which nothing is proven.", rare=True)] = False
    epsilon: shared.EpsilonFlag = None
    noise: shared.NoiseFlag = None
    calibrate_to_claim: shared.ToClaimFlag = False
    relation: shared.RelationFlag = None
    sampling: shared.SamplingFlag = None
    cap: shared.CapFlag = None
    optimizer: Annotated[Literal["sgd", "adam"] | None, flag("Takes the noisy gradient.", "Training", rare=True)] = None
    learning_rate: Annotated[float | None, flag("Step size on the noisy mean.", "Training")] = None
    momentum: Annotated[float | None, flag("As in torch.optim.SGD.", "Training", rare=True)] = None
    weight_decay: Annotated[float | None, flag("As in torch.optim.", "Training", rare=True)] = None
    schedule: Annotated[
        Literal["constant", "linear", "cosine"] | None, flag("How the learning rate falls.", "Training", rare=True)
    ] = None
    average: Annotated[float | None, flag("Decay of the parameters' average; 0: none.", "Training", rare=True)] = None
    keep_best: Annotated[
        bool, flag("Publish the best checkpoint by the test records, declared public.", "Training", rare=True)
    ] = False
    checkpoint_every: Annotated[int | None, flag("Steps between checkpoints.", "Training", rare=True)] = None
    fixed_rows: Annotated[
        int | None, flag("Rows of every forward pass: certify how gradients are rounded, too.", "Guarantee", rare=True)
    ] = None
    device: Annotated[str | None, flag("As torch names it, e.g. cpu.", "Training")] = None
    seed: Annotated[int | None, flag("Repeatable, but NOT private.", "Training")] = None
    recipe_flags: recipes.Given = field(default_factory=dict)


def train(task: TaskFlags, flags: TrainFlags, as_json: JsonFlag = False) -> int:
    """Train privately and leave a run directory: model, ledger, metrics and a privacy statement."""
    return _run(lambda: _config(task, flags), False, as_json)


def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    as_json: JsonFlag = False,
) -> int:
    """Resume a run after a crash or Ctrl-C; steps that were charged are not run again."""

    return _run(lambda: runs.load_config(directory), True, as_json)


def _config(task: TaskFlags, flags: TrainFlags) -> RunConfig:
    budget = flags.epsilon if flags.noise is None else flags.noise
    task.require(epsilon=budget)
    method = recipes.method_called(USUAL_METHOD if flags.method is None else flags.method)
    accepted, got = flags.accept_uncertified, f"{method.name} ({method.guarantee})"
    remedy = "choose another, or give --accept-uncertified: the result will say that nothing is proven"
    check.require(method.certified or accepted, "a method with a certificate", got, remedy)
    proven, got = not flags.calibrate_to_claim, "--calibrate-to-claim"
    remedy = "give --accept-uncertified too: the result shows the certificate of that noise beside the claim"
    check.require(proven or accepted, "noise that is proven to be enough", got, remedy)
    parameters = recipes.arguments(method, flags.recipe_flags)
    out = required_out(task.out)
    check_directory(out)
    own = given(flags, leave_out=("recipe_flags", "accept_uncertified", "method"))
    settings = {"out": str(out), "method": method.name, **task.settings(), **own}
    for name in ("batch", "micro_batch", "fixed_rows", "epochs", "steps", "eval_every", "checkpoint_every"):
        if name in settings:
            check.count("leave the flag out for the usual value", **{name: settings[name]})
    return RunConfig(**settings, parameters=tuple(parameters.items()))


def _run(config: Callable[[], RunConfig], resuming: bool, as_json: bool) -> int:
    place: Path | None = None
    try:
        settings = config()
        place = Path(settings.out)
        from discreet.report import progress, terminal

        quiet = as_json or process_number() > 0  # under torchrun the first process speaks
        with progress.training_bar(quiet=quiet) as listener:
            start = None if quiet else progress.announce
            result = runs.train(settings, on_start=start, on_progress=listener, resume=resuming)
    except KeyboardInterrupt:
        told = "Stopped before the run began: nothing was charged."
        if place is not None and RunFolder(place).run.is_file():
            told = f"Stopped and saved. Resume with: {resume_line(place)}"
        print(told, file=sys.stderr)
        return INTERRUPTED
    if process_number() > 0:
        return 0
    if as_json:
        emit({**result.to_json(), "directory": str(result.directory)})
    else:
        terminal.show(terminal.run_table(result), *(f"Warning: {warning}" for warning in result.spent.warnings))
    return 0
