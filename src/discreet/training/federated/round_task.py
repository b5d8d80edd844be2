"""What the clients of a round need to make their contributions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from discreet.core import check
from discreet.core.plain import digest, from_plain, plain
from discreet.core.streams import Streams
from discreet.engine.active import Active
from discreet.engine.contributions import GivenVectors
from discreet.engine.layout import Layout, Mask
from discreet.stages.pipeline import Pipeline
from discreet.stages.selection import Order
from discreet.stages.values import StepContext


@final
@dataclass(frozen=True)
class Contribution:
    """What one client sends.

    values  its update on the active coordinates of the round, bounded, in float32
    norm    the norm before bounding, for plans that adapt the clipping norm; else None
    """

    values: Tensor
    norm: float | None


@final
@dataclass(frozen=True, kw_only=True)
class RoundTask:
    """One round as its clients see it: public, and the same for all of them.

    A client needs the recipe (or the plan) of the server besides, from which it takes clipping and selection.

    step             the round, from 0
    steps_per_epoch  for selections that change with the epoch
    names            the trained parameters, in the order of the vector
    scale            the state of the bounder: 1, unless the clipping norm adapts
    mask             the public key of the stream that draws masks, as hexadecimal digits
    stages           a digest of clipping and selection, which must be the client's
    """

    step: int
    steps_per_epoch: int
    names: tuple[str, ...]
    scale: float
    mask: str
    stages: str

    @staticmethod
    def stages_of(stages: Pipeline) -> str:
        """The digest of the stages that a client takes part in."""
        return digest([plain(stages.bounder), plain(stages.selection)])

    def to_json(self) -> str:
        """The text that goes to clients."""
        return json.dumps(plain(self))

    @staticmethod
    def from_json(text: str) -> RoundTask:
        """The task that `to_json` wrote."""
        task: RoundTask = from_plain(RoundTask, json.loads(text))
        return task

    def contribution(self, stages: Pipeline, update: Mapping[str, Tensor]) -> Contribution:
        """Bound the update of a client, as the server will do again, and keep its active coordinates only.

        stages  the recipe or the plan of the server
        update  for each trained parameter how far to move against it: the gradient, or parameters before - after
        """
        remedy = "give clients the recipe of the server's plan"
        same = self.stages_of(stages) == self.stages
        check.require(same, "the clipping and selection of the server", stages.method, remedy)
        missing = [name for name in self.names if name not in update]
        check.require(not missing, f"an update of {', '.join(missing[:3])}", "none", "name every trained parameter")
        layout = Layout(self.names, tuple(tuple(update[name].shape) for name in self.names))
        given, mask = GivenVectors(layout), self._mask(stages, layout)
        given.give(torch.cat([update[name].detach().flatten().double() for name in self.names]).unsqueeze(0))
        groups = stages.bounder.groups(layout)
        norms_GN = given.norms(groups, mask if stages.selection.order is Order.FREEZE_THEN_CLIP else None)
        bounded = given.zeros()
        given.add_weighted(stages.bounder.weights(norms_GN, self.scale)[:1], bounded, groups, mask)
        active = slice(None) if mask is None else Active.of(mask, layout, given.device).whole
        norm = float(norms_GN.square().sum().sqrt()) if stages.bounder.scalars() else None
        return Contribution(bounded[0, active].float(), norm)

    def _mask(self, stages: Pipeline, layout: Layout) -> Mask | None:
        """The mask of the round, drawn again from the public key."""
        streams = Streams.with_mask(bytes.fromhex(self.mask))
        now = StepContext(
            step=self.step, steps_per_epoch=self.steps_per_epoch, batch=1.0, layout=layout, streams=streams
        )
        return stages.selection.mask(now)
