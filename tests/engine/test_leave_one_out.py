"""Removing one record never moves a bounded sum by more than its sensitivity, on adversarial inputs.

The tolerance, and why. A contribution may exceed its weight times its norm by a relative 2^-17 (factors.py). Sums
are float32: adding N contributions of at most C each rounds by at most N 2^-24 of a running sum of at most N C, in
either batch; and terms that cancel less than 2^9-fold, which are not summed apart, round by 2^-24 2^9 of what is
left of them, in each record. So the difference of two sums is known up to
    C (2^-17 + 2 N^2 2^-24 + 2 N 2^-15),  0.0007 C for N = 11.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import Bare, Gpt, parameter
from torch import Tensor, nn

from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.factors import convolution
from discreet.engine.factors import linear as outer
from discreet.engine.factors import parts as factors
from discreet.methods.dicesgd.stages import FeedbackNormalised, TwoLevel
from discreet.methods.dp_sgd.clipping import AdaptiveQuantile, PerLayer
from discreet.methods.gep.clipping import EmbeddingClip
from discreet.methods.gep.subspace import BASIS, Subspace
from discreet.stages.aggregation import Aggregation
from discreet.stages.clipping import AutoS, Bounder, FlatClip, Psac
from discreet.stages.selection import Order

BOUNDERS: dict[str, Bounder] = {
    "flat": FlatClip(1.0),
    "flat, small": FlatClip(1e-4),
    "auto-s": AutoS(1.0),
    "normalised": FeedbackNormalised(0.5),
    "psac": Psac(1.0),
    "per layer": PerLayer(1.0),
    "two-level": TwoLevel(1.0, 9.0),
    "adaptive": AdaptiveQuantile(1.0),
}
STRATEGIES: dict[str, list[tuple[Any, str, Any]]] = {
    "as it comes": [],
    "gram, nothing is kept": [(outer, "GRAM_RATIO", math.inf), (factors, "KEEP_ELEMENTS", 64)],
    "no gram, nothing is kept": [
        (outer, "GRAM_RATIO", 0.0),
        (factors, "KEEP_ELEMENTS", 64),
        (convolution, "GROUPED_CHANNEL_PAIRS", 0),
    ],
}
SPECIAL = (0.0, 1e30, -1e30, 3e38, math.nan, math.inf, -math.inf, 1e-42, 1e-30)


def adversarial(*shape: int) -> Tensor:
    """Two ordinary records, a repeated one, one of each special value, one with a single special entry."""
    ordinary = torch.randn(2, *shape)
    rows = [*ordinary, ordinary[1], *(torch.full(shape, value) for value in SPECIAL)]
    mixed = torch.randn(shape)
    mixed.view(-1)[0] = 1e25
    return torch.stack([*rows, mixed])


def tolerance(records: int) -> float:
    return 2**-17 + 2 * records**2 * 2**-24 + 2 * records * 2**-15


def sums_of(
    engine: Engine, bounders: dict[str, Bounder], x: Tensor, losses: Callable[[Tensor, Tensor], Tensor], rows: Tensor
) -> Any:
    """The bounded sums of one batch, by every bounder."""
    found = {}
    for name, bounder in bounders.items():
        engine.begin(len(rows))
        engine.backward(losses(engine.model(x[rows]), rows))
        aggregation = Aggregation(bounder, 1.0, engine, None, Order.FREEZE_THEN_CLIP)
        aggregation.add()
        sums = aggregation.sums(World())
        vectors, scalars = sums.vectors, sums.scalars
        found[name] = [*vectors, *scalars]
    return found


def worst_move(
    model: nn.Module, x: Tensor, losses: Callable[[Tensor, Tensor], Tensor], bounders: dict[str, Bounder] = BOUNDERS
) -> dict[str, float]:
    """The largest move of any sum, over the sensitivity that it states, when one record is removed."""
    engine, everyone = Engine(model), torch.arange(len(x))
    engine.script((x,), {}, len(x))
    whole = sums_of(engine, bounders, x, losses, everyone)
    worst = dict.fromkeys(bounders, 0.0)
    for record in range(len(x)):
        without = sums_of(engine, bounders, x, losses, everyone[everyone != record])
        for name in bounders:
            for a, b in zip(whole[name], without[name], strict=True):
                assert bool(a.value.isfinite().all())
                moved = float((a.value.double() - b.value.double()).norm())
                worst[name] = max(worst[name], moved / a.sensitivity)
    return worst


def plain_losses(output: Tensor, rows: Tensor) -> Tensor:
    """Linear in the outputs: the output gradients are constants, whatever the record holds."""
    flat = output.reshape(len(rows), -1)
    return flat @ torch.linspace(-1, 1, flat.shape[1])


def squared_losses(output: Tensor, rows: Tensor) -> Tensor:
    return output.reshape(len(rows), -1).square().sum(1)


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), lambda: adversarial(6)),
    "sequence": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), lambda: adversarial(9, 6)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2)), lambda: adversarial(2, 6, 6)),
    "norms": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.PReLU()),
        lambda: adversarial(6),
    ),
    "bare": (
        lambda: Bare(
            lambda own, x: torch.tanh(x * own.scale.exp() + own.shift) @ own.weight.t(),
            scale=parameter(),
            shift=parameter(6),
            weight=parameter(3, 6),
        ),
        lambda: adversarial(6),
    ),
    "lstm": (
        lambda: Bare(lambda own, x: own.net(x)[0], net=nn.LSTM(4, 3, batch_first=True)),
        lambda: adversarial(5, 4),
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        lambda: adversarial(5, 4),
    ),
}


CASES = [
    (family, strategy, losses)
    for family in FAMILIES
    for strategy in STRATEGIES
    for losses in (plain_losses, squared_losses)
    if losses is plain_losses or strategy == "as it comes"
]


@pytest.mark.parametrize(("family", "strategy", "losses"), CASES)
def test_special_values(family: str, strategy: str, losses: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs = FAMILIES[family]
    for module, constant, value in STRATEGIES[strategy]:
        monkeypatch.setattr(module, constant, value)
    x = inputs()
    for name, moved in worst_move(make(), x, losses).items():
        assert moved <= 1 + tolerance(len(x)), name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tokens(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tied transformer: losses a thousand and a billion times too large, zero, and not finite."""
    for module, constant, value in STRATEGIES[strategy]:
        monkeypatch.setattr(module, constant, value)
    ids = torch.randint(0, 10, (9, 6))
    ids[3], ids[4] = 7, ids[2]
    factor = torch.tensor([1.0, 1e-30, 1e3, 1e9, 0.0, math.nan, math.inf, 1e30, 1.0])

    def losses(output: Tensor, rows: Tensor) -> Tensor:
        return squared_losses(output, rows) * factor[rows]

    for name, moved in worst_move(Gpt(by_ids=True), ids, losses).items():
        assert moved <= 1 + tolerance(9), name


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("scale", [100.0, 1e10])
def test_alternating_output_gradients(scale: float, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 positions whose gradients cancel: Gram norms would be anything, and so would float32 sums."""
    for module, constant, value in STRATEGIES[strategy]:
        monkeypatch.setattr(module, constant, value)
    signs = scale * (-1.0) ** torch.arange(64)
    directions = torch.randn(8, 1, 16)
    x = torch.randn(8, 1, 16) + 1e-6 * torch.randn(8, 64, 16)

    def losses(output: Tensor, rows: Tensor) -> Tensor:
        return (output * directions[rows] * signs.view(1, 64, 1)).sum((1, 2))

    models: list[nn.Module] = [
        nn.Linear(16, 16, bias=False),
        Bare(lambda own, x: F.conv1d(x.transpose(1, 2), own.w).transpose(1, 2), w=parameter(16, 16, 1)),
    ]
    for model in models:
        for name, moved in worst_move(model, x, losses).items():
            assert moved <= 1 + tolerance(8), name


def test_the_check_finds_a_bound_that_does_not_hold() -> None:
    """Stated bounds that are too small by 1 %, and an engine that takes a fifth off its norms."""

    class Understated(FlatClip):
        def vectors(self, scale: float) -> Any:
            (query,) = super().vectors(scale)
            return (type(query)(0.99 * query.sensitivity),)

    x = adversarial(6)
    make, _ = FAMILIES["linear"]
    understated: dict[str, Bounder] = {"understated": Understated(0.1)}
    assert worst_move(make(), x, squared_losses, understated)["understated"] > 1 + tolerance(len(x))
    with pytest.MonkeyPatch.context() as patched:
        whole = Engine.norms
        patched.setattr(Engine, "norms", lambda self, *args: whole(self, *args) * 0.8)
        moved = worst_move(make(), x, squared_losses)
    assert all(moved[name] > 1.1 for name in ("flat, small", "normalised"))


def test_a_record_that_is_not_finite_is_silent_and_others_are_untouched() -> None:
    x = torch.randn(5, 6)
    for value in (math.nan, math.inf, -math.inf):
        bad = x.clone()
        bad[2, 3] = value
        engine = Engine(FAMILIES["linear"][0]())
        engine.script((x,), {}, 5)
        everyone, others = torch.arange(5), torch.tensor([0, 1, 3, 4])
        spoilt = sums_of(engine, BOUNDERS, bad, plain_losses, everyone)
        clean = sums_of(engine, BOUNDERS, x, plain_losses, others)
        for name in BOUNDERS:
            for a, b in zip(spoilt[name][:1], clean[name][:1], strict=True):
                assert torch.allclose(a.value, b.value, atol=1e-6)


def test_huge_gradients_are_clipped_not_dropped() -> None:
    """1e30 is finite: the record keeps its direction."""
    engine = Engine(nn.Linear(3, 1, bias=False))
    engine.begin(1)
    engine.backward(engine.model(torch.tensor([[1e30, 0.0, 0.0]])).sum(1))
    total = engine.zeros()
    engine.add_weighted(FlatClip(1.0).weights(engine.norms(), 1.0), total)
    assert total[0].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-5)


class OfConstantImages(nn.Module):
    """A convolution of constant images whose output gradients add up to zero: all terms of its gradient cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.convolution(x[:, :4]) * x[:, 4:, :-2, :-2]).flatten(1).sum(1)


