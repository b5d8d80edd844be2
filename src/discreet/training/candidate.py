"""A candidate update: the parameters before and after it, and the losses of a fresh batch with each."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from discreet.core import check
from discreet.engine.factors.groups import UnitRows
from discreet.stages.aggregation import without
from discreet.stages.values import Released

if TYPE_CHECKING:
    from discreet.training.step import Parameters


@final
class CandidateUpdate:
    """An update that is tested before it is kept. A fresh batch is evaluated twice: before and after the update.

    The candidate is computed from a release, so it is public. The losses are private and enter a noisy test only.
    """

    def __init__(self, parameters: Parameters, released: Released) -> None:
        self._trained, self._optimizer = parameters.trained, parameters.optimizer
        self._old = [parameter.detach().clone() for parameter in self._trained]
        self._state = copy.deepcopy(self._optimizer.state_dict())
        parameters.update(released)
        self._new = [parameter.detach().clone() for parameter in self._trained]
        self._set(self._old)
        self._losses: list[list[Tensor]] = [[], []]
        self._is_second_pass = False

    def add(
        self, losses: Tensor, records: int, views: int, units: UnitRows | None, vacant: Tensor | None = None
    ) -> None:
        """Add the losses of a micro-batch in the current pass; those of vacant rows are 0 in both."""
        rows = records * views
        got, remedy = f"shape {list(losses.shape)}", 'use reduction="none" and reduce each record to one number'
        check.require(losses.shape == (rows,), f"per-record losses of shape [{rows}]", got, remedy)
        each = without(vacant, losses.detach().double().view(records, views).mean(1))
        self._losses[self._is_second_pass].append(each if units is None else units.means(each))

    def needs_another_pass(self) -> bool:
        """Called after each pass. True after the first, with the updated parameters in place for the second."""
        if self._is_second_pass:
            return False
        self._set(self._new)
        self._is_second_pass = True
        return True

    def changes(self) -> Tensor:
        """The new loss minus the old loss of each record or user, [N]."""
        old, new = (torch.cat(losses) if losses else torch.zeros(0) for losses in self._losses)
        return new.double() - old.double()

    def undo(self) -> None:
        """Restore the parameters and the optimizer state."""
        self._set(self._old)
        self._optimizer.load_state_dict(self._state)

    @torch.no_grad()
    def _set(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self._trained, values, strict=True):
            parameter.copy_(value)
