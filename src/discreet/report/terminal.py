"""Output for a terminal: tables and a curve of characters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from discreet.core.randomness import SEEDED
from discreet.report import wording
from discreet.training.spending import format_epsilon

if TYPE_CHECKING:
    from discreet.accounting.accountants import Certificate
    from discreet.runs import RunResult
    from discreet.runs.audit_rows import AuditRow
    from discreet.runs.budget import BudgetState
    from discreet.runs.comparison.values import Comparison, Estimate, Reference
    from discreet.runs.folder_bill import FolderBill
    from discreet.runs.tuning.sweep import TuneResult
    from discreet.training.model_check import ModelCheck

_BLOCKS = " ▁▂▃▄▅▆▇█"


def show(*parts: RenderableType) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))  # do not wrap paths


def account_table(
    name: str, certificate: Certificate, claimed: Mapping[str, Any] | None, solved: Mapping[str, Any]
) -> RenderableType:
    paper = claimed or {"epsilon": None, "delta": None, "theorem": "nothing claimed"}
    delta = "-" if paper["delta"] is None else f"{paper['delta']:g}"
    rows: list[tuple[RenderableType, ...]] = [
        ("epsilon", _bold(format_epsilon(certificate.epsilon)), _epsilon(paper["epsilon"])),
        ("delta", f"{certificate.delta:g}", delta),
        ("by", certificate.accountant, str(paper["theorem"])),
        ("relation", str(certificate.relation), ""),
        *([("randomness", _bold(SEEDED), "")] if certificate.seeded else []),
        *((key, solution(value), "") for key, value in solved.items()),
    ]
    assumed = "\n".join(f"- {assumption}" for assumption in certificate.assumptions if assumption != SEEDED)
    notes = [Text(f"The certificate assumes:\n{assumed}")] if assumed else []
    return Group(_table(name, ("", "certified", "claimed"), rows), *notes)


def solution(value: float) -> str:
    """A solved setting; fractions are rounded up, which is the safe side for noise.

    >>> solution(1.00000049), solution(2360)
    ('1.000001', '2360')
    """
    return f"{value:g}" if value == int(value) else f"{math.ceil(value * 1e6) / 1e6:.6f}"


def curve(points: Sequence[tuple[int, float]], *, width: int = 60, height: int = 10) -> Text:
    """Epsilon over steps as a bar chart of characters, from (0, 0) to the last point.

    >>> print(curve([(1, 1.0), (2, 2.0)], width=8, height=2))
     2.00 |    ▂▄▆█
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
        label = format_epsilon(top) if row == height - 1 else "0.00" if row == 0 else ""
        cells = "".join(_BLOCKS[min(8, max(0, count - 8 * row))] for count in eighths)
        lines.append(f"{label:>5} |{cells}".rstrip())
    return Text("\n".join([*lines, f"{'':>7}0 .. {last} steps"]))


def run_table(result: RunResult) -> RenderableType:
    proven = result.spent.certified
    claimed = "nothing claimed" if result.spent.claimed is None else format_epsilon(result.spent.claimed)
    seeded = f", {SEEDED}" if result.spent.seeded else ""
    rows: list[tuple[RenderableType, ...]] = [
        (f"test {result.measure}", _bold(f"{result.test_accuracy:.2%}")),
        *((f"test {name}", f"{value:.4g}") for name, value in result.scores[1:]),
        ("epsilon, certified", _bold(f"{format_epsilon(proven.epsilon)}{seeded}")),
        ("epsilon, claimed", claimed),
        ("delta, relation", f"{proven.delta:g}, {result.spent.neighbours} ({proven.accountant})"),
        ("randomness", result.spent.statement),
        ("steps, seconds", f"{result.steps}, {result.seconds:.1f}"),
        ("directory", str(result.directory)),
    ]
    table = _table(f"{result.method} on {result.data}", ("", ""), rows)
    table.show_header = False
    return table


def tune_table(result: TuneResult) -> RenderableType:
    """The chosen run of a search and its bill; with public records, all candidates."""
    proven = result.certified
    test = "-" if result.test_accuracy is None else f"{result.test_accuracy:.2%}"
    rows: list[tuple[RenderableType, ...]] = [
        ("chosen", _bold(", ".join(f"{name}={value}" for name, value in result.settings.items()))),
        ("score", f"{result.score:.2%}" + (" (noisy count)" if result.held_out else " (test records)")),
        ("test accuracy", test),
        ("epsilon, certified", _bold(f"{format_epsilon(proven.epsilon)} for the whole search")),
        ("delta, relation", f"{proven.delta:g}, {_neighbours(proven.relation, result.unit)} ({proven.accountant})"),
        ("number of runs", f"secret, {result.runs:g} expected (shape {result.shape:g})"),
        ("directory", str(result.directory)),
    ]
    table = _table("tune", ("", ""), rows)
    table.show_header = False
    shown = result.candidates or ()
    lines = [(", ".join(f"{name}={value}" for name, value in one.items()), f"{score:.2%}") for one, score in shown]
    return Group(table, *([_table("all candidates (public records)", ("settings", "score"), lines)] if lines else []))


def bill_table(name: str, bill: FolderBill) -> RenderableType:
    """What showing runs of a folder costs."""
    one, every = format_epsilon(bill.one.epsilon), format_epsilon(bill.everything.epsilon)
    rows = [
        ("all of them", every, bill.everything.accountant),
        ("the best of them", every, "the number of runs is known, so the choice costs all of them"),
        ("one that was fixed in advance", one, bill.one.accountant),
    ]
    if bill.by_tune is not None:
        told = "what `discreet tune` charges if as many runs are expected and their number is secret"
        rows.append(("for comparison", format_epsilon(bill.by_tune.epsilon), told))
    title = f"{name}: {wording.counted(len(bill.ledgers), 'run')}, delta {bill.one.delta:g}, {bill.one.relation}"
    return plain_table(title, ("showing", "epsilon", "by"), rows)


