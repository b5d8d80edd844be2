"""Runs that a comparison finds in its directory: the same ones, or others that are moved out of the way."""

from __future__ import annotations

import itertools
from pathlib import Path

from discreet import runs
from discreet.core import check
from discreet.core.plain import digest
from discreet.runs.comparison.candidates import SET_ASIDE
from discreet.runs.config import FREE_TO_CHANGE
from discreet.stages.plan import Plan


def compared(config: runs.RunConfig) -> dict[str, object]:
    """The settings that make a run what it is."""
    return {name: value for name, value in config.to_json().items() if name not in FREE_TO_CHANGE}


def same(config: runs.RunConfig, plan: Plan, folder: runs.RunFolder) -> bool:
    """Whether the run that is there has these settings and this plan."""
    try:
        begun = runs.load_config(config.out)
        planned = runs.folder.read_json(folder.plan)["digest"]
    except (check.Refused, KeyError):
        return False
    return digest(compared(begun)) == digest(compared(config)) and planned == plan.digest


def set_aside(directory: Path, out: Path) -> Path:
    """Move a run out of the way; its ledger says what was spent, so it is never deleted."""
    name = "-".join(directory.relative_to(out).parts)
    places = (out / SET_ASIDE / f"{name}-{number}" for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    place.parent.mkdir(parents=True, exist_ok=True)
    directory.rename(place)
    return place
