"""Result files of experiments: results/reproductions/NAME.json and figures; a quick run writes NAME.quick.json."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

from discreet.core import check
from discreet.core.files import write_json
from discreet.core.plain import plain
from research.reproductions.bench import Bench
from research.reproductions.experiment import Curve, Experiment, Figure, Outcome, Row, Status

_PACKAGES = ("discreet", "torch", "numpy", "transformers", "peft", "sacrebleu")
RANDOMNESS = "seeded, on public data: repeatable, not private"


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """An outcome and its provenance; `seconds` includes runs that were read from disk."""

    name: str
    quick: bool
    seeds: tuple[int, ...]
    seconds: float
    command: str
    date: str
    versions: Mapping[str, str]
    outcome: Outcome
    randomness: str = RANDOMNESS

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(plain(self))

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Record:
        """What `to_json` wrote."""
        rest = {name: value for name, value in body.items() if name not in ("is", "seeds", "outcome")}
        return Record(**rest, seeds=tuple(body["seeds"]), outcome=_outcome(body["outcome"]))


def perform(experiment: Experiment, bench: Bench, *, command: str) -> Record:
    """Run an experiment; finished runs are read from disk."""
    began = time.perf_counter()
    outcome = experiment.run(bench)
    return Record(
        name=experiment.name,
        quick=bench.quick,
        seeds=bench.seeds,
        seconds=bench.total_seconds(time.perf_counter() - began),
        command=command,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        versions=_versions(),
        outcome=outcome,
    )


def _versions() -> dict[str, str]:
    """Python and the packages that this process has imported."""
    imported = {name: version(name) for name in _PACKAGES if name.replace("-", "_") in sys.modules}
    return {"python": platform.python_version(), **imported}


def folder_of(results: Path) -> Path:
    """The folder of all records."""
    return results / "reproductions"


def figure_path(record: Record, figure: Figure, suffix: str) -> Path:
    """A figure's file, relative to the folder of the records."""
    effort = ".quick" if record.quick else ""
    return Path("figures") / f"{record.name}-{figure.name}{effort}.{suffix}"


def write(record: Record, results: Path) -> Path:
    """Write the record; a quick record never replaces a full one."""
    place = folder_of(results) / f"{record.name}{'.quick' if record.quick else ''}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, record.to_json())
    return place


def read(name: str, results: Path) -> Record | None:
    """The full record of an experiment, else its quick one, else None."""
    for effort in ("", ".quick"):
        place = folder_of(results) / f"{name}{effort}.json"
        if place.is_file():
            return _read(place)
    return None


def _read(place: Path) -> Record:
    try:
        return Record.from_json(json.loads(place.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        check.refuse(f"{place} to be the record of a reproduction", error, "run the experiment again")


def _outcome(body: Mapping[str, Any]) -> Outcome:
    return Outcome(
        unit=body["unit"],
        rows=tuple(_row(row) for row in body["rows"]),
        status=Status(body["status"]),
        summary=body["summary"],
        figures=tuple(_figure(figure) for figure in body["figures"]),
        guesses=tuple(body["guesses"]),
    )


def _row(body: Mapping[str, Any]) -> Row:
    numbers = ("paper", "ours", "spread", "certified", "claimed")
    values = {f.name: body[f.name] for f in dataclasses.fields(Row)}
    for name in numbers:
        values[name] = None if values[name] is None else float(values[name])
    return Row(**values)


def _figure(body: Mapping[str, Any]) -> Figure:
    curves = tuple(
        Curve(name=c["name"], x=tuple(map(float, c["x"])), y=tuple(map(float, c["y"]))) for c in body["curves"]
    )
    names = ("name", "title", "x_label", "y_label", "log_x", "log_y")
    return Figure(**{name: body[name] for name in names}, curves=curves)
