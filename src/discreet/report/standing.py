"""What a comparison found: one sentence, the rows that stand out, and the rows that did not learn."""

from discreet.report import wording
from discreet.runs.audit_rows import AuditRow
from discreet.runs.comparison.values import Comparison, Estimate, MethodResult

BASELINE = "dp-sgd"
WITHOUT_PRIVACY = "without privacy"  # the reference row of plain training; the other is a constant answer
TOP = 3
AS_GOOD = 0.01  # how far below the best a baseline may be that suffices
HOLDING = ("holds", "claim not tested")  # verdicts that break nothing


def learned(of: Comparison, entry: MethodResult) -> bool:
    """Whether a row is in the race: at least half as accurate as the best, and better than the majority class."""
    best, own = of.best, entry.accuracy
    if best is None or best.accuracy is None or own is None:
        return True  # a row without a result is shown with its reason
    floor = next((row.accuracy for row in of.references if row.name != WITHOUT_PRIVACY), None)  # a constant answer
    return own.mean >= best.accuracy.mean / 2 and (floor is None or own.high > floor or best.accuracy.high <= floor)


def learners(of: Comparison) -> tuple[MethodResult, ...]:
    return tuple(entry for entry in of.entries if learned(of, entry))


def left_behind(of: Comparison) -> tuple[MethodResult, ...]:
    """The rows that did not learn at this budget."""
    return tuple(entry for entry in of.entries if not learned(of, entry))


def bright(of: Comparison) -> frozenset[str]:
    """The rows that stand out: the first three and the baseline."""
    finished = [entry for entry in of.finished if learned(of, entry)]
    return frozenset(entry.name for entry in finished[:TOP]) | {e.name for e in finished if e.method == BASELINE}


def reference(of: Comparison, name: str) -> float | None:
    """The accuracy of a row that no method made, if there is one."""
    return next((row.accuracy for row in of.references if row.name == name), None)


def verdict(of: Comparison) -> str:
    """What the comparison found, in one sentence.

    If the baseline is within a point of the best row and cannot be told apart from it, it suffices.
    """
    best = of.best
    if best is None or best.accuracy is None:
        return "No run finished."
    near = of.close_to_best
    usual = next((entry for entry in (best, *near) if entry.method == BASELINE and _gap(best, entry) <= AS_GOOD), None)
    shown = best if usual is None or of.repeats == 1 else usual  # one run decides nothing
    parts = [f"{shown.name} {_praise(of, shown)}: {_named(of)}{_percent(shown.accuracy)} at epsilon {of.epsilon:g}"]
    plain = reference(of, WITHOUT_PRIVACY)
    if plain is not None:
        parts.append(f"without privacy {wording.points(plain)} %")
    if of.repeats == 1:
        parts.append("one run each, so differences may be due to chance")
    elif near:
        others, top = wording.counted(len(near), "other method"), "it" if shown is best else f"the best, {best.name}"
        parts.append(f"by {wording.counted(of.repeats, 'run')} each {others} cannot be told apart from {top}")
    elif len(of.finished) > 1:
        parts.append("no other method is as good")
    return "; ".join(parts) + "."


def _praise(of: Comparison, shown: MethodResult) -> str:
    if of.repeats == 1 and len(of.finished) > 1:
        return "came first"
    if shown.method == BASELINE:
        return "suffices" if len(of.finished) > 1 else "was trained"
    base = next((entry for entry in of.finished if entry.method == BASELINE), None)
    if base is None or base.accuracy is None or shown.accuracy is None:
        return "is best"
    apart = f"{wording.points(_gap(shown, base))} points above {base.name}"
    return f"came first, {apart}" if base in of.close_to_best else f"is best, {apart}"


def _gap(best: MethodResult, other: MethodResult) -> float:
    """How far the mean of a row is below that of the best."""
    return 0.0 if best.accuracy is None or other.accuracy is None else best.accuracy.mean - other.accuracy.mean


def _named(of: Comparison) -> str:
    """The measure, where it is not the accuracy that every reader expects."""
    return "" if of.measure == "accuracy" else f"{of.measure} "


def _percent(accuracy: Estimate | None) -> str:
    return "–" if accuracy is None else f"{wording.points(accuracy.mean)} %"


def broken(rows: tuple[AuditRow, ...]) -> tuple[AuditRow, ...]:
    """The audits that exceed a claim or a certificate."""
    return tuple(row for row in rows if row.verdict.value not in HOLDING)


def holding(rows: tuple[AuditRow, ...]) -> tuple[AuditRow, ...]:
    return tuple(row for row in rows if row.verdict.value in HOLDING)
