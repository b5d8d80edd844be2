"""Checkpointed models: norms from a first backward pass, sums from a second one, and no factors between them."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from discreet.core.check import Refused
from discreet.engine.engine import Engine
from discreet.engine.factors.linear import Outer
from discreet.engine.layout import Mask

RECORDS, LENGTH, WIDTH, BLOCKS = 5, 4, 6, 6


class Stack(nn.Module):
    """Blocks that may be checkpointed, with a tied projection, dropout and a layer outside of all regions."""

    def __init__(self, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.words = nn.Embedding(9, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Linear(8, WIDTH))
            for _ in range(BLOCKS)
        )
        self.last = nn.Linear(WIDTH, WIDTH)
        self.scale: Callable[[Tensor], Tensor] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens)
        for block in self.blocks:
            h = h + (checkpoint(block, h, use_reentrant=False) if self.is_checkpointed else block(h))
        h = self.last(h)
        if self.scale is not None:
            h.register_hook(self.scale)
        scores: Tensor = h @ self.words.weight.T
        return scores


def stack(*, is_checkpointed: bool, dtype: torch.dtype = torch.float64) -> Stack:
    torch.manual_seed(0)
    return Stack(is_checkpointed=is_checkpointed).to(dtype).train()


def tokens() -> Tensor:
    return torch.randint(0, 9, (RECORDS, LENGTH), generator=torch.Generator().manual_seed(1))


def after_backward(
    model: nn.Module, *, is_followed: bool = True, x: Tensor | None = None, factors: Tensor | None = None
) -> Engine:
    """An engine with the gradients of one micro-batch, of losses that are multiplied by `factors`."""
    engine, x = Engine(model), tokens() if x is None else x
    engine.script((x,), {}, len(x))
    torch.manual_seed(2)  # the same dropout
    engine.begin(len(x))
    if is_followed:
        engine.follow((x,), len(x))
    losses = model(x).sin().sum((1, 2))
    engine.backward(losses if factors is None else losses * factors)
    return engine


def summed(engine: Engine, groups: Any, clipped: Mask | None, mask: Mask | None) -> tuple[Tensor, Tensor]:
    """Norms, and sums of two queries with weights that depend on them."""
    norms = engine.norms(groups, clipped)
    total = engine.zeros(2)
    engine.add_weighted(torch.stack([1 / norms, 1 / (1 + norms)]), total, groups, mask)
    return norms, total


@pytest.mark.parametrize("kind", ["plain", "groups", "clip, then freeze", "freeze, then clip"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_sums_are_those_of_one_pass(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    engines = [after_backward(stack(is_checkpointed=own, dtype=dtype)) for own in (False, True)]
    size = len(engines[0].layout.names)
    groups = [list(range(0, size, 2)), list(range(1, size, 2))] if kind == "groups" else None
    mask = Mask(tuple(index % 3 != 0 for index in range(size))) if "freeze" in kind else None
    (norms, total), (other_norms, other) = (
        summed(engine, groups, mask if kind.startswith("freeze") else None, mask) for engine in engines
    )
    assert torch.allclose(other_norms, norms, rtol=tolerance)
    assert float((other - total).norm()) <= tolerance * float(total.norm())
    assert torch.allclose(engines[1].per_sample(0, RECORDS), engines[0].per_sample(0, RECORDS), rtol=1e-4, atol=1e-6)


def test_factors_of_different_blocks_are_never_held_together(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Outer] = weakref.WeakSet()
    most = [0]
    make = Outer.__init__

    def counted(own: Outer, *args: Any) -> None:
        make(own, *args)
        alive.add(own)
        most[0] = max(most[0], len(alive))

    monkeypatch.setattr(Outer, "__init__", counted)
    held = {}
    for is_checkpointed in (False, True):
        engine = after_backward(stack(is_checkpointed=is_checkpointed))
        engine.discard()
        engine.begin(RECORDS)
        most[0] = 0
        engine.backward(engine.model(tokens()).sin().sum((1, 2)))
        summed(engine, None, None, None)
        held[is_checkpointed] = most[0]
        engine.close()
    assert held[False] > BLOCKS
    assert held[True] <= 4  # the tied weight's, and one being measured in float64


@pytest.mark.parametrize("is_summed", [False, True])
def test_nothing_of_a_pass_stays_behind(is_summed: bool) -> None:
    model = stack(is_checkpointed=True)
    made: list[weakref.ref[Tensor]] = []
    model.last.register_forward_hook(lambda module, args, output: made.append(weakref.ref(args[0])))
    gc.collect()
    gc.disable()
    try:
        engine = after_backward(model, is_followed=False)
        if is_summed:
            summed(engine, None, None, None)
        assert made[-1]() is not None
        engine.discard()
        assert made[-1]() is None
    finally:
        gc.enable()


def test_a_record_that_is_not_finite_contributes_zero() -> None:
    model, factors = stack(is_checkpointed=True), torch.ones(RECORDS).double()
    factors[2] = torch.nan
    engine = after_backward(model, is_followed=False, factors=factors)
    assert engine.finite().tolist() == [True, True, False, True, True]
    total = engine.zeros()
    engine.add_weighted(torch.tensor([[[0.0, 0.0, 1.0, 0.0, 0.0]]]).double(), total)
    assert not total.any()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_leaving_one_record_out_moves_the_sum_by_at_most_the_clip(scale: float) -> None:
    model = stack(is_checkpointed=True, dtype=torch.float32).eval()
    x, factors = tokens(), scale * torch.tensor([1.0, -1.0, 3.0, 1e-6, 1e6])
    sums = []
    for kept in (torch.arange(RECORDS), *(torch.arange(RECORDS)[torch.arange(RECORDS) != out] for out in (0, 3, 4))):
        engine = after_backward(model, is_followed=False, x=x[kept], factors=factors[kept])
        total = engine.zeros()
        engine.add_weighted((1 / engine.norms()).unsqueeze(0), total)
        sums.append(total[0].double())
        engine.close()
    moved = [float((sums[0] - one).norm()) for one in sums[1:]]
    assert all(1 - 1e-4 < move <= 1 + 1e-5 for move in moved), moved


def test_gradients_that_change_when_they_are_computed_again() -> None:
    """Their norms were measured in the first pass; the second must sum the same ones."""
    model = stack(is_checkpointed=True)
    scales: Iterator[float] = itertools.count(1.0)
    engine = after_backward(model, is_followed=False)
    engine.discard()
    model.scale = lambda gradient: gradient * next(scales)
    engine.begin(RECORDS)
    engine.backward(model(tokens()).sin().sum((1, 2)))
    with pytest.raises(Refused, match="the same gradients when it runs again"):
        summed(engine, None, None, None)
