"""Runs of which only the last iterate leaves: models, losses and features that are certified, and all others."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from last_iterate_loop import RATE, STEPS, data, model, plan, private, train
from torch import nn

from discreet import methods
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.data import build
from discreet.methods.dpsgd_dc.curvature import LinearModel, Link
from discreet.methods.dpsgd_dc.guard import ClippedFeatures, is_loss, linear_layer, with_clipped_features
from discreet.stages.sampling import FixedSize

# Models and losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 1)), "ClippedFeatures directly before an nn.Linear"),
        (
            lambda: nn.Sequential(ClippedFeatures(1.0), nn.Tanh(), nn.Linear(5, 1)),
            "got Tanh, or other trainable parameters",
        ),
        (
            lambda: nn.Sequential(nn.Linear(5, 5), ClippedFeatures(1.0), nn.Linear(5, 1)),
            "got Linear, or other trainable parameters",
        ),
        (lambda: model(bound=2.0), r"features clipped to at most 1.*got ClippedFeatures\(2\)"),
        (lambda: model(scores=3), r"one score for the logistic loss.*got 3 scores"),
    ],
)
def test_models_that_are_not_linear(net: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        private(net())


def test_a_bias_that_was_not_stated() -> None:
    stated = LinearModel(link=Link.LOGISTIC, features=1.0, bias=False)
    with pytest.raises(Refused, match="without a bias"):
        linear_layer(model(), stated)
    linear_layer(nn.Sequential(ClippedFeatures(0.5), nn.Linear(5, 1, bias=False)), stated)


def test_frozen_layers_may_stand_before_the_features() -> None:
    front = nn.Sequential(nn.Linear(5, 7), nn.Tanh()).requires_grad_(False)
    net = nn.Sequential(front, ClippedFeatures(1.0), nn.Linear(7, 1), build("logistic", shape=(5,), classes=2)[2])
    train(private(net))


def test_views_of_a_record() -> None:
    with pytest.raises(Refused, match=r"one view of each record.*got views=2"):
        private(views=2)


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(lambda s, y: 2 * F.cross_entropy(s, y, reduction="none"), id="weighted"),
        pytest.param(lambda s, y: F.cross_entropy(s, y, reduction="none", label_smoothing=0.1), id="smoothed labels"),
        pytest.param(lambda s, y: (s[:, 1] - y).square(), id="squared"),
        pytest.param(lambda s, y: F.relu(1 - (2 * y - 1) * s[:, 1]), id="hinge"),
        pytest.param(lambda s, y: F.cross_entropy(s * 3, y, reduction="none"), id="a temperature"),
    ],
)
def test_another_loss_than_the_stated_one(loss: Any) -> None:
    run = private()
    x, y = next(iter(run))
    wrong = loss(run.model(x), y)
    with pytest.raises(Refused, match=r"the logistic loss of each record.*got another loss"):
        run.step(wrong)
    assert run.ledger.length == 0


@pytest.mark.parametrize("link", Link)
def test_the_stated_losses_pass(link: Link) -> None:
    generator = torch.Generator().manual_seed(9)
    for size in (1e-3, 1.0, 30.0):
        scores = (torch.randn(50, 1 if link.one_score else 4, generator=generator) * size).requires_grad_(True)
        labels = torch.randint(0, 2 if link.one_score else 4, (50,), generator=generator)
        if link is Link.LOGISTIC:
            values = F.binary_cross_entropy_with_logits(scores[:, 0], labels.float(), reduction="none")
        elif link is Link.SQUARED:
            values = (scores[:, 0] - labels * 2.7).square() / 2
        else:
            values = F.cross_entropy(scores, labels, reduction="none")
        (gradient,) = torch.autograd.grad(values.sum(), scores)
        assert is_loss(link, scores.detach(), gradient, values.detach())
        assert not is_loss(link, scores.detach(), gradient * 2, values.detach() * 2)
    assert not is_loss(link, scores.detach(), gradient[:10], values.detach())


def test_the_squared_loss_of_torch_has_twice_the_curvature() -> None:
    scores = torch.linspace(-2, 2, 9)[:, None].requires_grad_(True)
    values = F.mse_loss(scores[:, 0], torch.full((9,), 0.3), reduction="none")
    (gradient,) = torch.autograd.grad(values.sum(), scores)
    assert not is_loss(Link.SQUARED, scores.detach(), gradient, values.detach())


def test_records_that_are_not_finite_are_passed_over() -> None:
    rotten = data()
    rotten.tensors[0][3, 2] = math.nan
    rotten.tensors[0][5] = math.inf
    net = model()
    train(private(net, dataset=rotten))
    assert all(bool(p.isfinite().all()) for p in net.parameters())


def test_softmax_and_fixed_size_batches() -> None:
    recipe = methods.dpsgd_dc(link=Link.SOFTMAX, learning_rate=RATE, radius=2.0)
    fixed = recipe.using(sampling=FixedSize(), relation=Neighbouring.REPLACE_ONE)
    run = private(model(scores=3), plan(fixed, batch=10))
    train(run)
    assert run.updates == STEPS


def test_a_copy_or_a_file_of_the_model_holds_nothing_of_the_run() -> None:
    run = private()
    other = copy.deepcopy(run.model)
    stream = io.BytesIO()
    torch.save(run.model, stream)
    train(run)
    other(torch.zeros(2, 5))
    run.close()
    run.model(torch.zeros(2, 5))


# Features ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipped_features_keep_their_bound(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    for size in (1e-30, 1e-3, 1.0, 1e3, 1e30):
        x = (torch.randn(200, 2, 3, generator=generator) * size).to(dtype)
        rows = ClippedFeatures(0.7)(x)
        assert rows.shape == (200, 6)
        assert float(rows.double().norm(dim=1).max()) <= 0.7
        if size < 0.1:
            assert torch.equal(rows, x.flatten(1))
    bad = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [3.0, 4.0]])
    assert torch.equal(ClippedFeatures(1.0)(bad)[:2], torch.zeros(2, 2))


def test_only_models_that_begin_by_flattening_get_clipped_features() -> None:
    with pytest.raises(Refused, match="a linear model"):
        with_clipped_features(nn.Linear(3, 1), 1.0)
    made = with_clipped_features(build("softmax", shape=(1, 8, 8), classes=10, seed=0), 1.0)
    assert set(made.state_dict()) == set(build("softmax", shape=(1, 8, 8), classes=10, seed=0).state_dict())


def _twice() -> nn.Module:
    layer = nn.Linear(4, 1)
    square = nn.Linear(1, 1)
    return nn.Sequential(ClippedFeatures(1.0), layer, square, square)


def _tied() -> nn.Module:
    first, last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    first.weight = last.weight
    return nn.Sequential(first, ClippedFeatures(1.0), last)


def _repeated() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(ClippedFeatures(1.0), layer, layer)


def _hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 100,))
    return nn.Sequential(ClippedFeatures(1.0), layer)


@pytest.mark.parametrize("build", [_twice, _tied, _repeated, _hooked])
def test_a_model_that_is_not_linear_in_its_parameters_is_refused(build: Any) -> None:
    curvature = LinearModel(link=Link.SOFTMAX, features=1.0, bias=True)
    with pytest.raises(Refused, match=r"ClippedFeatures directly before an nn\.Linear"):
        linear_layer(build(), curvature)


def test_half_precision_is_refused() -> None:
    """Rounding would take the noise of an iterate away."""
    half = data()
    half.tensors = (half.tensors[0].bfloat16(), half.tensors[1])
    with pytest.raises(Refused, match="float32 or float64"):
        private(model().bfloat16(), dataset=half)
