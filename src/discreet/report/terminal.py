"""Answers for people at a terminal: small tables and a curve of characters."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from discreet.accounting import Certificate
from discreet.spending import words

if TYPE_CHECKING:
    from discreet.runs import Progress, RunResult

_BLOCKS = " ▁▂▃▄▅▆▇█"


def show(*parts: RenderableType) -> None:
    """Print to standard output."""
    console = Console(highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)


def account_table(
    name: str, certificate: Certificate, claimed: Mapping[str, Any] | None, solved: Mapping[str, Any]
) -> RenderableType:
    """Certified and claimed side by side, and under them what the certificate rests on."""
    table = _table(name, ("", "certified", "claimed"))
    paper = claimed or {"epsilon": None, "delta": None, "theorem": "nothing claimed"}
    table.add_row("epsilon", Text(words(certificate.epsilon), style="bold"), _epsilon(paper["epsilon"]))
    table.add_row("delta", f"{certificate.delta:g}", "-" if paper["delta"] is None else f"{paper['delta']:g}")
    table.add_row("by", certificate.accountant, str(paper["theorem"]))
    table.add_row("relation", str(certificate.relation), "")
    for key, value in solved.items():
        table.add_row(key, solution(value), "")
    if not certificate.assumptions:
        return table
    lines = "\n".join(f"- {assumption}" for assumption in certificate.assumptions)
    return Group(table, Text(f"The certificate assumes:\n{lines}"))


def solution(value: float) -> str:
    """A solved setting; a number that is not whole is rounded up, which for noise is the safe side.

    >>> solution(1.00000049), solution(2360)
    ('1.000001', '2360')
    """
    return f"{value:g}" if value == int(value) else f"{math.ceil(value * 1e6) / 1e6:.6f}"


def methods_table(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """One method a row, with its guarantee in words and its flags."""
    table = _table("methods", ("method", "guarantee", "what it does", "its flags"))
    for row in rows:
        flags = "\n".join(f"{parameter['flag']} ({parameter['about']})" for parameter in row["parameters"])
        table.add_row(Text(row["name"], style="bold"), row["guarantee"], row["summary"], flags)
    return table


def curve(points: Sequence[tuple[int, float]], *, width: int = 60, height: int = 10) -> Text:
    """epsilon over steps as columns of eighths, from (0, 0) to the last point.

    >>> print(curve([(1, 1.0), (2, 2.0)], width=8, height=2))
     2.00 |     ▂▄▆█
     0.00 |▂▄▆█████
            0 .. 2 steps
    """
    finite = [(step, epsilon) for step, epsilon in points if math.isfinite(epsilon)]
    if not finite:
        return Text("no proven guarantee at any step")
    top, last = max(epsilon for _, epsilon in finite), finite[-1][0]
    levels = [_between(finite, last * (column + 1) / width) for column in range(width)]
    eighths = [round(8 * height * level / top) if top > 0 else 0 for level in levels]
    lines = []
    for row in reversed(range(height)):
        label = words(top) if row == height - 1 else "0.00" if row == 0 else ""
        cells = "".join(_BLOCKS[min(8, max(0, count - 8 * row))] for count in eighths)
        lines.append(f"{label:>5} |{cells}".rstrip())
    return Text("\n".join([*lines, f"{'':>7}0 .. {last} steps"]))


def run_table(result: RunResult) -> RenderableType:
    """A finished run: how well it does, and what it cost."""
    proven = result.spent.certified
    claimed = "nothing claimed" if result.spent.claimed is None else words(result.spent.claimed)
    table = _table(f"{result.method} on {result.data}", ("", ""))
    table.add_row("test accuracy", Text(f"{result.test_accuracy:.2%}", style="bold"))
    table.add_row("epsilon, certified", Text(words(proven.epsilon), style="bold"))
    table.add_row("epsilon, claimed", claimed)
    table.add_row("delta, relation", f"{proven.delta:g}, {proven.relation} ({proven.accountant})")
    table.add_row("randomness", result.spent.statement)
    table.add_row("steps, seconds", f"{result.steps}, {result.seconds:.1f}")
    table.add_row("directory", str(result.directory))
    return table


@contextlib.contextmanager
def training_bar(*, visible: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error that follows a run: step, epsilon spent, accuracy on the public test data."""
    columns = (
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(),
        TextColumn("{task.fields[news]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False)
    with Bar(*columns, console=console, disable=not visible, transient=True) as bar:
        shown: list[TaskID] = []

        def follow(progress: Progress) -> None:
            if not shown:
                shown.append(bar.add_task("train", total=progress.steps, news=""))
            if progress.epsilon is not None and progress.accuracy is not None:
                news = f"epsilon {words(progress.epsilon)} · accuracy {progress.accuracy:.1%}"
                bar.update(shown[0], news=news)
            bar.update(shown[0], completed=progress.step)

        yield follow


def is_live() -> bool:
    """Whether somebody watches standard error."""
    return sys.stderr.isatty()


def _between(points: Sequence[tuple[int, float]], step: float) -> float:
    """The straight line between the neighbouring points."""
    left = (0, 0.0)
    for right in points:
        if step <= right[0]:
            return left[1] + (right[1] - left[1]) * (step - left[0]) / (right[0] - left[0])
        left = right
    return left[1]


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _epsilon(value: float | str | None) -> str:
    if value is None:
        return "-"
    return "infinite" if isinstance(value, str) else words(value)
