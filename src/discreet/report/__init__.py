"""Comparing methods at one certified budget, and the page that shows it.

    settings = CompareSettings(data="digits", epsilon=3.0, delta=1e-5, out=Path("runs/compare"))
    written = write(compare(settings), settings.out)      # report.html, report.json, figures

Nothing here imports torch before a run starts.
"""

from discreet.report.page import Written, read, render, write
from discreet.runs.comparison.candidates import Candidate, candidates
from discreet.runs.comparison.compare import (
    CompareSettings,
    ComparisonProgress,
    Phase,
    compare,
    default_seeds,
)
from discreet.runs.comparison.estimates import Estimate
from discreet.runs.comparison.stored import truth_table
from discreet.runs.comparison.values import (
    Choice,
    Comparison,
    Course,
    Entry,
    Excluded,
    Failure,
    Point,
    Provenance,
    Stage,
    TrainedRun,
    Truth,
    Tuned,
)

__all__ = [
    "Candidate",
    "Choice",
    "CompareSettings",
    "Comparison",
    "ComparisonProgress",
    "Course",
    "Entry",
    "Estimate",
    "Excluded",
    "Failure",
    "Phase",
    "Point",
    "Provenance",
    "Stage",
    "TrainedRun",
    "Truth",
    "Tuned",
    "Written",
    "candidates",
    "compare",
    "default_seeds",
    "read",
    "render",
    "truth_table",
    "write",
]
