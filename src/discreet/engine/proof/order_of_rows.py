"""Records that change places: what they get must go with them, and so must rows of public tensors that it depends on.

`x == torch.arange(len(x))` gives a record something by its place, which leaves the call as it is if no entry equals
another. So records change places on several values, also on zeros and ones that public rows share with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from torch import Tensor

from discreet.engine.proof.forms.provable_call import Place
from discreet.engine.proof.generic_values import Pattern
from discreet.engine.proof.movement import agree, shifted
from discreet.engine.trace.capture import RecordAxis

if TYPE_CHECKING:
    from discreet.engine.proof.call_proof import CallProof

_MOST_CHOICES: Final = 32
_PATTERNS: Final = (Pattern.MODERATE, Pattern.TIES, Pattern.ZERO, Pattern.ONE, Pattern.TIES)
_SHARED: Final = (Pattern.ZERO, Pattern.ONE)  # of these, public rows hold zeros and ones, too

Rows = tuple[tuple[int, RecordAxis], ...]
_Trial = tuple[list[Tensor], list[Tensor]]


def rows_by_place(proof: CallProof, places: Sequence[Place], records: int) -> Rows | None:
    """Public tensors whose rows must go with records that change places; None if records may not change places."""
    leaves, at = proof.call.leaves, records if len(proof.shapes) == 1 else None
    growing = [(i, leaf.growing(at)) for i, leaf in enumerate(leaves) if leaf.growing(at)]
    trials = list(_trials(proof, dict(growing), records))
    if not trials:
        return tuple((i, axes[0]) for i, axes in growing)
    choices = itertools.product(*([None, *axes] for _, axes in growing))
    for chosen in sorted(choices, key=lambda axes: sum(axis is not None for axis in axes))[:_MOST_CHOICES]:
        rows = tuple((i, axis) for (i, _), axis in zip(growing, chosen, strict=True) if axis is not None)
        if all(_go_along(proof, trial, places, rows, records) for trial in trials):
            return rows
    return None


def _trials(proof: CallProof, growing: dict[int, list[RecordAxis]], records: int) -> Iterator[_Trial]:
    """Values, and what the call gives for them; none if it fails on moderate ones."""
    for pattern in _PATTERNS:
        values = [proof.base(leaf, records, pattern) for leaf in proof.call.leaves]
        for i in growing if pattern in _SHARED else ():
            values[i] = proof.few_values(proof.call.leaves[i], records)
        before = proof.run(values, records)
        if before is not None:
            yield values, before.outputs
        elif pattern is Pattern.MODERATE:
            return


def _go_along(proof: CallProof, trial: _Trial, places: Sequence[Place], rows: Rows, records: int) -> bool:
    """Whether records that change places, with these rows, take what they get with them."""
    values, before = list(trial[0]), trial[1]
    own = [(i, leaf.place) for i, leaf in enumerate(proof.call.leaves) if isinstance(leaf.place, RecordAxis)]
    for i, axis in (*own, *rows):
        values[i] = shifted(values[i], axis, records)
    after = proof.run(values, records)
    return after is not None and all(
        agree(shifted(old, place, records), new) if isinstance(place, RecordAxis) else agree(old, new)
        for old, new, place in zip(before, after.outputs, places, strict=True)
        if old.shape == new.shape
    )
