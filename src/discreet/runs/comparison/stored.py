"""Comparisons from their JSON form, and the rows of an audit from its file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discreet.core import check
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


def truth_table(path: Path) -> tuple[Truth, ...]:
    """The rows of the file that `discreet audit --out FILE` wrote."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return tuple(_truth(row) for row in held["rows"])
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        check.refuse(
            f"a truth table in {path}",
            f"{type(error).__name__}: {error}",
            "write one with `discreet audit --all --out FILE`",
        )


def comparison(held: Mapping[str, Any]) -> Comparison:
    """From what `Comparison.to_json` wrote; faults pass through as they are."""
    special = (
        "seeds",
        "epsilon",
        "entries",
        "excluded",
        "together",
        "provenance",
        "others",
        "truth",
        "tuned",
    )
    seeds, provenance = held["seeds"], held["provenance"]
    return Comparison(
        **_plain_fields(Comparison, held, *special),
        seeds=None if seeds is None else tuple(seeds),
        epsilon=float(held["epsilon"]),
        entries=tuple(_entry(entry) for entry in held["entries"]),
        excluded=tuple(Excluded(**_plain_fields(Excluded, entry)) for entry in held["excluded"]),
        together=_number(held["together"]),
        provenance=Provenance(
            **_plain_fields(Provenance, provenance, "versions"),
            versions=tuple((str(name), str(version)) for name, version in provenance["versions"]),
        ),
        others=tuple(_stage(stage) for stage in held["others"]),
        truth=tuple(_truth(row) for row in held["truth"]),
        tuned=None if held["tuned"] is None else _tuned(held["tuned"]),
    )


def _stage(held: Mapping[str, Any]) -> Stage:
    return Stage(
        epsilon=float(held["epsilon"]),
        repeats=int(held["repeats"]),
        entries=tuple(_entry(entry) for entry in held["entries"]),
    )


def _tuned(held: Mapping[str, Any]) -> Tuned:
    choices = tuple(Choice(**_plain_fields(Choice, choice)) for choice in held["choices"])
    return Tuned(**_plain_fields(Tuned, held, "choices"), choices=choices)


def _truth(held: Mapping[str, Any]) -> Truth:
    """Parameters are an object in an audit's file and pairs in ours."""
    given = held["parameters"]
    pairs = given.items() if isinstance(given, Mapping) else given
    numbers = ("certified", "claimed", "analytic", "audited", "confidence")
    return Truth(
        method=str(held["method"]),
        parameters=tuple((str(name), value) for name, value in pairs),
        **{name: _number(held[name]) for name in numbers},
        verdict=str(held["verdict"]),
    )


def _entry(held: Mapping[str, Any]) -> Entry:
    return Entry(
        **_plain_fields(Entry, held, "parameters", "course", "runs", "failures"),
        parameters=tuple((str(name), value) for name, value in held["parameters"]),
        course=_course(held["course"]),
        runs=tuple(_run(run) for run in held["runs"]),
        failures=tuple(Failure(**_plain_fields(Failure, failure)) for failure in held["failures"]),
    )


def _course(held: Mapping[str, Any]) -> Course:
    return Course(
        noise=tuple((int(step), float(value)) for step, value in held["noise"]),
        density=tuple((int(step), float(value)) for step, value in held["density"]),
        diameter=_number(held["diameter"]),
        visible=bool(held["visible"]),
    )


def _run(held: Mapping[str, Any]) -> TrainedRun:
    return TrainedRun(
        **_plain_fields(TrainedRun, held, "curve", "epsilon", "claimed", "assumptions"),
        epsilon=float(held["epsilon"]),
        claimed=_number(held["claimed"]),
        assumptions=tuple(str(assumption) for assumption in held["assumptions"]),
        curve=tuple(
            Point(step=point["step"], accuracy=point["accuracy"], epsilon=float(point["epsilon"]))
            for point in held["curve"]
        ),
    )


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _plain_fields(kind: type, held: Mapping[str, Any], *special: str) -> dict[str, Any]:
    return {field.name: held[field.name] for field in dataclasses.fields(kind) if field.name not in special}
