"""`python -m research.reproductions`: reproduce the papers' tables and figures, and write the page of results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli import entry
from discreet.cli.flags import INTERRUPTED, DataDirFlag, JsonFlag, emit, flag
from discreet.core import check
from discreet.core.files import check_directory, check_file
from research.command import typed

if TYPE_CHECKING:
    from discreet.report.charts import Chart
    from research.reproductions import Experiment, Record
    from research.reproductions.experiment import Figure

_MODULE = "research.reproductions"


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Names that --list shows.", show_default=False)] = None,
    listing: Annotated[bool, typer.Option("--list", help="List all experiments with time and status.")] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Write the page of all results.")] = False,
    page: Annotated[Path, flag("The page to write (default: docs/reproductions.md).")] = Path("docs/reproductions.md"),
    quick: Annotated[bool, flag("Fewer epochs and one seed: minutes instead of hours.")] = False,
    seeds: Annotated[str | None, flag("Comma-separated seeds (default: 0,1,2; quick: 0).")] = None,
    out: Annotated[Path, flag("Folder of results (default: results).")] = Path("results"),
    runs: Annotated[Path, flag("Folder of finished runs (default: runs/reproduce).")] = Path("runs/reproduce"),
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> int:
    """Reproduce tables and figures of the papers; rerun an interrupted command to resume."""
    check.require(
        bool(names) or listing or docs,
        "the name of an experiment, --list or --docs",
        "none of them",
        f"list the experiments with `python -m {_MODULE} --list`",
    )

    from research.reproductions import Bench

    chosen = _chosen(names or [])
    if chosen:
        check_directory(out)
        check_directory(runs)
    if docs:
        check_file(page)
    written: list[dict[str, Any]] = []
    for experiment in chosen:
        bench = Bench(
            quick=quick,
            seeds=_seeds(seeds, quick),
            folder=runs,
            data_dir=None if data_dir is None else str(data_dir),
            listener=None if as_json else lambda message: print(message, file=sys.stderr, flush=True),
        )
        try:
            record = _perform(experiment, bench, out)
        except KeyboardInterrupt:
            print("Stopped and saved. Rerun the command to resume.", file=sys.stderr)
            return INTERRUPTED
        written.append(record.to_json())
        if not as_json:
            _show(experiment, record)
    if docs:
        _write_page(page, out)
    if as_json:
        emit({"experiments": _listed(out)} if listing else {"records": written})
    elif listing:
        _show_list(out)
    return 0


def _chosen(names: list[str]) -> list[Experiment]:
    from research.reproductions import EXPERIMENTS

    for name in names:
        check.require(
            name in EXPERIMENTS,
            f"an experiment that `python -m {_MODULE} --list` shows",
            repr(name),
            f"one of {', '.join(EXPERIMENTS)}",
        )
    return [EXPERIMENTS[name] for name in names]


def _seeds(text: str | None, quick: bool) -> tuple[int, ...]:
    if text is None:
        return (0,) if quick else (0, 1, 2)
    try:
        seeds = tuple(int(seed) for seed in text.split(","))
    except ValueError:
        check.refuse("--seeds to be a list of whole numbers", repr(text), "e.g. --seeds 0,1,2")
    check.require(
        len(set(seeds)) == len(seeds) and min(seeds) >= 0,
        "different seeds, none negative",
        repr(text),
        "e.g. --seeds 0,1,2",
    )
    return seeds


def _perform(experiment: Experiment, bench: Any, out: Path) -> Record:
    from discreet.report import charts
    from research.reproductions import perform, results

    record = perform(experiment, bench, command=typed(_MODULE))
    results.write(record, out)
    for figure in record.outcome.figures:
        paths = [results.folder_of(out) / results.figure_path(record, figure, end) for end in ("svg", "png")]
        charts.save(_chart(figure), *paths, titled=True)
    return record


def _chart(figure: Figure) -> Chart:
    from discreet.report import charts

    lines = tuple(
        charts.Series.exact(curve.name, style, list(zip(curve.x, curve.y, strict=True)))
        for style, curve in enumerate(figure.curves)
    )
    values = charts.means(lines) or [0.0]
    margin = 0.05 * (max(values) - min(values)) or 0.05
    return charts.Chart(
        key=figure.name,
        title=figure.title,
        x_label=figure.x_label,
        x_short="",
        y_label=figure.y_label,
        series=lines,
        y_range=charts.above_zero(lines) if figure.log_y else (min(values) - margin, max(values) + margin),
        log_x=figure.log_x,
        log_y=figure.log_y,
    )


def _listed(out: Path) -> list[dict[str, Any]]:
    from research.reproductions import EXPERIMENTS, pages, results

    rows = []
    for experiment in EXPERIMENTS.values():
        record = results.read(experiment.name, out)
        rows.append(
            {
                "name": experiment.name,
                "paper": experiment.paper,
                "artefact": experiment.artefact,
                "what": experiment.what,
                "minutes_quick": experiment.minutes_quick,
                "minutes_full": experiment.minutes_full,
                "status": pages.status_of(record),
                "summary": None if record is None else record.outcome.summary,
            }
        )
    return rows


def _show_list(out: Path) -> None:
    from discreet.report import terminal

    columns = ("experiment", "paper", "artefact", "minutes, quick / full", "status")
    rows = [
        (
            row["name"],
            row["paper"],
            row["artefact"],
            f"{row['minutes_quick']:g} / {row['minutes_full']:g}",
            row["status"],
        )
        for row in _listed(out)
    ]
    terminal.show(terminal.plain_table("Reproductions", columns, rows))


def _show(experiment: Experiment, record: Record) -> None:
    from discreet.report import terminal
    from discreet.training.spending import format_epsilon
    from research.reproductions.pages import number

    columns = (record.outcome.unit, "paper", "ours", "certified", "claimed")
    rows = [
        (
            row.setting,
            number(row.paper),
            number(row.ours),
            "" if row.certified is None else format_epsilon(row.certified),
            number(row.claimed),
        )
        for row in record.outcome.rows
    ]
    title = f"{experiment.name}: {record.outcome.status}"
    terminal.show(terminal.plain_table(title, columns, rows), record.outcome.summary)


def _write_page(page: Path, out: Path) -> None:
    from research.reproductions import EXPERIMENTS, pages

    text = pages.render(EXPERIMENTS.values(), results=out, docs=page.parent)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def main(args: Sequence[str]) -> int:
    """Run the command; the exit codes are those of `discreet`."""
    return entry.main(["reproduce", *args], commands=(reproduce,), program=f"python -m {_MODULE}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
