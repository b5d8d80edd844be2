"""`discreet compare`: certified methods on one dataset at one budget, or at several."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, final

from discreet.cli import flags as shared
from discreet.cli import recipes
from discreet.cli.flags import FAILED, INTERRUPTED, JsonFlag, TaskFlags, emit, flag, given, required
from discreet.core import check
from discreet.core.command import command_line
from discreet.core.errors import RunStopped
from discreet.core.files import check_directory
from discreet.runs.comparison import compare as comparison
from discreet.runs.folder import RunFolder
from discreet.runs.paying import is_paid


@final
@dataclass(frozen=True, kw_only=True)
class CompareFlags:
    """What a comparison takes besides the flags of a run."""

    epsilon: Annotated[str | None, flag("Certified epsilon of each run, e.g. 3, or several, e.g. 1,3,8.", "Budget")] = (
        None
    )
    main: Annotated[float | None, flag("The budget of the ranking, if there are several.", "Budget", rare=True)] = None
    methods: Annotated[str | None, flag("Methods, as a list a,b,c (default: every certified one).")] = None
    repeats: Annotated[int | None, flag("Runs of each method (default: 3).")] = None
    other_repeats: Annotated[int | None, flag("Runs of each method at the other budgets.", rare=True)] = None
    tune_on: Annotated[str | None, flag("First search learning rate and clip on this public data.")] = None
    trials: Annotated[int | None, flag("Trials of each method in that search (default: 6).", rare=True)] = None
    tuned_in: Annotated[
        Path | None, flag("Take the settings that an earlier search chose, from its report.json.", rare=True)
    ] = None
    release: Annotated[
        Literal["all", "best"] | None,
        flag("best: show only the best of --methods, within one --epsilon for the whole search (see tune)."),
    ] = None
    truth: Annotated[Path | None, flag("A table of `discreet audit --out FILE` for the page.", rare=True)] = None
    finished_only: Annotated[
        bool | None, flag("Train nothing: write the page of the runs that are finished.", rare=True)
    ] = None
    workers: Annotated[int | None, flag("Runs that are trained at once.", rare=True)] = None
    seeds: Annotated[str | None, flag("Seeds as a list, NOT private; none for your own file.")] = None


def compare(task: TaskFlags, flags: CompareFlags, as_json: JsonFlag = False) -> int:
    """Train every certified method at equal budgets, rank them, and write one page; rerun the command to resume."""
    from discreet.report import page, progress, terminal

    if flags.release == "best":
        return _release_best(task, flags, as_json)
    settings = _settings(task, flags)
    check_directory(settings.out)
    charged = _charges(settings.out)
    try:
        with progress.comparison_bar(quiet=as_json) as listener:
            found = comparison.compare(settings, listener)
        written = page.write(found, settings.out)
    except KeyboardInterrupt:
        print("Stopped and saved. Rerun the command to resume.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        spent = _charges(settings.out)
        paid = settings.budget is not None and is_paid(settings.budget, settings.out)
        if spent > charged or paid:
            raise RunStopped(spent or 1, settings.out, settings.command) from error
        raise
    if as_json:
        emit({**found.to_json(), "page": str(written.page), "file": str(written.data)})
    else:
        terminal.show(terminal.comparison_table(found), f"The page: {written.page}")
    return 0 if found.finished else FAILED


def _release_best(task: TaskFlags, flags: CompareFlags, as_json: bool) -> int:
    """A search over methods: the number of runs is secret, and the choice is paid for."""
    from discreet.cli.tune import TuneFlags, tune

    others = [f"--{name.replace('_', '-')}" for name in given(flags, leave_out=("epsilon", "methods", "release"))]
    remedy = "drop it: with --release best one run is shown, and nothing about the others"
    check.require(not others, "--epsilon and --methods with --release best", " and ".join(others), remedy)
    epsilon, _ = _budgets(flags)
    names = recipes.methods_called(required("methods", flags.methods, "name the methods to choose from"))
    tuned = TuneFlags(epsilon=epsilon, runs=float(max(2, len(names))))
    return tune(task, tuned, [f"method={','.join(names)}"], as_json)


def _charges(out: Path) -> int:
    return sum(RunFolder(ledger.parent).charges() for ledger in out.rglob("ledger.jsonl"))


def _settings(task: TaskFlags, flags: CompareFlags) -> comparison.CompareSettings:
    task.require(epsilon=flags.epsilon)
    epsilon, others = _budgets(flags)
    settings = shared.given(flags, leave_out=("epsilon", "main", "methods", "seeds", "truth", "tuned_in", "release"))
    data = task.data or "digits"
    if flags.methods is not None:
        settings["rows"] = comparison.candidates(data, recipes.methods_called(flags.methods))
    return comparison.CompareSettings(
        **settings,
        out=shared.required_out(task.out),
        **task.settings(),
        epsilon=epsilon,
        others=others,
        truth=flags.truth,
        tuned_in=flags.tuned_in,
        seeds=_seeds(flags, data),
        command=command_line(),
    )


def _budgets(flags: CompareFlags) -> tuple[float, tuple[float, ...]]:
    remedy = "give the budget, e.g. --epsilon 3, or several, e.g. --epsilon 1,3,8"
    text = shared.required("epsilon", flags.epsilon, remedy)
    budgets = shared.listed("epsilon", text, float, "a list of numbers", "1,3,8")
    for budget in budgets:
        shared.required_epsilon(budget)
    main = sorted(budgets)[(len(budgets) - 1) // 2] if flags.main is None else flags.main
    check.require(main in budgets, f"--main to be one of {flags.epsilon}", f"{main:g}", "name one of these budgets")
    given = [name for name, value in (("--main", flags.main), ("--other-repeats", flags.other_repeats)) if value]
    check.require(len(budgets) > 1 or not given, "several budgets with " + " and ".join(given), "one", "drop the flag")
    return main, tuple(budget for index, budget in enumerate(budgets) if index != budgets.index(main))


def _seeds(flags: CompareFlags, data: str) -> tuple[int, ...] | None:
    if flags.seeds is None:
        return comparison.default_seeds(data, 3 if flags.repeats is None else flags.repeats)
    if flags.seeds.strip() == "none":
        return None
    check.require(flags.repeats is None, "--seeds or --repeats", "--seeds and --repeats", "drop --repeats")
    return shared.listed("seeds", flags.seeds, int, "a list of whole numbers or none", "0,1,2")
