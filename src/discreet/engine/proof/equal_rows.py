"""A call on public tensors, run for few and for many records on equal rows.

One draw of values shows too little: `ones(n).sum(dtype=torch.int64)` is 0 for every n if the ones are replaced by a
fraction, and a table of conditions holds the same at two places half of the time. So it is run on several. Some are so
large that few have a sum and many do not: a mean of equal rows tells their number then, and by its last digit always.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from discreet.engine.proof.call_proof import SOURCE, CallProof
from discreet.engine.proof.forms.provable_call import ProvableCall, apart_from_the_run
from discreet.engine.proof.generic_values import Pattern, Range, ranges
from discreet.engine.trace.capture import RecordAxis


class _Scaled(enum.Enum):
    """Moderate numbers made larger; of the largest, FEW have a sum, and MANY do not."""

    WHOLE = 1
    OF_ONE_SIGN = 2
    OF_BOTH_SIGNS = 3

    def of(self, row: Tensor, place: int) -> Tensor:
        """In place of these values of one tensor; large ones differ by so much that their differences are large."""
        if not row.is_floating_point():
            return row
        if self is _Scaled.WHOLE:
            return (7 * row).round()
        large = torch.full_like(row, torch.finfo(row.dtype).max / 12 / 2**place)
        return large if self is _Scaled.OF_ONE_SIGN else large.copysign(row)


_TRIED: Final[tuple[Pattern | _Scaled, ...]] = (
    *(Pattern.SPREAD, Pattern.TIES, Pattern.ZERO, Pattern.ONE),
    *(Pattern.MODERATE, Pattern.SPREAD, Pattern.TIES) * 2,
    *(_Scaled.WHOLE,) * 5,
    *(_Scaled.OF_ONE_SIGN, _Scaled.OF_BOTH_SIGNS),
)


def runs_on_equal_rows(call: ProvableCall, sizes: Sequence[int]) -> list[list[list[Tensor]]] | None:
    """What a call gives for each number of records, on the same public tensors and equal rows; None if it fails.

    There is one such list for each draw of values, the moderate ones first; the others may fail. A call that takes no
    tensors is run once.
    """
    whole = [size for leaf in call.leaves for size in leaf.sizes if type(size) is int]
    SOURCE.restart()
    for within in ranges(whole, call.special, call.func):
        first = _outputs(call, sizes, within, Pattern.MODERATE, is_true=True)
        if first is not None and call.leaves:
            others = (_outputs(call, sizes, within, pattern) for pattern in _TRIED)
            return [first, *(one for one in others if one is not None)]
        if first is not None or not call.leaves:
            return None if first is None else [first]  # no choice
    return None


def _outputs(
    call: ProvableCall, sizes: Sequence[int], within: Range, pattern: Pattern | _Scaled, *, is_true: bool = False
) -> list[list[Tensor]] | None:
    """On one draw of values, `is_true` gives it conditions that leave nothing out."""
    with apart_from_the_run():
        proof = CallProof(call, within)
        steady = pattern if isinstance(pattern, Pattern) else Pattern.MODERATE
        pairs = [(leaf, proof.base(leaf, 1, steady)) for leaf in call.leaves]
        if isinstance(pattern, _Scaled):
            pairs = [
                (leaf, pattern.of(row, i) if isinstance(leaf.place, RecordAxis) else row)
                for i, (leaf, row) in enumerate(pairs)
            ]
        if is_true:
            pairs = [(leaf, torch.ones_like(row) if row.dtype == torch.bool else row) for leaf, row in pairs]
        runs = [proof.run([leaf.repeated(row, records) for leaf, row in pairs], records) for records in sizes]
    found = [run.outputs for run in runs if run is not None]
    return found if len(found) == len(runs) else None
