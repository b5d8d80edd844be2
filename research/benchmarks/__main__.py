"""`python -m research.benchmarks`: step time, memory, methods and scaling, against plain SGD and other libraries."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli import entry
from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core import check
from discreet.core.files import check_file
from research.command import typed

if TYPE_CHECKING:
    from research.benchmarks.rows import Row

_MODULE = "research.benchmarks"
_METHOD_MODELS = ("mlp", "cnn-d2p2")


def bench(
    models: Annotated[str | None, flag("Comma-separated models (default: all).", "What")] = None,
    rows: Annotated[str | None, flag("Comma-separated rows (default: all).", "What")] = None,
    time: Annotated[bool, typer.Option(help="Time every row.", rich_help_panel="What")] = True,
    memory: Annotated[bool, flag("Also measure peak memory, each row in its own process.", "What")] = False,
    methods: Annotated[bool, flag("Also time every method against DP-SGD.", "What")] = False,
    scaling: Annotated[bool, flag("Also time against batch, parameters and sequence length.", "What")] = False,
    repeats: Annotated[int, flag("Rounds after warm-up (default: 15).", "How")] = 15,
    threads: Annotated[int | None, flag("Threads of PyTorch (default: PyTorch's choice).", "How")] = None,
    patience: Annotated[float, flag("Most seconds for one peer (default: 60).", "How")] = 60.0,
    out: Annotated[Path | None, flag("A JSON file to write or to update.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Time a private step against plain SGD and against other libraries."""
    check.count("rounds after warm-up", repeats=repeats)
    check.positive("the most seconds for one peer", patience=patience)
    if out is not None:
        check_file(out)
    import torch

    from research.benchmarks import table
    from research.benchmarks.models import MODELS
    from research.benchmarks.peers import ROWS

    if threads is not None:
        check.count("threads of PyTorch", threads=threads)
        torch.set_num_threads(threads)
    chosen = _chosen("models", models, list(MODELS))
    named = {row.name: row for row in ROWS}
    picked = [named[name] for name in _chosen("rows", rows, list(named))]
    command = typed(_MODULE)
    answer: dict[str, Any] = {
        "versions": table.versions(),
        "machine": table.machine(),
        "threads": torch.get_num_threads(),
        "models": {name: {"about": MODELS[name].about, "rows": {}} for name in chosen},
    }
    old = {} if out is None else _kept(out)
    if not time:  # machine and versions are those of the times
        answer = {name: value for name, value in answer.items() if name == "models" or name not in old}
    if time:
        _times(answer["models"], picked, repeats, patience, quiet=as_json)
        _sign(answer["models"], "timed_by", command)
    if memory:
        _peaks(answer["models"], picked, torch.get_num_threads(), patience, quiet=as_json)
        _sign(answer["models"], "memory_by", command)
    if methods:
        _methods(answer, repeats, patience, quiet=as_json)
        answer["methods_by"] = command
    if scaling:
        _scaling(answer, repeats, out, quiet=as_json)
        answer["scaling_by"] = command
    whole = table.merged(old, answer)
    for name, own in whole["models"].items():
        own["verdict"] = table.verdict(name, own["rows"])
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(whole, indent=2) + "\n")
    _show({name: whole["models"][name] for name in chosen}, whole if as_json else None)
    return 0


def _kept(out: Path) -> dict[str, Any]:
    """What a file to be updated holds."""
    try:
        kept: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    except ValueError as error:
        check.refuse(f"--out {out} to hold JSON of an earlier benchmark", error, "name another file")
    return kept


def _show(models: dict[str, Any], whole: dict[str, Any] | None) -> None:
    if whole is not None:
        emit(whole)
        return
    from discreet.report.terminal import show
    from research.benchmarks import table

    show(*table.for_people(models))


def _times(models: dict[str, Any], rows: Sequence[Row], repeats: int, patience: float, *, quiet: bool) -> None:
    from research.benchmarks.table import rows_of
    from research.benchmarks.timing import measure

    for name, own in models.items():
        _say(f"timing {name}", quiet)
        measured = measure(name, rows, repeats=repeats, patience=patience)
        own |= {"batch": measured.batch, "parameters": measured.parameters, "rows": rows_of(measured)}


def _peaks(models: dict[str, Any], rows: Sequence[Row], threads: int, patience: float, *, quiet: bool) -> None:
    from research.benchmarks.peak import measure_peak

    for name, own in models.items():
        _say(f"memory of {name}", quiet)
        for row in rows:
            peak = measure_peak(name, row.name, threads=threads, seconds=5 * patience)
            measured: dict[str, Any] = {"absent": peak}
            if not isinstance(peak, str):
                measured = {"peak_mb": round(peak[0] / 1e6, 1), "first_step_mb": round(peak[1] / 1e6, 1)}
            own["rows"].setdefault(row.name, {}).update(measured)


def _sign(models: dict[str, Any], key: str, command: str) -> None:
    """Note the command that measured each row, because a later call may update some rows only."""
    for own in models.values():
        for row in own["rows"].values():
            row[key] = command


def _methods(answer: dict[str, Any], repeats: int, patience: float, *, quiet: bool) -> None:
    from research.benchmarks.methods import compare_methods

    answer["methods"] = {}
    for name in _METHOD_MODELS:
        _say(f"methods on {name}", quiet)
        answer["methods"][name] = compare_methods(name, repeats=repeats, patience=patience)


def _scaling(answer: dict[str, Any], repeats: int, out: Path | None, *, quiet: bool) -> None:
    from research.benchmarks.scaling import AXES, draw, measure_axis

    answer["scaling"] = {}
    for name, axis in AXES.items():
        _say(f"scaling with {name}", quiet)
        answer["scaling"][name] = measure_axis(axis, repeats=repeats)
    if out is not None:
        draw(answer["scaling"], out.with_name("scaling.svg"))


def _chosen(what: str, given: str | None, known: list[str]) -> list[str]:
    if given is None:
        return known
    names = [name.strip() for name in given.split(",") if name.strip()]
    wrong = [name for name in names if name not in known]
    check.require(
        bool(names) and not wrong,
        f"{what} of {', '.join(known)}",
        ", ".join(wrong) or "none",
        f"leave --{what} out for all",
    )
    return names


def _say(message: str, quiet: bool) -> None:
    if not quiet:
        print(message, file=sys.stderr, flush=True)


def main(args: Sequence[str]) -> int:
    """Run the command; the exit codes are those of `discreet`."""
    return entry.main(["bench", *args], commands=(bench,), program=f"python -m {_MODULE}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
