"""What a watched call made: the lineage of its results, by the proof of the call, and who is to blame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from discreet.engine.proof.blame import BY_PLACE, UNINITIALISED, blame_for, here
from discreet.engine.proof.call_forms import Reading
from discreet.engine.proof.draws.read_draws import draws_used
from discreet.engine.proof.lineage import MIXED, PUBLIC, SOLE, Blame, PublicRows
from discreet.engine.proof.provable_call import ALL_FOLLOW, Numbers, Place
from discreet.engine.proof.public_rows import is_rows, public_rows
from discreet.engine.proof.verdicts import Form, mixed, verdict_on
from discreet.engine.proof.watched_functions import HIDDEN, leaves_memory


class Judged(NamedTuple):
    """What a call made: the lineage of each tensor, what mixed records, which numbers followed the number of records,
    and how public tensors follow it."""

    places: Sequence[Place]
    blame: Blame | None = None
    numbers: Numbers = ALL_FOLLOW
    rows: Sequence[PublicRows | None] | None = None


def judged(
    form: Form, func: Any, args: Any, kwargs: Any, reading: Reading, made: list[Tensor], *, on_records: bool
) -> Judged:
    """The lineage of what a call made, if nothing that it took was mixed."""
    hidden = UNINITIALISED if leaves_memory(func) else HIDDEN.get(func)
    if hidden is not None:
        return Judged([MIXED] * len(made), here(hidden))
    if func is Tensor.__deepcopy__ and _is_copy(reading.tensors[0], made[0]):
        return Judged([reading.origins[0].lineage])
    has_rows = any(origin.rows is not None for origin in reading.origins)
    if not on_records:
        if reading.opaque is not None:
            verdict = mixed(made, f"it takes {reading.opaque.value}, which was not watched")
            return Judged(verdict.outputs, blame_for(func, verdict))
        rows = public_rows(form, func, args, kwargs, reading, made) if form.follows or has_rows else None
        return Judged([PUBLIC] * len(made), rows=rows)
    if reading.records == 1:
        return Judged([SOLE] * len(made))
    verdict = verdict_on(form, func, args, kwargs, reading, made)
    read = None
    if has_rows:
        drawn = (made[0], verdict.outputs[0]) if form.draws and made else None
        used = draws_used(reading.origins, reading.tensors, verdict.rows, drawn)
        read = [PublicRows(proven=frozenset([(verdict.followed, frozenset())]), used=used)] * len(made)
    if verdict.rows and not all(is_rows(reading.origins[i], axis) for i, axis in verdict.rows):
        verdict = mixed(made, BY_PLACE)
    blame = blame_for(func, verdict) if MIXED in verdict.outputs else None
    return Judged(verdict.outputs, blame, verdict.numbers, read)


def _is_copy(tensor: Tensor, made: Tensor) -> bool:
    """Whether a tensor holds what another does, with no graph of its own: a memo can give back anything."""
    with torch._C.DisableTorchFunction():
        same = made.shape == tensor.shape and made.dtype == tensor.dtype and made.grad_fn is None
        return same and torch.allclose(made, tensor, rtol=0.0, atol=0.0, equal_nan=True)
