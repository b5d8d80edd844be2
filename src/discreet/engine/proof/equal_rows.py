"""A call on public tensors, run for few and for many records on equal rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from discreet.engine.proof.call_proof import CallProof
from discreet.engine.proof.generic_values import Pattern, ranges
from discreet.engine.proof.provable_call import ProvableCall, apart_from_the_run


def run_on_equal_rows(call: ProvableCall, sizes: Sequence[int]) -> list[list[Tensor]] | None:
    """What a call gives for each number of records, on the same public tensors and equal rows; None if it fails."""
    whole = [size for leaf in call.leaves for size in leaf.sizes if type(size) is int]
    for within in ranges(whole, call.special, call.func):
        with apart_from_the_run():
            proof = CallProof(call, within)
            pairs = [(leaf, proof.base(leaf, 1, Pattern.MODERATE)) for leaf in call.leaves]
            pairs = [(leaf, torch.ones_like(row) if row.dtype == torch.bool else row) for leaf, row in pairs]
            runs = [proof.run([leaf.repeated(row, records) for leaf, row in pairs], records) for records in sizes]
        if all(run is not None for run in runs):
            return [run.outputs for run in runs if run is not None]
        if not call.leaves:
            break  # no choice
    return None
