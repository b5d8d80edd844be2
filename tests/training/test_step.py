"""One step: bounded sums, the charge before the noise, and noise of the right size everywhere.

Every draw is seeded, so a pass stays a pass; alpha is the chance that a fresh seed would have failed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from discreet import methods
from discreet.accounting.events import Event, Gaussian, PoissonSampled
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.schedule import Table
from discreet.training.step import PrivateStep, RunState

ALPHA = 1e-6
NOISE, CLIP, BATCH = 1.3, 0.7, 20
HORIZON = Horizon.of(records=100, batch=BATCH, steps=50)
Charged = list[tuple[Event, int]]


def plan_of(recipe: Recipe, noise: float = NOISE, horizon: Horizon = HORIZON) -> Plan:
    return recipe.bind(noise=noise, horizon=horizon, delta=1e-5)


class Rig:
    """A model, its engine and everything that a release needs."""

    def __init__(self, plan: Plan, model: nn.Module, seed: int = 3) -> None:
        self.plan, self.model, self.engine = plan, model, Engine(model)
        self.progress, self.streams, self.charged = RunState(), Streams.seeded(seed), Charged()

    def batch(self) -> PrivateStep:
        return PrivateStep(self.plan, self.engine, self.progress, self.streams, self._charge, World())

    def add(self, batch: PrivateStep, x: Tensor, loss: Callable[[Tensor], Tensor] | None = None) -> None:
        self.engine.begin(len(x))
        output = self.model(x)
        batch.add(output.square().sum(1) if loss is None else loss(output))

    def release(self, batch: PrivateStep) -> Tensor:
        return batch.release().value

    def _charge(self, event: Event, step: int) -> None:
        self.charged.append((event, step))


def clipped_mean(model: nn.Module, x: Tensor, clip: float) -> Tensor:
    """sum of clipped per-sample gradients / the public batch, by plain autograd."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()))
    for row in x:
        grads = torch.autograd.grad(model(row[None]).square().sum(), list(model.parameters()))
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        total += flat * min(1.0, clip / float(flat.norm()))
    return total / BATCH


def linear(inside: int = 5, outside: int = 3) -> nn.Linear:
    return nn.Linear(inside, outside)


# The sum --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [[7], [3, 4], [1] * 7])
def test_without_noise_a_step_is_the_sum_of_clipped_gradients_over_the_public_batch(cuts: list[int]) -> None:
    rig = Rig(plan_of(methods.dp_sgd(CLIP), noise=0.0), linear())
    x, batch = torch.randn(7, 5), rig.batch()
    for part in x.split(cuts):
        rig.add(batch, part)
    torch.testing.assert_close(rig.release(batch), clipped_mean(rig.model, x, CLIP), rtol=1e-4, atol=1e-6)


def test_no_record_counts_for_more_than_the_clip() -> None:
    rig = Rig(plan_of(methods.dp_sgd(CLIP), noise=0.0), linear())
    batch = rig.batch()
    rig.add(batch, torch.randn(1, 5) * 1e6)
    assert 0.99 * CLIP / BATCH < float(rig.release(batch).norm()) <= CLIP / BATCH


def test_a_record_that_is_not_finite_adds_nothing() -> None:
    rig = Rig(plan_of(methods.dp_sgd(CLIP), noise=0.0), linear())
    x, batch = torch.randn(4, 5), rig.batch()
    bad = x.clone()
    bad[1], bad[3] = float("nan"), float("inf")
    rig.add(batch, bad)
    torch.testing.assert_close(rig.release(batch), clipped_mean(rig.model, x[[0, 2]], CLIP), rtol=1e-4, atol=1e-6)


def test_a_record_that_is_there_a_thousand_times_counts_a_thousand_times() -> None:
    """The unit is the record: copies are records, and the statement says so."""
    rig = Rig(plan_of(methods.dp_sgd(CLIP), noise=0.0), linear())
    batch = rig.batch()
    rig.add(batch, torch.ones(1000, 5) * 100)
    assert float(rig.release(batch).norm()) == pytest.approx(1000 * CLIP / BATCH, rel=1e-3)


# Noise ----------------------------------------------------------------------------------------------------


def looks_gaussian(values: Tensor, std: float) -> bool:
    return bool(stats.kstest(values.double().numpy() / std, "norm").pvalue > ALPHA)


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_an_empty_batch_is_noise_of_the_stated_size(scale: float) -> None:
    """Kolmogorov-Smirnov over 40,400 coordinates at alpha = 1e-6; 2/3 and 3/2 of the size are rejected."""
    rig = Rig(plan_of(methods.dp_sgd(CLIP)), linear(100, 400))
    rig.progress.scale = scale
    std = NOISE * CLIP * scale / BATCH
    released = rig.release(rig.batch())
    assert looks_gaussian(released, std)
    assert not looks_gaussian(released, std * 2 / 3)
    assert not looks_gaussian(released, std * 3 / 2)
    assert len(rig.charged) == 1