def budget_table(name: str, state: BudgetState) -> RenderableType:
    """What a budget file holds: its limit, what is spent and what is left."""
    limit = state.limit
    rows: list[tuple[RenderableType, ...]] = [
        ("records", state.data or "not described"),
        ("limit", f"epsilon {limit.epsilon:g} at delta {limit.delta:g}, {_neighbours(limit.relation, limit.unit)}"),
        ("spent", _bold(f"epsilon {format_epsilon(state.spent)}, {wording.counted(len(state.entries), 'charge')}")),
        ("left", _bold(f"one more release of all records of epsilon {math.floor(state.left * 1000) / 1000:g}")),
    ]
    table = _table(name, ("", ""), rows)
    table.show_header = False
    lines = [(entry.what, entry.part or "all records") for entry in state.entries]
    return Group(table, *([_table("charges", ("for", "records"), lines)] if lines else []))


def check_table(found: ModelCheck) -> RenderableType:
    """What `discreet check` found."""
    (question, answer), *rest = found.lines
    table = _table(found.model, ("", ""), [(question, _bold(answer)), *rest])
    table.show_header = False
    return table


def comparison_table(found: Comparison) -> RenderableType:
    """The methods of a comparison, best first, and notes on the numbers."""
    title = f"{found.data}, {found.model}: certified epsilon {found.epsilon:g} at delta {found.delta:g}"
    columns = ("", "method", f"test {found.measure}", "certified", "claimed", "seconds")
    rows = []
    for rank, entry in enumerate(found.finished, start=1):
        seconds = "-" if entry.seconds is None else f"{entry.seconds:.1f}"
        numbers = (_accuracy(entry.accuracy), _epsilon(entry.epsilon), _epsilon(entry.claimed), seconds)
        rows.append((str(rank), _bold(entry.name), *numbers))
    rows += [("", Text(one.name), _reference(one), "-", "-", "-") for one in found.references]
    notes = [f"{entry.name}: {line}" for entry in found.entries for line in wording.failures(entry)]
    notes += [f"{one.name}: {one.about}" for one in found.references if one.accuracy is None]
    notes += [f"not comparable: {o.method} ({o.reason or o.guarantee})" for o in found.excluded]
    if found.close_to_best:
        names = ", ".join(entry.name for entry in found.close_to_best)
        notes.append(f"not told apart from the best by {wording.counted(found.repeats, 'run')}: {names}")
    if found.seeded:
        notes.append("seeded, so that it can be repeated: these models are not private")
    notes += [line for line in (wording.together(found), wording.tuning(found), wording.warning(found)) if line]
    further = [_frontier_table(found)] if found.others else []
    return Group(_table(title, columns, rows), *further, *(Text(note) for note in notes))


def _reference(one: Reference) -> str:
    return "-" if one.accuracy is None else f"{wording.points(one.accuracy)} %"


def _frontier_table(found: Comparison) -> RenderableType:
    held = [{entry.name: entry.accuracy for entry in budget.entries} for budget in found.budgets]
    columns = ("method", *(f"epsilon {budget.label}" for budget in found.budgets))
    names = (entry.name for entry in found.entries)
    return _table("each budget", columns, ((_bold(n), *(_accuracy(at.get(n)) for at in held)) for n in names))


def truth_table(rows: Sequence[AuditRow]) -> RenderableType:
    """Certified, claimed and audited side by side; bad verdicts stand out."""
    columns = ("method", "certified", "claimed", "analytic", "audited", "verdict", "parameters")
    cells = [
        (
            _bold(row.method),
            _epsilon(row.certified),
            _epsilon(row.claimed),
            "-" if row.analytic is None else f"{row.analytic:.2f}",
            f"{math.floor(row.audited * 100) / 100:.2f}",  # a lower bound is rounded down
            Text(row.verdict.value, style="" if row.verdict.value == "holds" else "bold red"),
            ", ".join(f"{name} {value:g}" for name, value in row.parameters.items()),
        )
        for row in rows
    ]
    least = min((row.confidence for row in rows), default=None)
    note = [] if least is None else [Text(f"audited: a lower bound on epsilon by an attack, confidence {least:g}")]
    return Group(_table("truth table", columns, cells), *note)


def _between(points: Sequence[tuple[int, float]], step: float) -> float:
    for (start, low), (end, high) in itertools.pairwise([(0, 0.0), *points]):
        if step <= end:
            return low + (high - low) * (step - start) / (end - start)
    return points[-1][1]


def plain_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    """A table of text whose first column stays in one piece."""
    table = _table(title, columns, rows)
    table.columns[0].no_wrap = True
    return table


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[RenderableType]] = ()) -> Table:
    table = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def _neighbours(relation: object, unit: str) -> str:
    """The relation, with its unit if that is not a record."""
    return f"{relation}" if unit == "record" else f"{relation} of one {unit}"


def _bold(text: str) -> Text:
    return Text(text, style="bold")


def _accuracy(estimate: Estimate | None) -> str:
    """A mean, with half the width of its interval where there are several runs."""
    if estimate is None:
        return "-"
    return " ".join(filter(None, (wording.points(estimate.mean), wording.half(estimate), "%")))


def _epsilon(value: float | str | None) -> str:
    return "infinite" if isinstance(value, str) else wording.epsilon(value, missing="-")
