"""The processes of a sharded model make their passes together."""

from typing import Any, final

import numpy as np

from discreet.engine.shards.sharding import Sharding
from discreet.training.draws import Draw
from discreet.training.loader import Loader, MicroBatch
from discreet.training.rehearsal import Rehearsals


@final
class Turns:
    """Gives every process a micro-batch in every turn, until none of them has records left in the logical batch.

    A forward pass gathers parameters from all processes, but they draw different numbers of records, and rehearse at
    different times. A process that is done gets made-up records, as in a rehearsal; they add nothing to a sum.
    """

    def __init__(self, sharding: Sharding, rehearsals: Rehearsals, loader: Loader) -> None:
        self._sharding, self._rehearsals, self._loader = sharding, rehearsals, loader
        self._made: tuple[Any, int] | None = None

    def have_ended(self, own: bool) -> bool:
        """Whether all processes have ended their part of the logical batch; `own`: whether this one has."""
        return not self._sharding.any(not own)

    def stand_in(self) -> MicroBatch:
        """Made-up records for a process that has none left."""
        if self._made is None:
            (like,) = self._loader.load(iter([Draw(np.zeros(1, dtype=np.int64))]))
            self._made = next(iter(self._rehearsals.like(like.batch, like.records)))
        batch, size = self._made
        return MicroBatch(batch, size, is_last=True, stands_in=True)
