"""An update on trial: it is tested on a fresh sample before it is kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from discreet.accounting.events import Event
from discreet.core import check
from discreet.core.world import World
from discreet.stages.aggregation import sum_of_numbers
from discreet.stages.context import StepContext
from discreet.stages.gaussian import GaussianNoise
from discreet.stages.plan import Plan


@final
class CandidateUpdate:
    """Losses of one sample with the old parameters, then with the candidate, and the decision.

    The candidate comes from a release, so that it is public; the losses are not, and leave through a noisy test.
    """

    def __init__(
        self, parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, update: Callable[[], None]
    ) -> None:
        self._parameters, self._optimizer = parameters, optimizer
        self._old = [parameter.detach().clone() for parameter in parameters]
        self._state = copy.deepcopy(optimizer.state_dict())
        update()
        self._candidate = [parameter.detach().clone() for parameter in parameters]
        self._put(self._old)
        self._losses: list[list[Tensor]] = [[], []]
        self._on_candidate = False

    def add(self, losses: Tensor, records: int, views: int) -> None:
        """The losses of a micro-batch of the sample."""
        rows = records * views
        check.require(
            losses.shape == (rows,),
            f"per-sample losses of shape [{rows}]",
            f"shape {list(losses.shape)}",
            'build the loss with reduction="none" and reduce each record to one number',
        )
        self._losses[self._on_candidate].append(losses.detach().double().view(records, views).mean(1))

    def went_through(self) -> bool:
        """The sample has ended: False the first time, when the candidate is to see it too."""
        if self._on_candidate:
            return True
        self._put(self._candidate)
        self._on_candidate = True
        return False

    def decide(
        self, plan: Plan, context: StepContext, charge: Callable[[Event, int], None], world: World
    ) -> bool:
        """Pay, test, and keep the candidate or put everything back."""
        old, new = (torch.cat(losses) if losses else torch.zeros(0) for losses in self._losses)
        (query,) = plan.acceptance.queries()
        change = sum_of_numbers(new.double() - old.double(), query.sensitivity, world)
        charge(plan.test_at(context.step), context.step)
        noise = plan.noise_at(context.step)
        (noisy,) = GaussianNoise().release([change], [query], noise, context)
        world.broadcast_(noisy)  # one draw of noise, and one decision, for all processes
        kept = plan.acceptance.accepts(float(noisy) / context.batch)
        if not kept:
            self._put(self._old)
            self._optimizer.load_state_dict(self._state)
        return kept

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)