@pytest.mark.parametrize(("planned", "seen"), [(NOISE, True), (0.99 * NOISE, False), (1.01 * NOISE, False)])
def test_the_size_of_the_noise_to_half_a_percent(planned: float, seen: bool) -> None:
    """A million values give the variance to 0.14 %; 4.9 deviations of it are 0.35 % of the standard deviation."""
    rig = Rig(plan_of(methods.dp_sgd(CLIP), noise=NOISE), linear(1000, 1000))
    values = rig.release(rig.batch()).double() * BATCH / (planned * CLIP)
    spread = float(values.square().sum())
    tail = min(stats.chi2.cdf(spread, len(values)), stats.chi2.sf(spread, len(values)))
    assert (2 * tail > ALPHA) == seen


def test_a_full_batch_gets_the_same_noise() -> None:
    quiet = Rig(plan_of(methods.dp_sgd(CLIP), noise=0.0), linear(100, 400))
    loud = Rig(plan_of(methods.dp_sgd(CLIP)), quiet.model)
    x = torch.randn(30, 100)
    sums = []
    for rig in (quiet, loud):
        batch = rig.batch()
        rig.add(batch, x)
        sums.append(rig.release(batch))
        rig.engine.close()
    std = NOISE * CLIP / BATCH
    assert looks_gaussian(sums[1] - sums[0], std)
    assert not looks_gaussian(sums[1] - sums[0], std * 3 / 2)


def test_noise_follows_the_schedule() -> None:
    recipe = methods.dp_sgd(CLIP)
    factors = Table((1.0, 3.0, *(1.0,) * 48))
    rig = Rig(plan_of(Recipe(method="x", bounder=recipe.bounder, schedule=factors)), linear(100, 200))
    std = NOISE * CLIP / BATCH
    first, second = rig.release(rig.batch()), rig.release(rig.batch())
    assert looks_gaussian(first, std)
    assert looks_gaussian(second, 3 * std)
    assert not looks_gaussian(second, std)
    assert [event.event.noise for event, _ in rig.charged] == [NOISE, 3 * NOISE]  # type: ignore[attr-defined]


class HalfUsed(nn.Module):
    """Its second layer is trained and takes no part in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(10, 30), nn.Linear(100, 100)

    def forward(self, x: Tensor) -> Tensor:
        used: Tensor = self.used(x)
        return used


def test_parameters_without_a_gradient_get_noise_too() -> None:
    rig = Rig(plan_of(methods.dp_sgd(CLIP)), HalfUsed())
    batch = rig.batch()
    rig.add(batch, torch.randn(4, 10))
    views = dict(zip(rig.engine.layout.names, rig.engine.layout.views(rig.release(batch)), strict=True))
    std = NOISE * CLIP / BATCH
    assert looks_gaussian(views["unused.weight"].reshape(-1), std)
    assert not looks_gaussian(views["unused.weight"].reshape(-1), std * 2 / 3)


def test_noise_never_repeats() -> None:
    rig = Rig(plan_of(methods.dp_sgd(CLIP)), linear(50, 40))
    released = torch.cat([rig.release(rig.batch()) for _ in range(5)])
    assert len(released.unique()) > 0.999 * len(released)  # equal floats are rare, equal blocks are not


# The charge -----------------------------------------------------------------------------------------------


def test_the_charge_comes_before_the_noise() -> None:
    rig = Rig(plan_of(methods.dp_sgd(CLIP)), linear())

    def full(event: Event, step: int) -> None:
        raise OSError("disk full")

    batch = PrivateStep(rig.plan, rig.engine, rig.progress, rig.streams, full, World())
    with pytest.raises(OSError, match="disk full"):
        batch.release()
    assert rig.streams.noise.spent == 0
    assert rig.progress == RunState()


def test_steps_are_charged_in_order() -> None:
    rig = Rig(plan_of(methods.dp_sgd(CLIP)), linear())
    for _ in range(3):
        rig.release(rig.batch())
    event = PoissonSampled(0.2, Gaussian(NOISE))
    assert rig.charged == [(event, 0), (event, 1), (event, 2)]
    assert rig.progress.step == 3


def test_only_aggregated_sums_are_released() -> None:
    rig = Rig(plan_of(methods.dp_sgd(CLIP)), linear())
    queries = rig.plan.queries(1.0)
    with pytest.raises(Refused, match="sums with the sensitivity"):
        rig.plan.mechanism.release([torch.zeros(3)], queries, NOISE, rig.batch()._context)  # type: ignore[list-item]


def test_a_sum_with_more_sensitivity_than_its_noise_is_refused() -> None:
    small, large = plan_of(methods.dp_sgd(CLIP)), plan_of(methods.dp_sgd(2 * CLIP))
    rig = Rig(large, linear())
    batch = rig.batch()
    rig.add(batch, torch.randn(2, 5), lambda output: F.mse_loss(output, output * 0, reduction="none").sum(1))
    sums = batch._sums.sums(World()).vectors
    with pytest.raises(Refused, match="sums with the sensitivity"):
        small.mechanism.release(sums, small.queries(1.0), NOISE, rig.batch()._context)
