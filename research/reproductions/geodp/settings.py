"""GeoDP (paper 002): what its training experiments share."""

from __future__ import annotations

import functools
from typing import Any

from discreet import data as tasks
from discreet.runs import RunConfig

DELTA, CLIP = 1e-5, 0.1


@functools.cache
def data() -> tuple[str, tuple[str, ...]]:
    """MNIST, or Fashion-MNIST if MNIST is missing, and a note about it."""
    try:
        tasks.load("mnist")
    except tasks.MissingDataset:
        return "fashion-mnist", ("MNIST was not at hand: Fashion-MNIST stands in for it, which is harder",)
    return "mnist", ()


def config(method: str, *, parameters: dict[str, Any], seed: int, **settings: Any) -> RunConfig:
    """A seeded run on public data by SGD without momentum, as in the paper."""
    return RunConfig(
        delta=DELTA,
        out="",
        method=method,
        parameters=tuple(sorted(parameters.items())),
        optimizer="sgd",
        momentum=0.0,
        seed=seed,
        **{"data": data()[0], "average": 0.0, "public_data": False, **settings},
    )
