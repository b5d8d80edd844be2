"""The self-check refuses gradients, norms and sums that are wrong for a single record or parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet.core.check import Refused
from discreet.engine import selfcheck
from discreet.engine.engine import Engine
from discreet.engine.trace.settings import SMALL


class Wrong:
    """Factors of one parameter with something changed: the gradients, the norms, or the weighted sum."""

    def __init__(self, own: Any, change: Callable[[Tensor], Tensor], *, sums: bool, norms: float = 1.0) -> None:
        self._own, self._change, self._sums = own, change, sums
        self.norms = own.norms * norms

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self._change(self._own.instantiate(0, SMALL))[start:stop]

    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        if self._sums:
            total += torch.einsum("qn,n...->q...", weights.to(total), self.instantiate(0, SMALL))
        else:
            self._own.add_weighted(weights, total)


class WrongSum(Wrong):
    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        self._own.add_weighted(1.003 * weights, total)


def one_record(gradients: Tensor, factor: float = 1.01) -> Tensor:
    factors = torch.ones(SMALL)
    factors[1] = factor
    return gradients * factors.view(-1, *[1] * (gradients.dim() - 1))


def same(rows: Tensor) -> Tensor:
    return rows


CHANGES: list[tuple[str, Any]] = [
    ("one record", lambda own: Wrong(own, one_record, sums=True)),
    ("one record, alone", lambda own: Wrong(own, one_record, sums=False)),
    ("two records exchanged", lambda own: Wrong(own, lambda rows: rows[[0, 2, 1]], sums=True)),
    ("the mean of all", lambda own: Wrong(own, lambda rows: rows.mean(0, keepdim=True).expand_as(rows), sums=True)),
    ("the sum goes round", lambda own: Wrong(own, lambda rows: rows.roll(1, 0), sums=True)),
    ("the norms", lambda own: Wrong(own, same, sums=False, norms=1.1)),
    # A record may move a sum by 1.001 clips at most, so no error of a thousandth is accepted.
    ("one record, by a thousandth", lambda own: Wrong(own, lambda rows: one_record(rows, 1.001), sums=True)),
    ("norms that are a thousandth too small", lambda own: Wrong(own, same, sums=False, norms=0.999)),
    ("the sum alone, by little", lambda own: WrongSum(own, same, sums=False)),
    ("no gradient", lambda own: None),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[name for name, _ in CHANGES])
@pytest.mark.parametrize("place", range(4))
def test_what_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, change: Any, place: int) -> None:
    begin = selfcheck._GradientComparison.__init__
    left = [place]

    def begun(own: Any, root: Any, factors: Any, half: bool) -> None:
        begin(own, root, change(factors) if left[0] == 0 else factors, half)
        left[0] -= 1

    monkeypatch.setattr(selfcheck._GradientComparison, "__init__", begun)
    with pytest.raises(Refused, match="to equal autograd's on random inputs"):
        Engine(network()).script((torch.randn(7, 4),), {}, 7)