@pytest.mark.parametrize("records", [33, 64])
def test_rounding_does_not_depend_on_the_number_of_records(records: int) -> None:
    """More records than one grouped convolution takes, so that some are left over."""
    torch.manual_seed(0)
    images = 1e4 * (1 + torch.rand(records, 4, 1, 1)).expand(-1, -1, 18, 18)
    outputs = torch.randn(records, 8, 18, 18)
    outputs[:, :, 8:16, :16] = -outputs[:, :, :8, :16].flip(2)
    x, net = torch.cat([images, outputs], 1), OfConstantImages()

    def clipped_sum(x: Tensor) -> Tensor:
        engine = Engine(net)
        sums = Aggregation(FlatClip(1.0), 1.0, engine, None, Order.FREEZE_THEN_CLIP)
        engine.begin(len(x))
        engine.backward(net(x))
        sums.add()
        engine.close()
        return sums.sums(World.current()).vectors[0].value.double()

    whole = clipped_sum(x)
    for left_out in (0, records // 2, records - 1):
        assert float((whole - clipped_sum(x[torch.arange(records) != left_out])).norm()) <= 1.001


def test_autocast_around_the_step_rounds_no_sum() -> None:
    """Nearly equal records, whose sum loses a record in half precision."""
    torch.manual_seed(0)
    x = torch.ones(600, 50) + 0.01 * torch.randn(600, 50)
    net = nn.Linear(50, 1, bias=False)
    bounder = EmbeddingClip(1.0, 0.4, Subspace(rank=0.2, groups=1))
    basis = {f"{BASIS}.0": torch.linalg.qr(torch.randn(50, 10)).Q.T.contiguous()}

    def sums(x: Tensor) -> list[Tensor]:
        engine = Engine(net)
        total = Aggregation(bounder, 1.0, engine, None, Order.FREEZE_THEN_CLIP, basis)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            engine.begin(len(x))
            engine.backward(net(x).squeeze(1).float())
            total.add()
        engine.close()
        return [one.value.double() for one in total.sums(World.current()).vectors]

    for whole, kept, bound in zip(sums(x), sums(x[1:]), (0.4, 1.0), strict=True):
        assert float((whole - kept).norm()) <= 1.001 * bound
