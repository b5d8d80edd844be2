"""Comparing methods at one certified budget, and the page that shows it.

    settings = CompareSettings(data="digits", epsilon=3.0, delta=1e-5, out=Path("runs/compare"))
    written = write(compare(settings), settings.out)      # report.html, report.json, figures

Nothing here imports torch before a run starts.
"""

from discreet.report.compare import CompareSettings, Phase, Progress, compare, default_seeds
from discreet.report.defaults import Candidate, candidates
from discreet.report.estimates import Estimate
from discreet.report.page import Written, read, render, write
from discreet.report.stored import truth_table
from discreet.report.values import (
    Choice,
    Comparison,
    Course,
    Entry,
    Excluded,
    Failure,
    Point,
    Provenance,
    Run,
    Stage,
    Truth,
    Tuned,
)

__all__ = [
    "Candidate",
    "Choice",
    "CompareSettings",
    "Comparison",
    "Course",
    "Entry",
    "Estimate",
    "Excluded",
    "Failure",
    "Phase",
    "Point",
    "Progress",
    "Provenance",
    "Run",
    "Stage",
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
