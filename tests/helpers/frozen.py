"""Hide what pytest and the libraries made before the first test from Python's collector.

A private run looks for tensors among all objects that the collector holds, three times. In a run of the whole suite
that is most of a second, and nearly all of these objects are not tensors.
"""

from __future__ import annotations

import gc

import pytest

from discreet.engine.dataset import held_tensors, stock


def freeze() -> None:
    """Tensors that exist now stay listed, although the collector no longer holds them."""
    gc.collect()
    unfrozen = stock.live_tensors
    before = unfrozen()
    gc.freeze()
    for module in (stock, held_tensors):
        pytest.MonkeyPatch().setattr(module, "live_tensors", lambda: before + unfrozen())
