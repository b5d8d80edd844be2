"""`discreet compare`: certified methods on one dataset at one budget, or at several."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

from discreet.cli import recipes
from discreet.cli.flags import (
    AcceptDeltaFlag,
    ClassesFlag,
    DataDirFlag,
    DataFlag,
    DeltaFlag,
    DownloadFlag,
    EpochsFlag,
    JsonFlag,
    MicroBatchFlag,
    ModelFlag,
    OutFlag,
    PublicDataFlag,
    RecordsFlag,
    StepsFlag,
    WholeBatchFlag,
    flag,
    required_delta,
    required_epsilon,
    required_out,
)
from discreet.cli.output import FAILED, INTERRUPTED, emit
from discreet.core import check
from discreet.core.command import command_line
from discreet.core.errors import RunStopped
from discreet.core.files import check_directory

if TYPE_CHECKING:
    from discreet.runs.comparison import CompareSettings, Comparison


@final
@dataclass(frozen=True, kw_only=True)
class CompareFlags:
    """Everything that names a comparison; what is not given is the default for the data."""

    data: DataFlag = None
    out: OutFlag = None
    epsilon: Annotated[
        str | None, flag("Certified epsilon of each run, e.g. 3, or several budgets, e.g. 1,3,8.", "Budget")
    ] = None
    main: Annotated[
        float | None, flag("The budget of the ranking, of several (default: the middle one).", "Budget")
    ] = None
    delta: DeltaFlag = None
    accept_delta: AcceptDeltaFlag = False
    methods: Annotated[str | None, flag("Methods, as a list a,b,c (default: every certified one).")] = None
    repeats: Annotated[int | None, flag("Runs of each method (default: 3).")] = None
    other_repeats: Annotated[
        int | None, flag("Runs of each method at budgets other than --main (default: as many).")
    ] = None
    tune_on: Annotated[
        str | None,
        flag("Search learning rate and clip first, on this data, which you declare public: digits, own.npz."),
    ] = None
    truth: Annotated[Path | None, flag("A table of `discreet audit --out FILE`, to show on the page.")] = None
    seeds: Annotated[
        str | None,
        flag(
            "Seeds, as a list 0,1,2, which can be repeated but are NOT private; none: the operating system's "
            "randomness (default: 0,1,2 for published benchmarks, none for your own file)."
        ),
    ] = None
    model: ModelFlag = None
    batch: WholeBatchFlag = None
    epochs: EpochsFlag = None
    steps: StepsFlag = None
    micro_batch: MicroBatchFlag = None
    eval_every: Annotated[int | None, flag("Steps between evaluations (default: about 20 in a run).")] = None
    data_dir: DataDirFlag = None
    download: DownloadFlag = False
    classes: ClassesFlag = None
    records: RecordsFlag = None
    public_data: PublicDataFlag = False


def compare(flags: CompareFlags, as_json: JsonFlag = False) -> int:
    """Train every certified method at equal budgets, rank them, and write one page; the same command goes on."""
    from discreet import report
    from discreet.report import terminal

    settings = _settings(flags)
    check_directory(settings.out)
    charged = _charges(settings.out)
    try:
        found = _watched(settings, as_json)
        written = report.write(found, settings.out)
    except KeyboardInterrupt:
        print("Stopped and saved. The same command goes on from here.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        spent = _charges(settings.out)
        if spent > charged:
            raise RunStopped(spent, settings.out, settings.command) from error
        raise
    if as_json:
        emit({**found.to_json(), "page": str(written.page), "file": str(written.data)})
    else:
        terminal.show(terminal.comparison_table(found), f"The page: {written.page}")
    return 0 if found.finished else FAILED


def _charges(out: Path) -> int:
    """The charges of all runs below a directory."""
    from discreet.runs import RunFolder

    return sum(RunFolder(ledger.parent).charges() for ledger in out.rglob("ledger.jsonl"))


def _settings(flags: CompareFlags) -> CompareSettings:
    from discreet.runs import comparison

    listed = ("methods", "seeds", "out", "epsilon", "main", "delta", "accept_delta", "data_dir")
    epsilon, others = _budgets(flags)
    given = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name not in listed}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if flags.methods is not None:
        names = [recipes.method_called(name.strip()).name for name in flags.methods.split(",")]
        settings["rows"] = comparison.candidates(flags.data or "digits", names)
    return comparison.CompareSettings(
        **settings,
        out=required_out(flags.out),
        epsilon=epsilon,
        others=others,
        delta=required_delta(flags.delta),
        accept_large_delta=flags.accept_delta,
        data_dir=None if flags.data_dir is None else str(flags.data_dir),
        seeds=_seeds(flags),
        command=command_line(),
    )


def _budgets(flags: CompareFlags) -> tuple[float, tuple[float, ...]]:
    """The budget of the ranking, and the others."""
    if flags.epsilon is None:
        check.refuse("--epsilon", "none", "give the budget, e.g. --epsilon 3, or several, e.g. --epsilon 1,3,8")
    try:
        budgets = [required_epsilon(float(part)) for part in flags.epsilon.split(",")]
    except ValueError as error:
        if isinstance(error, check.Refused):
            raise
        check.refuse("--epsilon to be a list of numbers", repr(flags.epsilon), "e.g. --epsilon 1,3,8")
    main = sorted(budgets)[(len(budgets) - 1) // 2] if flags.main is None else flags.main
    check.require(
        main in budgets, f"--main to be one of {flags.epsilon}", f"{main:g}", "name one of --epsilon's budgets"
    )
    single = len(budgets) == 1
    given = [name for name, value in (("--main", flags.main), ("--other-repeats", flags.other_repeats)) if value]
    check.require(not (single and given), "several budgets with " + " and ".join(given), "one", "drop the flag")
    return main, tuple(budget for index, budget in enumerate(budgets) if index != budgets.index(main))


def _seeds(flags: CompareFlags) -> tuple[int, ...] | None:
    from discreet.runs import comparison

    if flags.seeds is None:
        return comparison.default_seeds(flags.data or "digits", 3 if flags.repeats is None else flags.repeats)
    if flags.seeds.strip() == "none":
        return None
    check.require(
        flags.repeats is None, "--seeds or --repeats", "--seeds and --repeats", "one run for each seed: drop --repeats"
    )
    try:
        return tuple(int(seed) for seed in flags.seeds.split(","))
    except ValueError:
        check.refuse("--seeds to be a list of whole numbers or none", repr(flags.seeds), "e.g. --seeds 0,1,2")


def _watched(settings: CompareSettings, as_json: bool) -> Comparison:
    from discreet.report import terminal
    from discreet.runs import comparison

    with terminal.comparison_bar(visible=not as_json and terminal.is_live()) as listener:
        return comparison.compare(settings, listener)
