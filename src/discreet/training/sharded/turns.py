"""The processes of a sharded model make their passes together."""

from typing import Any, final

import numpy as np
import torch

from discreet.core import check
from discreet.engine.shards.sharding import Sharding
from discreet.stages.combination import TakeFirst
from discreet.stages.domain import Unbounded
from discreet.stages.plan import Plan
from discreet.training.binding import records_in
from discreet.training.collate import kept
from discreet.training.draws import Draw
from discreet.training.loader import Loader, MicroBatch, to_device
from discreet.training.rehearsal import Rehearsals


@final
class Turns:
    """Gives every process a micro-batch in every turn, until none of them has records left in the logical batch.

    A forward pass gathers parameters from all processes, but they draw different numbers of records, and rehearse at
    different times. A process that is done gets made-up records, as in a rehearsal; they add nothing to a sum. So does
    a loop whose step has drawn no record: what the user does once a step must not show that.

    loader  of the records of this process; None if it has none, or if the user brings them
    """

    def __init__(
        self, sharding: Sharding | None, rehearsals: Rehearsals, loader: Loader | None, device: torch.device
    ) -> None:
        self._sharding, self._rehearsals, self._loader, self._device = sharding, rehearsals, loader, device
        self._made: tuple[Any, int] | None = None

    @property
    def are_shared(self) -> bool:
        """Whether a pass is one of all processes: the model is sharded."""
        return self._sharding is not None

    def have_ended(self, own: bool) -> bool:
        """Whether the logical batch has ended: in this process (`own`), and for a sharded model in all of them."""
        return own if self._sharding is None else not self._sharding.any(not own)

    @property
    def can_stand_in(self) -> bool:
        """Whether the form of a batch is known."""
        return self._made is not None or self._loader is not None or self._rehearsals.given is not None

    def learn(self, batch: Any, records: int) -> None:
        """The form of batches that the user brings."""
        if self._made is None:
            self._made = next(iter(self._rehearsals.like(batch, records)))

    def learn_given(self, batch: Any) -> None:
        """The form of a batch of the user's, if none is known yet."""
        if not self.can_stand_in and (records := records_in(batch)):
            self.learn(to_device(batch, self._device), records)

    def stand_in(self) -> MicroBatch:
        """Made-up records in place of those that a process has not, or has not left."""
        if self._loader is None:
            self.learn(None, 0)  # of the public records that the user has given, or known
        elif self._made is None:
            (like,) = self._loader.load(iter([Draw(np.zeros(1, dtype=np.int64))]))
            self.learn(like.batch, like.records)
        assert self._made is not None
        batch, size = self._made
        return MicroBatch(kept(batch), size, is_last=True, stands_in=True)  # what the loop writes must not come back


def check_sharded(plan: Plan, data: Any, sharding: Sharding | None) -> None:
    """Refuse, by name, methods that need the whole gradient in one process; and a process without a record."""
    if sharding is None:
        return
    bounder = plan.bounder
    reasons = {
        "adds noise that depends on more than one coordinate": not plan.mechanism.is_independent,
        "draws its noise in one process": not plan.mechanism.in_parts,
        "selects coordinates": not plan.selection.takes_all or plan.selection.counting is not None,
        "combines several sums": not isinstance(plan.combination, TakeFirst) or len(bounder.vectors(1.0)) > 1,
        "releases numbers besides the gradient": bool(bounder.scalars()),
        "needs all coordinates of a gradient at once": bounder.contribution_map({}) is not None,
        "learns from public records": bounder.public_records > 0,
        "tests its updates": plan.has_tests,
        "projects the parameters": not isinstance(plan.domain, Unbounded),
        "is certified for its final parameters only": not plan.analysis.visible,
        "protects users": not plan.unit.is_record,
    }
    came = [reason for reason, holds in reasons.items() if holds]
    expected = "a method that sums and noises every coordinate by itself, for a sharded model"
    remedy = "use methods.dp_sgd, or a model that every process holds as a whole"
    check.require(not came, expected, f"{plan.method}, which {' and '.join(came)}", remedy)
    remedy = "give every process at least one record: its passes gather the parameters for all of them"
    check.require(data is not None and len(data) > 0, "records in every process of a sharded model", "none", remedy)
