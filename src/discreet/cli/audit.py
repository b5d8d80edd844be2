"""`discreet audit`: attack methods or a run's recipe, and print certified, claimed and audited side by side."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.flags import FAILED, INTERRUPTED, JsonFlag, emit, flag
from discreet.core import check
from discreet.core.command import command_line
from discreet.core.files import check_file, write_json
from discreet.core.own_files import is_own, require_classes
from discreet.core.plain import plain
from discreet.runs.audit_rows import AuditRow, AuditVerdict, CanaryKind, read_audit
from discreet.runs.config import RunConfig

if TYPE_CHECKING:
    from discreet.auditing.planted import RunAudit


def audit(
    method: Annotated[str | None, flag("A method that `discreet methods` lists, or a paper's.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every method and every claim known to be false.")] = False,
    run: Annotated[Path | None, flag("A run directory: train its recipe again with canaries.")] = None,
    one_run: Annotated[bool, flag("With --method: canaries in one training on digits.")] = False,
    canary: Annotated[
        CanaryKind | None, flag("gradient (worst case), data (wrong label).", "Canaries in one run")
    ] = None,
    canaries: Annotated[int | None, flag("How many canaries (default: 1000).", "Canaries in one run")] = None,
    quick: Annotated[bool, flag("Fewer trials: minutes, and weaker lower bounds.")] = False,
    out: Annotated[Path | None, flag("A JSON file for the result; rerun the command to resume a table.")] = None,
    missing: Annotated[bool, flag("With --all: keep rows of FILE whose game and certificate are unchanged.")] = False,
    workers: Annotated[
        int | None, flag("With --all: how many rows are played at once (default: one for each core, at most 4).")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Attack a method: a lower bound on epsilon (99.9 % confidence), beside the certificate and the claim."""
    given = [name for name, value in (("--method", method), ("--all", everything), ("--run", run)) if value]
    remedy = "name a method, e.g. --method dp-sgd, audit --all, or a directory: --run DIR"
    check.require(len(given) == 1, "one of --method, --all and --run", " and ".join(given) or "neither", remedy)
    check.require(not one_run or method is not None, "--one-run with --method", given[0], "name a method, e.g. dp-sgd")
    planted = one_run or run is not None
    is_valid, expected = planted or (canary or canaries) is None, "--canary and --canaries with --run or --one-run"
    check.require(is_valid, expected, "a table of many small runs", "drop these flags")
    check.require(everything or workers is None, "--workers with --all", given[0], "drop it: rows play in turn")
    is_valid, expected = not missing or (everything and out is not None and out.is_file()), "--missing with --all"
    check.require(is_valid, f"{expected} and --out FILE, an earlier table", "no table", "drop --missing")
    if out is not None:
        check_file(out)
    older = read_audit(out) if missing and out is not None else ()
    try:
        if planted:
            return _canaries(_config(method, run, quick), canary, canaries, out, as_json)
        return _table(method, quick, workers if everything else 1, out, older, as_json)
    except KeyboardInterrupt:
        kept = "Nothing was kept" if planted or out is None else f"Finished rows are kept in {_part(out)}"
        print(f"Stopped. {kept}: run the command again.", file=sys.stderr)
        return INTERRUPTED


def _table(
    method: str | None, quick: bool, workers: int | None, out: Path | None, older: tuple[AuditRow, ...], as_json: bool
) -> int:
    from discreet.auditing import truth
    from discreet.report import progress, terminal

    effort = truth.QUICK if quick else truth.FULL
    planned = truth.attacks(effort, method)
    kept = None if out is None else truth.KeptRows(_part(out))
    with progress.audit_bar(len(planned), quiet=as_json) as listener:
        found = truth.truth_table(planned, effort=effort, listener=listener, workers=workers, kept=kept, older=older)
    _answer(truth.document(found, command=command_line()), out, as_json)
    if kept is not None:
        kept.discard()
    if not as_json:
        terminal.show(terminal.truth_table([_in_words(row) for row in found]))
    return FAILED if any(row.verdict is AuditVerdict.CERTIFICATE_BROKEN for row in found) else 0


def _part(out: Path) -> Path:
    """Where the rows of a table lie until it is whole."""
    return out.with_name(out.name + ".part")


def _in_words(row: AuditRow) -> AuditRow:
    """The game beside the method's name: the last column is for numbers."""
    game = row.parameters.get("game")
    numbers = {name: value for name, value in row.parameters.items() if name != "game"}
    label = row.method if game is None else f"{row.method}: {game}"
    return dataclasses.replace(row, method=label, parameters=MappingProxyType(numbers))


def _canaries(config: RunConfig, kind: CanaryKind | None, count: int | None, out: Path | None, as_json: bool) -> int:
    from discreet.auditing.planted import CANARIES, audit_training
    from discreet.report import progress

    is_public, got = config.public_data or not is_own(config.data), f"{config.data}, not declared public"
    remedy = "an audit trains on the records again, and no ledger pays for that: audit the recipe on a benchmark"
    check.require(is_public, "a run on public records", got, remedy)
    require_classes(config.task, "an audit of a run")
    label = f"{config.method}, canaries"
    with progress.audit_bar(1, quiet=as_json) as listener:
        canaries, on_step = CANARIES if count is None else count, functools.partial(listener, label)
        found = audit_training(config, kind=kind, canaries=canaries, on_step=on_step)
    _answer({**found.to_json(), "command": command_line()}, out, as_json)
    if not as_json:
        print(told(found))
    return FAILED if found.audited > found.certified else 0


def _config(method: str | None, run: Path | None, quick: bool) -> RunConfig:
    """The run's, or the method on digits with noise 1.5: any recipe takes it, also one without a guarantee."""
    from discreet.runs import load_config

    if run is not None:
        return load_config(run)
    steps, model = (60, "softmax") if quick else (None, None)
    return RunConfig(delta=1e-5, out="", data="digits", method=str(method), noise=1.5, steps=steps, model=model)


def told(found: RunAudit) -> str:
    certified = "nothing" if math.isinf(found.certified) else f"epsilon {found.certified:.3g}"
    lines = [
        f"{found.method}: {found.canaries} {found.kind.value} canaries in one run of {found.steps} steps",
        f"certified: {certified} at delta {found.delta:g}",
    ]
    if found.claimed is not None:
        lines.append(f"claimed:   epsilon {found.claimed:.3g}")
    lines.append(
        f"audited:   epsilon of at least {math.floor(found.audited * 1000) / 1000:.3f} (confidence "
        f"{found.confidence:g}; {found.guesses.correct} of {found.guesses.made} guesses were right)"
    )
    if found.tightness is not None:
        lines.append(
            f"tightness: the attack demonstrates {100 * found.tightness:.0f} % of the certificate; the rest is "
            "its weakness or the certificate's slack"
        )
    if found.audited > found.certified:
        lines.append("CERTIFICATE BROKEN: please report this; it is a fault of the library")
    return "\n".join(lines)


def _answer(answer: dict[str, object], out: Path | None, as_json: bool) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, plain(answer))
    if as_json:
        emit(answer)
