"""The sentences of the page's further sections: frontier, courses, audit."""

from __future__ import annotations

from typing import final

from discreet.report.wording import counted, listed
from discreet.runs.comparison.values import Comparison


@final
class Sections:
    """What is said beside the charts of one page."""

    def __init__(self, comparison: Comparison) -> None:
        self._of = comparison

    @property
    def frontier(self) -> str:
        """How to read the frontier."""
        stages = self._of.stages
        budgets = listed([f"{stage.epsilon:g}" for stage in stages])
        runs = ", ".join(f"{counted(stage.repeats, 'run')} at {stage.epsilon:g}" for stage in stages)
        return (
            f"Every method was calibrated and trained anew for each budget ε = {budgets} ({runs}). Points are "
            "the accuracy of finished runs; a smaller ε protects more."
        )

    @property
    def hidden(self) -> str:
        """Rows that have no accuracy on the way."""
        names = [entry.name for entry in self._of.finished if not entry.course.visible]
        if not names:
            return ""
        verb = "is" if len(names) == 1 else "are"
        return f"{listed(names)} {verb} proven for the last iterate alone: one point at the end. "

    @property
    def masks(self) -> str:
        """Whether anybody freezes coordinates."""
        masked = any(value < 1 for entry in self._of.entries for _, value in entry.course.density)
        return (
            "Mask density is the share of coordinates that take part."
            if masked
            else "No method here masks coordinates."
        )

    @property
    def domains(self) -> str:
        """Whether anybody keeps the parameters in a bounded set."""
        bounded = any(entry.course.diameter is not None for entry in self._of.entries)
        return (
            "The domain is the set that parameters are projected to after each step; its diameter is shown "
            "where it is bounded."
            if bounded
            else "No method here bounds the domain of the parameters."
        )

    @property
    def truth_confidence(self) -> str:
        """How sure the attacks are."""
        least = min(row.confidence for row in self._of.truth)
        return f"audited at a confidence of {least:.1%}"
