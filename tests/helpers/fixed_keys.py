"""Keys that the operating system would give, made from a name: the same in every run, another one at each call."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest

from discreet.core.streams import _FACTORY, Streams


def fix_keys(name: str, patch: pytest.MonkeyPatch) -> None:
    """Streams.from_os() and default_rng() without a seed draw from keys of `name`; nothing else tells them apart."""
    calls, real = itertools.count(), np.random.default_rng

    def key() -> bytes:
        return hashlib.sha256(f"{name} {next(calls)}".encode()).digest()

    def generator(seed: Any = None) -> np.random.Generator:
        return real(int.from_bytes(key()) if seed is None else seed)

    patch.setattr(Streams, "from_os", classmethod(lambda cls: cls(key(), is_seeded=False, key=_FACTORY)))
    patch.setattr(np.random, "default_rng", generator)
