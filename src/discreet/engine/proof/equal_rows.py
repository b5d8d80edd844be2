"""A call on public tensors, run for few and for many records on equal rows.

One draw of values shows too little: `ones(n).sum(dtype=torch.int64)` is 0 for every n if the ones are replaced by a
fraction, and a table of conditions holds the same at two places half of the time. So it is run on several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from discreet.engine.proof.call_proof import CallProof
from discreet.engine.proof.generic_values import Pattern, Range, ranges
from discreet.engine.proof.provable_call import ProvableCall, apart_from_the_run

_OTHERS: Final = (
    *(Pattern.MODERATE, Pattern.SPREAD, Pattern.TIES, Pattern.ZERO, Pattern.ONE),
    *(Pattern.MODERATE, Pattern.SPREAD, Pattern.TIES) * 2,
)


def runs_on_equal_rows(call: ProvableCall, sizes: Sequence[int]) -> list[list[list[Tensor]]] | None:
    """What a call gives for each number of records, on the same public tensors and equal rows; None if it fails.

    There is one such list for each draw of values, the moderate ones first; the others may fail. A call that takes no
    tensors is run once.
    """
    whole = [size for leaf in call.leaves for size in leaf.sizes if type(size) is int]
    for within in ranges(whole, call.special, call.func):
        first = _outputs(call, sizes, within, Pattern.MODERATE, is_true=True)
        if first is not None and call.leaves:
            others = (_outputs(call, sizes, within, pattern) for pattern in _OTHERS)
            return [first, *(one for one in others if one is not None)]
        if first is not None or not call.leaves:
            return None if first is None else [first]  # no choice
    return None


def _outputs(
    call: ProvableCall, sizes: Sequence[int], within: Range, pattern: Pattern, *, is_true: bool = False
) -> list[list[Tensor]] | None:
    """On one draw of values; `is_true` gives it conditions that are all true, by which nothing is left out."""
    with apart_from_the_run():
        proof = CallProof(call, within)
        pairs = [(leaf, proof.base(leaf, 1, pattern)) for leaf in call.leaves]
        if is_true:
            pairs = [(leaf, torch.ones_like(row) if row.dtype == torch.bool else row) for leaf, row in pairs]
        runs = [proof.run([leaf.repeated(row, records) for leaf, row in pairs], records) for records in sizes]
    found = [run.outputs for run in runs if run is not None]
    return found if len(found) == len(runs) else None
