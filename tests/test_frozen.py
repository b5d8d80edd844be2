"""A private run in a test finds the tensors that it would find elsewhere."""

from __future__ import annotations

import gc

import torch

import frozen
from discreet.engine.dataset import stock
from discreet.engine.proof import lineage

MADE_AT_IMPORT = torch.ones(3)


def test_all_tensors_are_listed() -> None:
    made_in_a_test = torch.ones(3)
    listed = {id(tensor) for tensor in stock.live_tensors()}
    held = {id(tensor) for tensor in lineage.live_tensors()}
    assert id(MADE_AT_IMPORT) not in held  # frozen: otherwise this test says nothing
    assert {id(MADE_AT_IMPORT), id(made_in_a_test)} <= listed
    gc.unfreeze()
    try:
        assert {id(tensor) for tensor in lineage.live_tensors()} <= listed
    finally:
        frozen.freeze()
