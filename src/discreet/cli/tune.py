"""`discreet tune`: random search within one budget."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, final

import typer

from discreet.cli import flags as shared
from discreet.cli import recipes
from discreet.cli.flags import INTERRUPTED, JsonFlag, TaskFlags, emit, flag, given, required_out
from discreet.core import check
from discreet.core.files import check_directory
from discreet.runs.config import RunConfig
from discreet.runs.tuning.bill import TuneSettings
from discreet.runs.tuning.space import Space


@final
@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    """What a search takes besides."""

    epsilon: shared.EpsilonFlag = None
    method: shared.MethodFlag = None
    runs: Annotated[float | None, flag("Expected number of candidates; the true number is secret.", "Search")] = None
    runs_shape: Annotated[float | None, flag("Shape of its law: 0 logarithmic, 1 geometric.", "Search")] = None
    held_out: Annotated[
        float | None, flag("Share of the records that scores candidates, by a noisy count (default: 0.1).", "Search")
    ] = None
    score_on_test: Annotated[bool, flag("Score on the test records, which you declare public.", "Search")] = False
    not_before: Annotated[
        float | None, flag("Show nothing before this many seconds, so that the time tells less.", "Search")
    ] = None
    learning_rate: Annotated[float | None, flag("Step size on the noisy mean.", "Training")] = None
    momentum: Annotated[float | None, flag("As in torch.optim.SGD.", "Training")] = None
    average: Annotated[float | None, flag("Decay of the average of parameters; 0: no average.", "Training")] = None
    recipe_flags: recipes.Given = field(default_factory=dict)


def tune(
    task: TaskFlags,
    flags: TuneFlags,
    space: Annotated[
        list[str] | None,
        typer.Option(help="A setting and its values: learning_rate=0.1..10 or clip=0.1,1.", metavar="NAME=..."),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Search settings at random within one budget that also pays for the choice; rerun the command to resume."""
    settings = _settings(task, flags, space or [])
    from discreet.report import progress, terminal
    from discreet.runs.tuning.sweep import tune_with

    try:
        with progress.elapsed_bar(quiet=as_json) as listener:
            result = tune_with(settings, on_progress=listener)
    except KeyboardInterrupt:
        print("Stopped and saved. Rerun the command to resume.", file=sys.stderr)
        return INTERRUPTED
    if as_json:
        emit(result.to_json())
    else:
        terminal.show(terminal.tune_table(result))
    return 0


def _settings(task: TaskFlags, flags: TuneFlags, space: list[str]) -> TuneSettings:
    task.require(epsilon=flags.epsilon)
    method = recipes.method_called(flags.method or "dp-sgd")
    remedy = "choose a method with a certificate"
    check.require(method.certified, remedy, f"{method.name} ({method.guarantee})", remedy)
    remedy = "name what to search, e.g. --space learning_rate=0.1..10 --space clip=0.1,1"
    check.require(bool(space), "--space", "none", remedy)
    both = flags.score_on_test and flags.held_out is not None
    check.require(not both, "--held-out or --score-on-test", "both", "drop one of them")
    out: Path = required_out(task.out)
    check_directory(out)
    own = given(flags, leave_out=("recipe_flags", "runs", "runs_shape", "held_out", "score_on_test", "not_before"))
    parameters = recipes.arguments(method, flags.recipe_flags)
    settings = {"out": str(out), **task.settings(), **own, "epsilon": shared.required_epsilon(flags.epsilon)}
    config = RunConfig(**settings, parameters=tuple(parameters.items()))
    law = {"runs": flags.runs, "shape": flags.runs_shape, "not_before": flags.not_before}
    law["held_out"] = 0.0 if flags.score_on_test else flags.held_out
    chosen: dict[str, Any] = {name: value for name, value in law.items() if value is not None}
    return TuneSettings(config=config, space=Space.parse(space), **chosen)
