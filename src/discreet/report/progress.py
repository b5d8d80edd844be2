"""Progress on standard error: a bar at a terminal, elsewhere a line every 30 seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, final

from discreet.core.randomness import SEEDED
from discreet.training.spending import format_epsilon

if TYPE_CHECKING:
    from discreet.runs import RunOutline, RunProgress
    from discreet.runs.comparison.compare import ComparisonProgress

FIRST, EVERY = 5.0, 30.0
"""Seconds until the first line off a terminal, and between later ones."""

Follow = Callable[[str, int, int, str], None]  # label, done, total, news


@contextlib.contextmanager
def training_bar(*, quiet: bool) -> Iterator[Callable[[RunProgress], None]]:
    with _bar(quiet) as follow:
        accuracy: float | None = None  # of the last evaluation

        def listen(news: RunProgress) -> None:
            nonlocal accuracy
            accuracy = accuracy if news.accuracy is None else news.accuracy
            told = "" if news.epsilon is None else _news(news.epsilon, accuracy, news.seeded, news.measure)
            follow(news.stage, news.step, news.steps, told)

        yield listen


@contextlib.contextmanager
def elapsed_bar(*, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Elapsed time and nothing else: how far a search has come would reveal how many runs it has."""
    with _bar(quiet) as follow:
        yield lambda seconds: follow(f"searching, {seconds:.0f} s", 0, 0, "")


def announce(of: RunOutline) -> None:
    print(outline(of), file=sys.stderr, flush=True)


@contextlib.contextmanager
def comparison_bar(*, quiet: bool) -> Iterator[Callable[[ComparisonProgress], None]]:
    with _bar(quiet) as follow:

        def listen(news: ComparisonProgress) -> None:
            stage = f"{news.stage}, " if news.stage else ""
            label = f"{stage}run {news.index + 1}/{news.runs}: {news.name}, {news.phase.value}"
            follow(label, news.step, news.steps, news.note or _news(news.epsilon, news.accuracy, measure=news.measure))

        yield listen


@contextlib.contextmanager
def audit_bar(rows: int, *, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    with _bar(quiet) as follow:
        seen: dict[str, int] = {}

        def listen(label: str, done: int, total: int) -> None:
            seen.setdefault(label, len(seen))
            follow(f"row {len(seen)}/{rows}: {label}, trial", done, total, "")

        yield listen


@contextlib.contextmanager
def pricing_bar(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    with _bar(quiet) as follow:
        yield lambda label, done, total: follow(f"pricing {label}", done, total, "")


def outline(of: RunOutline) -> str:
    """What a run will do, in one line."""
    resumed = f", of which {of.begun} are done" if of.begun else ""
    model = f"{of.model} with {of.parameters:,} parameters"
    end = f"certified epsilon at the end {format_epsilon(of.epsilon)}"
    return f"{of.method} on {of.data}: {model}, {of.steps:,} steps{resumed}, {of.plan}; {end}"


@contextlib.contextmanager
def _bar(quiet: bool) -> Iterator[Follow]:
    if quiet:
        yield lambda label, step, steps, news: None
    elif not sys.stderr.isatty():
        yield Lines(time.monotonic)
    else:
        with _terminal_bar() as follow:
            yield follow


@final
class Lines:
    """Prints a line now and then: step, the last news, and the time that is left at the pace so far."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._news = clock, ""
        self._due = clock() + FIRST
        self._began: tuple[str, float, int] | None = None  # label, time and step at its first call

    def __call__(self, label: str, step: int, steps: int, news: str) -> None:
        now, self._news = self._clock(), news or self._news
        if self._began is None or self._began[0] != label or step < self._began[2]:
            self._began, self._news = (label, now, step), news
        if now < self._due:
            return
        self._due = now + EVERY
        _, began, first = self._began
        left = (steps - step) * (now - began) / (step - first) if step > first else None
        place = f"{label} {step}/{steps}" if steps else label
        parts = (place, self._news, "" if left is None else f"{duration(left)} left")
        print(" · ".join(part for part in parts if part), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """
    >>> duration(3), duration(160), duration(9000)
    ('3 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def _terminal_bar() -> Iterator[Follow]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description} {task.completed:.0f}/{task.total:.0f}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[news]}", markup=False),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("starting", total=0, news="")

        def follow(label: str, step: int, steps: int, news: str) -> None:
            bar.update(task, description=label, completed=step, total=steps)
            if news:  # stays until the next evaluation
                bar.update(task, news=news)

        yield follow


def _news(epsilon: float | None, accuracy: float | None, seeded: bool = False, measure: str = "accuracy") -> str:
    spent = "" if epsilon is None else f"epsilon {format_epsilon(epsilon)}" + (f" ({SEEDED})" if seeded else "")
    return spent if accuracy is None else f"{spent} · {measure} {accuracy:.1%}"
