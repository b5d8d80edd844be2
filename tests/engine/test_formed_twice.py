"""Gradients that are made twice: the norms and sums of those that are kept, bit by bit, and less memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet.core.check import Refused
from discreet.engine.engine import Engine
from discreet.engine.factors import gradients
from discreet.engine.factors import linear as outer
from discreet.engine.factors.formed_twice import FormedTwice
from discreet.engine.factors.groups import Joined, UnitRows
from discreet.engine.factors.linear import Outer
from discreet.engine.factors.parts import FormedGradients, GradientBuffer
from discreet.engine.layout import Lines, Mask
from discreet.engine.memory import kept_bytes

RECORDS, LENGTH, WIDTHS = 6, 5, (7, 8, 3)


@pytest.fixture(autouse=True)
def no_gram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer, "GRAM_RATIO", 0.0)


def made(monkeypatch: pytest.MonkeyPatch, *, twice: bool) -> None:
    monkeypatch.setattr(outer, "TWICE_RATIO", math.inf if twice else 0.0)
    monkeypatch.setattr(gradients, "KEEP_ANYWAY", 0)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(WIDTHS)]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1])


def records(kind: str) -> Tensor:
    x = torch.randn(RECORDS, LENGTH, WIDTHS[0], generator=torch.Generator().manual_seed(1))
    if kind == "not finite":
        x[2, 0, 0] = torch.inf
    if kind == "cancels":  # the gradients of the two halves nearly cancel: they are made again in float64
        x[3] = 1.0
    return x


def losses(scores: Tensor, kind: str) -> Tensor:
    if kind != "cancels":
        return scores.square().sum((1, 2))
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1e-4]).view(1, -1, 1)
    return (scores * signs).sum((1, 2))


def passed(kind: str) -> Engine:
    engine, x = Engine(network()), records(kind)
    engine.begin(RECORDS, units=UnitRows((1, 2, 3)) if kind == "units" else None)
    engine.backward(losses(engine.model(x), kind))
    return engine


def mask_of(kind: str, engine: Engine) -> Mask | None:
    generator = torch.Generator().manual_seed(2)
    shapes = engine.layout.shapes
    if kind == "elements":
        return Mask(tuple(torch.rand(shape, generator=generator) < 0.5 for shape in shapes))
    if kind == "lines":
        rows = (torch.rand(shape[0], generator=generator) < 0.5 for shape in shapes)
        return Mask(
            tuple(Lines(own, None) if len(shape) == 2 else True for own, shape in zip(rows, shapes, strict=True))
        )
    return None


def kinds_of(engine: Engine) -> list[type]:
    found: list[type] = []
    for own in engine._collected().factors():
        found += [type(one) for one in (own.members if isinstance(own, Joined) else [own])]
    return found


@pytest.mark.parametrize("kind", ["plain", "elements", "lines", "units", "not finite", "cancels"])
def test_norms_and_sums_are_those_of_kept_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for twice in (False, True):
        made(monkeypatch, twice=twice)
        engine = passed(kind)
        assert (FormedTwice in kinds_of(engine)) is twice
        mask, totals = mask_of(kind, engine), engine.zeros(2)
        rows = torch.cat(list(engine.rows(mask, chunk=4)))
        norms = engine.norms(mask=mask)
        engine.add_weighted(torch.stack([1 / norms, 1 / (1 + norms)]), totals, mask=mask, is_last=True)
        found.append((norms, totals, rows))
    assert bool(found[0][1].any())
    assert torch.equal(found[0][0].nan_to_num(), found[1][0].nan_to_num())
    assert torch.equal(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][2], found[1][2])


def test_gradients_that_cancel_are_repaired_both_times() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(3, 2, 4, generator=generator), torch.randn(3, 2, 6, generator=generator)
    left[1, 1], right[1, 1] = -left[1, 0] * (1 - 2.0**-20), right[1, 0]
    part = Outer(left, right, (4, 6))
    once, twice = GradientBuffer().fill("once", part), FormedTwice(part, GradientBuffer())
    exact = torch.einsum("npa,npb->nab", part.left_NPA.double(), part.right_NPB.double()).float()
    assert not torch.equal(part.instantiate(0, 3)[1], exact[1])  # else the test shows nothing
    for grads in (once.grads_N, twice.formed().grads_N, twice.instantiate(0, 3)):
        assert torch.equal(grads[1], exact[1])
    assert torch.equal(once.norms, twice.norms)
    assert torch.equal(twice.instantiate(1, 2)[0], exact[1])


def test_only_the_largest_gradient_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, twice=True)
    engine = passed("plain")
    largest = max(a * b for a, b in itertools.pairwise(WIDTHS))
    assert sum(own.numel() for own in engine._room._kept.values()) == RECORDS * largest
    factors = RECORDS * LENGTH * sum(a + b for a, b in itertools.pairwise(WIDTHS))
    biases = RECORDS * sum(WIDTHS[1:])
    assert kept_bytes(engine._collected().factors()) == 4 * (factors + biases)


def test_few_gradients_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the backward pass, as many as there is room for."""
    made(monkeypatch, twice=True)
    monkeypatch.setattr(gradients, "KEEP_ANYWAY", RECORDS * WIDTHS[1] * WIDTHS[2])
    assert kinds_of(passed("plain")) == [FormedTwice, FormedGradients, FormedGradients, FormedGradients]


@pytest.mark.parametrize(("positions", "is_kept"), [(64, False), (128, True)])
def test_large_gradients_that_cost_little_are_made_twice(positions: int, is_kept: bool) -> None:
    """The queries of SmolLM2-135M at 64 tokens, and at 128."""
    part = Outer(torch.zeros(1, positions, 576), torch.zeros(1, positions, 576), (576, 576))
    assert part.is_rather_made_twice is not is_kept


def other_values(monkeypatch: pytest.MonkeyPatch, twice: FormedTwice) -> None:
    write = Outer.write

    def wrong(own: Outer, start: int, stop: int, out: Tensor) -> None:
        write(own, start, stop, out)
        out[0] *= 1.001

    monkeypatch.setattr(Outer, "write", wrong)


def written_to(monkeypatch: pytest.MonkeyPatch, twice: FormedTwice) -> None:
    assert isinstance(twice.part, Outer)
    twice.part.left_NPA[0] *= 1.001


@pytest.mark.parametrize("change", [other_values, written_to])
@pytest.mark.parametrize(
    "use",
    [
        lambda twice: twice.add_weighted(torch.ones(1, 3), torch.zeros(1, 4, 6)),
        lambda twice: twice.take(torch.tensor([0, 2])),
        lambda twice: twice.formed(),
    ],
)
def test_other_gradients_than_were_measured_are_refused(
    use: Callable[[FormedTwice], Any],
    change: Callable[[pytest.MonkeyPatch, FormedTwice], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twice = FormedTwice(Outer(torch.randn(3, 2, 4), torch.randn(3, 2, 6), (4, 6)), GradientBuffer())
    use(twice)
    change(monkeypatch, twice)
    with pytest.raises(Refused, match=r"made again|written to"):
        use(twice)
