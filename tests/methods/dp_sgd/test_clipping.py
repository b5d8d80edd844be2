"""Per-layer clipping, and adaptive quantile clipping with its noisy count."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import loop
from contracts import billing_contract, release
from discreet import methods
from discreet.accounting.events import CountQuery, Gaussian, PoissonSampled, Queries
from discreet.core.check import Refused
from discreet.methods.dp_sgd.clipping import AdaptiveQuantile, PerLayer

# -- per layer ------------------------------------------------------------------------------------------------


def test_each_parameter_is_clipped_to_its_share() -> None:
    """The sum over records of g_p * min(1, (C / sqrt(P)) / ||g_p||) for each parameter p, by plain autograd."""
    clip, net = 0.8, loop.model()
    x, y = (tensor[:9] for tensor in loop.data().tensors)
    parameters = list(net.parameters())
    share = clip / math.sqrt(len(parameters))
    expected = [torch.zeros_like(parameter) for parameter in parameters]
    clipped = untouched = 0
    for row, label in zip(x, y, strict=True):
        own = torch.autograd.grad(loop.losses(net, row[None], label[None]).sum(), parameters)
        for total, gradient in zip(expected, own, strict=True):
            factor = min(1.0, share / float(gradient.norm()))
            clipped, untouched = clipped + (factor < 1), untouched + (factor == 1)
            total += gradient * factor
    assert clipped > 5, "nothing was clipped"
    assert untouched > 5, "everything was clipped"
    found = release(loop.plan(methods.per_layer(clip), noise=0.0), net, x, y)
    torch.testing.assert_close(found, torch.cat([total.reshape(-1) for total in expected]))


def test_a_record_that_reaches_every_share_reaches_the_clip() -> None:
    norms = torch.full((4, 1), 1e3, dtype=torch.float64)
    moved = float((PerLayer(2.0).weights(norms, 0.5)[0] * norms).norm())
    assert 0.999 < moved <= 1.0


# -- adaptive quantiles ---------------------------------------------------------------------------------------


def test_the_bound_moves_to_the_quantile() -> None:
    """Norms are 0.01, 0.02, …, 0.5; the bound reaches the 0.8 quantile, 0.4, from above and from below."""
    x = torch.arange(1, 51)[:, None] * 0.01
    for start in (10.0, 0.005):
        recipe = methods.adaptive_quantile(clip=start, quantile=0.8, rate=0.3, count_noise=0.1)
        plan = loop.plan(recipe, noise=1.0, records=50, batch=50, steps=120)
        run = loop.private(nn.Linear(1, 1, bias=False), plan, dataset=TensorDataset(x, x))
        for inputs, _ in run:
            run.step(run.model(inputs)[:, 0])  # the gradient is the input
        assert start * run.progress.scale == pytest.approx(0.4, rel=0.1)


def test_the_count_is_charged_with_the_gradient() -> None:
    recipe = methods.adaptive_quantile(count_noise=3.0)
    both = Queries((Gaussian(1.5), CountQuery(3.0)))
    assert loop.plan(recipe).event_at(0) == PoissonSampled(0.2, both)
    assert both.whitened.noise < 1.5
    billing_contract(recipe)


def test_an_empty_batch_moves_the_bound_by_noise_alone() -> None:
    """The share is taken of the public batch: an empty sample gives no 0/0, and no hint that it was empty."""
    run = loop.private(which=loop.plan(methods.adaptive_quantile(count_noise=3.0)), dataset=loop.data(0))
    assert loop.train(run) == 0, "an empty batch was given to the loop"
    assert run.updates == loop.STEPS
    assert 0.5 < run.progress.scale < 2
    assert run.progress.scale != 1.0


def test_a_norm_that_is_not_finite_counts_as_large() -> None:
    """Not finite is above every bound, and NaN must not poison the count."""
    norms = torch.tensor([[0.5, 2.0, math.inf, math.nan]], dtype=torch.float64)
    assert AdaptiveQuantile(clip=1.0).numbers(norms, 1.0).tolist() == [[0.5, -0.5, -0.5, -0.5]]


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.5, math.nan])
def test_a_quantile_outside_the_unit_interval_is_refused(quantile: float) -> None:
    with pytest.raises(Refused, match="the fraction of records to leave unclipped"):
        methods.adaptive_quantile(quantile=quantile)
