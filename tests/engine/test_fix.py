"""Swapping what cannot be trained privately, and saying so."""

from __future__ import annotations

import pytest
import torch
from problems import losses_of
from torch import nn

import discreet
from discreet.core.check import Refused
from discreet.engine.engine import Engine
from discreet.engine.model.fix import fix


class OwnNorm(nn.BatchNorm2d):
    """A subclass."""


class Holder(nn.Module):
    """Layers in every kind of container, one of them shared."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.BatchNorm2d(8)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), shared)
        self.items = nn.ModuleList([OwnNorm(8), shared])
        self.named = nn.ModuleDict({"norm": nn.BatchNorm2d(8, affine=False)})
        self.style = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.style(self.named["norm"](self.items[0](self.stem(x))))
        normed: torch.Tensor = self.items[1](x)
        return normed


def test_every_batch_norm_is_found_and_named() -> None:
    with pytest.raises(Refused, match=r"discreet.fix\(model\)"):
        Engine(Holder())
    model, swaps = fix(Holder())
    assert [str(swap) for swap in swaps] == [
        "style: InstanceNorm2d -> the same without running statistics",
        "stem.1: BatchNorm2d(8) -> GroupNorm(2, 8)",
        "items.0: OwnNorm(8) -> GroupNorm(2, 8)",
        "items.1: BatchNorm2d(8) -> GroupNorm(2, 8)",
        "named.norm: BatchNorm2d(8) -> GroupNorm(2, 8)",
    ]
    assert isinstance(model, Holder)
    assert not list(model.named_buffers())
    assert model.stem[1].weight is model.items[1].weight  # what was shared stays shared
    assert not list(model.named["norm"].parameters())
    engine = Engine(model)
    engine.begin(4)
    engine.backward(losses_of(model(torch.randn(4, 3, 6, 6))))
    assert bool((engine.norms() > 0).all())


class NormThenActivation(nn.BatchNorm2d):
    """As in timm: the layer applies dropout and an activation of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.drop(super().forward(x)))  # type: ignore[no-any-return]


class NormAndSkip(NormThenActivation):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


@pytest.mark.parametrize("training", [True, False])
def test_the_activation_of_a_batch_norm_is_kept(training: bool) -> None:
    layer = NormThenActivation(8).train(training)
    model, swaps = fix(nn.Sequential(layer))
    assert [str(swap) for swap in swaps] == ["0: NormThenActivation(8) -> GroupNorm(2, 8), then SiLU"]
    x = torch.randn(4, 8, 3, 3)
    plain = nn.GroupNorm(2, 8)
    assert torch.equal(model(x), nn.functional.silu(plain(x)))
    assert model[0].act is layer.act
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    assert bool((layer.running_mean == 0).all())  # the layer itself was not run
    assert model[0].training is training


def test_a_batch_norm_that_computes_something_else_is_refused() -> None:
    with pytest.raises(Refused, match="NormAndSkip at 0, whose forward"):
        fix(nn.Sequential(NormAndSkip(8)))


def test_the_root_itself() -> None:
    model, swaps = fix(nn.BatchNorm1d(6))
    assert isinstance(model, nn.GroupNorm)
    assert [str(swap) for swap in swaps] == ["the root: BatchNorm1d(6) -> GroupNorm(1, 6)"]
    model, swaps = fix(nn.InstanceNorm1d(6, track_running_stats=True))
    assert not model.track_running_stats
    assert len(swaps) == 1
    assert fix(nn.Linear(2, 2))[1] == ()


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 12, 16, 30, 64, 96, 128, 256, 1000])
def test_groups_divide_the_channels_and_hold_at_least_four(channels: int) -> None:
    """A group of one value is its own mean: GroupNorm would give zero on a vector of features."""
    model, _ = fix(nn.Sequential(nn.BatchNorm1d(channels)))
    layer = model[0]
    assert channels % layer.num_groups == 0
    assert layer.num_groups <= 32
    assert channels // layer.num_groups >= min(4, channels)
    if channels >= 4:
        assert float(layer(torch.randn(5, channels)).detach().abs().mean()) > 0.3


def test_values_mode_and_precision_are_kept() -> None:
    old = nn.BatchNorm2d(8, eps=1e-3).double().eval()
    nn.init.normal_(old.weight)
    new = fix(nn.Sequential(old))[0][0]
    assert new.weight is old.weight
    assert new.weight.dtype == torch.float64
    assert new.eps == 1e-3
    assert not new.training


def test_nothing_else_is_touched() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4), nn.Dropout())
    before = list(model)
    fixed, swaps = discreet.fix(model)
    assert fixed is model
    assert list(model) == before
    assert swaps == ()
