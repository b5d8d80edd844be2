"""Comparing methods at one certified budget: what is trained, and the values that a page is rendered from.

    settings = CompareSettings(data="digits", epsilon=3.0, delta=1e-5, out=Path("runs/compare"))
    written = report.write(compare(settings), settings.out)      # report.html, report.json, figures

Nothing here imports torch before a run starts.
"""

from discreet.runs.comparison.candidates import Candidate as Candidate
from discreet.runs.comparison.candidates import candidates as candidates
from discreet.runs.comparison.compare import CompareSettings as CompareSettings
from discreet.runs.comparison.compare import ComparisonProgress as ComparisonProgress
from discreet.runs.comparison.compare import Phase as Phase
from discreet.runs.comparison.compare import compare as compare
from discreet.runs.comparison.compare import default_seeds as default_seeds
from discreet.runs.comparison.estimates import Estimate as Estimate
from discreet.runs.comparison.values import BudgetResult as BudgetResult
from discreet.runs.comparison.values import Comparison as Comparison
from discreet.runs.comparison.values import Excluded as Excluded
from discreet.runs.comparison.values import Failure as Failure
from discreet.runs.comparison.values import MethodResult as MethodResult
from discreet.runs.comparison.values import PlanTimeline as PlanTimeline
from discreet.runs.comparison.values import Point as Point
from discreet.runs.comparison.values import Provenance as Provenance
from discreet.runs.comparison.values import TrainedRun as TrainedRun
from discreet.runs.comparison.values import TunedSetting as TunedSetting
from discreet.runs.comparison.values import TuningSummary as TuningSummary
