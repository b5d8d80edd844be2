"""Audits draw keys and coins from the operating system; here both are seeded, so that every run is the same run.

A test therefore fails by a change of the code alone. The confidence that a test states is the chance that a change
which only moves the draws, and breaks nothing, makes it fail.
"""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import pytest

from discreet.core.streams import Streams


@pytest.fixture(autouse=True)
def _seeded_audits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new seed for each call, from the name of the test; tests of the operating system's keys are left alone."""
    if request.node.get_closest_marker("os_entropy") is not None:
        return
    seeds = itertools.count(zlib.crc32(request.node.nodeid.encode()) << 20)
    real = np.random.default_rng

    def generator(seed: Any = None) -> np.random.Generator:
        return real(next(seeds) if seed is None else seed)

    monkeypatch.setattr(Streams, "from_os", classmethod(lambda cls: cls.seeded(next(seeds))))
    monkeypatch.setattr(np.random, "default_rng", generator)
