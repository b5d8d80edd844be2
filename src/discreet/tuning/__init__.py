"""Settings chosen before training: from public numbers alone, or on public stand-in data."""

from discreet.tuning.clip import scale_clip_with_momentum
from discreet.tuning.schedules import CANDIDATES, Candidate, Choice, Trial, choose_schedule

__all__ = [
    "CANDIDATES",
    "Candidate",
    "Choice",
    "Trial",
    "choose_schedule",
    "scale_clip_with_momentum",
]
