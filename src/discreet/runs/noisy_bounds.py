"""Bounds of private columns of numbers, by one noisy histogram that is charged before a record is read.

Proof: docs/proofs/NoisyBounds.md. Categories are never learned from private records.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch

from discreet.accounting.accountants import Certificate, certify
from discreet.accounting.calibration import calibrate_noise
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian
from discreet.accounting.ledger import Ledger
from discreet.core import check
from discreet.core.errors import RunStopped
from discreet.core.plain import digest
from discreet.core.relation import Neighbouring
from discreet.core.streams import Stream, Streams
from discreet.data import tables
from discreet.data.labels import Columns
from discreet.data.schema import number
from discreet.runs.budget import Budget
from discreet.stages.delta import check_delta

Floats = npt.NDArray[np.float64]
Bounds = tuple[float, float]

_STEPS: Final = (1, 2, 3, 4, 5, 6, 8)  # edges of the grid: these times powers of ten
_POWERS: Final = range(-6, 12)
_POSITIVE: Final = [float(f"{step}e{power}") for power in _POWERS for step in _STEPS]
EDGES: Final = np.array([*(-edge for edge in reversed(_POSITIVE)), 0.0, *_POSITIVE])
"""The public grid: bucket i holds EDGES[i] <= value < EDGES[i + 1]; values outside it belong to its ends."""

RISK: Final = 0.01  # the probability that any bucket without records counts as one with records


@final
@dataclass(frozen=True, kw_only=True)
class BoundsFound:
    """Bounds of each column, or None where no bucket holds enough records to be told from noise."""

    bounds: dict[str, Bounds | None]
    certified: Certificate
    ledger: Path

    @property
    def schema(self) -> dict[str, dict[str, list[float]]]:
        return {name: {"bounds": list(pair)} for name, pair in self.bounds.items() if pair is not None}

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name, pair in self.bounds.items() if pair is None)

    def to_json(self) -> dict[str, Any]:
        held = {"schema": self.schema, "missing": list(self.missing), "ledger": str(self.ledger)}
        return {**held, "certified": self.certified.to_json()}


def find_bounds(
    data: str | Path,
    columns: Sequence[str],
    *,
    epsilon: float,
    delta: float,
    records: int,
    ledger: str | Path,
    budget: str | Path | None = None,
) -> BoundsFound:
    """Noisy bounds of these columns of numbers, within epsilon for all of them together.

    columns  named by the user: which columns hold numbers is not read from the records
    records  a public number, about the number of records; delta is checked against it
    ledger   a new file; the charge is in it, and in the budget file, before a record is read
    """
    check.positive("the epsilon of all bounds together, e.g. 0.1", epsilon=epsilon)
    check.count("records is a public number, about the size of the table", records=records)
    check_delta(delta, records, accepted=False)
    distinct = len(columns) > 0 and len(set(columns)) == len(columns)
    check.require(distinct, "different columns of numbers, at least one", ", ".join(columns), "name each once")

    # An epsilon is certified for one relation: that of the budget file.
    relation = Neighbouring.ADD_REMOVE if budget is None else Budget(budget).read().limit.relation

    def charged(noise: float) -> Charge:
        return Charge.of(Gaussian(noise))

    noise = calibrate_noise(charged, epsilon=epsilon, delta=delta, relation=relation)
    path, what = Path(ledger), f"bounds of {', '.join(columns)} in {Path(data).name}"
    header = {"relation": str(relation), "delta": delta, "plan": digest(["bounds", *columns, noise]), "seeded": False}
    with Ledger.create(path, header) as written:
        if budget is not None:
            try:
                Budget(budget).charge(charged(noise), entry=written.digest, what=what)
            except check.Refused:
                path.unlink()  # nothing was charged
                raise
        written.append(Gaussian(noise), step=0)
    try:
        found = released(tables.read(data), columns, noise, Streams.from_os().noise)
    except Exception as error:
        raise RunStopped(1, path, "the same command with another --out, which is charged again") from error
    proven = certify(charged(noise), delta=delta, relation=relation)
    return BoundsFound(bounds=found, certified=proven, ledger=path)


def released(table: Columns, columns: Sequence[str], noise: float, stream: Stream) -> dict[str, Bounds | None]:
    """The bounds of each column from its noisy histogram.

    Guarantee: this is `Gaussian(noise)`. A record counts once in each histogram, so that adding or removing it moves
    all counts together by at most sqrt(columns); the noise has `noise` times this as its standard deviation. What
    follows reads the noisy counts alone.
    """
    missing = [name for name in columns if name not in table]
    check.require(not missing, "every named column in the table", f"no {', '.join(missing)}", "check --numbers")
    counts = torch.from_numpy(np.stack([histogram(table[name]) for name in columns]))
    sigma = noise * math.sqrt(len(columns))
    noisy = stream.add_normal_(counts, sigma).numpy()
    return {name: within(row, sigma, len(columns)) for name, row in zip(columns, noisy, strict=True)}


def histogram(cells: npt.NDArray[Any]) -> Floats:
    """How many cells fall into each bucket of the grid; one that is no finite number counts nowhere.

    Guarantee: a cell adds 1 to at most one bucket, which depends on that cell alone.
    """
    values = np.array([number(cell, math.nan) for cell in cells.tolist()])
    places = np.searchsorted(EDGES, values[np.isfinite(values)], side="right") - 1
    return np.bincount(np.clip(places, 0, len(EDGES) - 2), minlength=len(EDGES) - 1).astype(np.float64)


def within(noisy: Floats, sigma: float, columns: int) -> Bounds | None:
    """The outer edges of the buckets whose noisy count cannot be noise alone.

    >>> within(np.where(np.isin(EDGES[:-1], (20.0, 40.0)), 500.0, 0.0), sigma=10.0, columns=1)
    (20.0, 50.0)
    """
    from scipy.special import ndtri

    most = -sigma * float(ndtri(RISK / (columns * len(noisy))))
    full = np.flatnonzero(noisy > most)
    return (float(EDGES[full[0]]), float(EDGES[full[-1] + 1])) if len(full) else None
