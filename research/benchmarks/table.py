"""The step-time table, as JSON values and for the terminal."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from research.benchmarks.models import CONVOLUTION, MODELS, PERCEPTRON, TRANSFORMER
from research.benchmarks.peers import ROWS
from research.benchmarks.timing import Measured

_LABELS = {row.name: row.about for row in ROWS}
_PEERS = frozenset(row.name for row in ROWS if row.is_peer)


def versions() -> dict[str, str]:
    """Versions of everything compared."""
    found = {"python": platform.python_version()}
    for name in ("discreet", "torch", "opacus", "fastDP", "jax", "jax-privacy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            is_there = importlib.util.find_spec(name.replace("-", "_")) is not None
            found[name] = "of unknown version" if is_there else "not installed"
    return found


def machine() -> dict[str, Any]:
    """The machine and its load."""
    return {
        "processors": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def rows_of(measured: Measured) -> dict[str, dict[str, Any]]:
    """Milliseconds, and ratios from the medians of all rounds: over plain SGD, and over the floor."""
    floor = measured.timings.get("floor")
    rows: dict[str, dict[str, Any]] = {}
    for name, timing in measured.timings.items():
        rows[name] = {
            "ms": round(1e3 * timing.seconds, 2),
            "ms_quartiles": [round(1e3 * timing.low, 2), round(1e3 * timing.high, 2)],
            "over_plain": round(timing.ratio, 3),
            "over_plain_quartiles": [round(timing.ratio_low, 3), round(timing.ratio_high, 3)],
            "repeats": timing.repeats,
        }
        if floor is not None:
            rows[name]["over_floor"] = round(timing.seconds / floor.seconds, 3)
    for name, reason in measured.absent.items():
        rows[name] = {"absent": reason}
    return rows


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`new` over `old`, branch by branch: memory and times may come from two runs.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    both = dict(old)
    for key, value in new.items():
        before = both.get(key)
        both[key] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return both


def verdict(model: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The model against its target and the fastest peer.

    Convolutions and transformers: 1.3 times plain SGD, 1.15 where a peer is below 1.6. Perceptrons: 1.4 times the
    floor. Memory of perceptrons and transformers: 1.3 times plain SGD's.
    """
    own, plain = rows.get("discreet", {}), rows.get("plain", {})
    peers = {name: row["ms"] for name, row in rows.items() if name in _PEERS and "ms" in row}
    found: dict[str, Any] = {}
    if "ms" in own:
        kind = MODELS[model].kind
        if kind == PERCEPTRON and "over_floor" in own:
            found |= {"bar": "1.4 x floor", "met": own["over_floor"] <= 1.4}
        elif kind in (CONVOLUTION, TRANSFORMER):
            ratios = [rows[name]["over_plain"] for name in peers]
            bar = 1.15 if min(ratios, default=2.0) < 1.6 else 1.3
            found |= {"bar": f"{bar} x plain", "met": own["over_plain"] <= bar}
        if peers:
            fastest = min(peers, key=lambda name: peers[name])
            found |= {"fastest_peer": fastest, "peer_over_discreet": round(peers[fastest] / own["ms"], 3)}
    if "peak_mb" in own and "peak_mb" in plain:
        found["memory_over_plain"] = round(own["peak_mb"] / max(plain["peak_mb"], 0.1), 3)
    return found


def for_people(models: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """One table for each model."""
    return [_table(name, own) for name, own in models.items()]


def _table(name: str, model: Mapping[str, Any]) -> Table:
    title = f"{MODELS[name].about}, {model['parameters']:,} parameters" if "parameters" in model else name
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    for column in ("ms", "quartiles", "x plain", "x floor", "peak MB"):
        table.add_column(column, justify="right")
    for row in ROWS:
        cells = model.get("rows", {}).get(row.name)
        if cells is not None:
            table.add_row(_LABELS[row.name], *_cells(cells))
    return table


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    peak = f"{row['peak_mb']:.0f}" if "peak_mb" in row else ""
    if "ms" not in row:
        return ("", str(row.get("absent", "")), "", "", peak)
    low, high = row["ms_quartiles"]
    over_floor = f"{row['over_floor']:.2f}" if "over_floor" in row else ""
    return (f"{row['ms']:.1f}", f"{low:.1f}-{high:.1f}", f"{row['over_plain']:.2f}", over_floor, peak)
