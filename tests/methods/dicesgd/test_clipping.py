"""Two-level clipping: the split of its noise, the moving average, and where it settles."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

import loop
from discreet import methods
from discreet.accounting.events import Queries
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.engine.layout import Layout
from discreet.methods.dicesgd.stages import HELD, SmoothedResidual, TwoLevel
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages.clipping import FlatClip
from discreet.stages.sampling import Horizon
from discreet.stages.values import StepContext
from research.reproductions.dicesgd.appendix_b1 import Huber, settled

ALPHA = 1e-6  # false-alarm rate of the statistical tests


def context(size: int, memory: dict[str, Tensor], *, batch: float = 10.0) -> StepContext:
    return StepContext(
        step=0,
        steps_per_epoch=1,
        batch=batch,
        layout=Layout(("w",), ((size,),)),
        streams=Streams.seeded(0),
        memory=memory,
    )


# -- the split ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clip", "residual", "kappa"), [(1.0, 9.0, 0.1), (0.2, 1.8, 1.0), (3.0, 1.0, 0.5)])
def test_the_split_is_the_best(clip: float, residual: float, kappa: float) -> None:
    rho = kappa / (2 - kappa)

    def noise(bounder: TwoLevel) -> float:
        first, second = bounder.vectors(1.0)
        return math.hypot(first.std(1.0), math.sqrt(rho) * second.std(1.0))

    best = TwoLevel.smoothed(clip, residual, kappa)
    assert noise(best) == pytest.approx(clip + math.sqrt(rho) * residual)
    for factor in (0.9, 0.99, 1.01, 1.1):
        if best.share * factor > 1:
            assert noise(TwoLevel(clip, residual, best.share * factor)) > noise(best)
    assert sum(query.share**-2 for query in best.vectors(1.0)) == pytest.approx(1.0)


def test_golden_noise_of_the_split() -> None:
    """C1 = 1, Cr = 9, kappa = 0.1: 3.06 per step instead of 10; 11.1 at zero frequency instead of 10."""
    first, second = TwoLevel.smoothed(1.0, 9.0, 0.1).vectors(1.0)
    assert math.hypot(first.std(1.0), math.sqrt(0.1 / 1.9) * second.std(1.0)) == pytest.approx(3.06, abs=0.005)
    assert math.hypot(first.std(1.0), second.std(1.0)) == pytest.approx(11.1, abs=0.05)


def test_the_price_is_that_of_one_gaussian() -> None:
    plan = methods.two_level().bind(noise=1.3, horizon=Horizon.of_rate(rate=0.01, steps=50), delta=1e-5)
    plain = methods.dp_sgd().bind(noise=1.3, horizon=Horizon.of_rate(rate=0.01, steps=50), delta=1e-5)
    release = plan.mechanism.event(plan.queries(1.0), 1.3)
    assert isinstance(release, Queries)
    assert release.whitened.noise == pytest.approx(1.3)
    assert plan.certificate().epsilon == pytest.approx(plain.certificate().epsilon, rel=1e-9)
    assert plan.charge().claimed is None


# -- the combination ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [0.05, 0.5, 1.0])
def test_it_is_a_moving_average(kappa: float) -> None:
    combine, memory, average = SmoothedResidual(kappa), dict[str, Tensor](), torch.zeros(4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        first, second = torch.randn(2, 4, generator=generator)
        average = (1 - kappa) * average + kappa * second
        got = combine.gradient([first.clone(), second.clone()], [], context(4, memory))
        assert torch.allclose(got, first + average, atol=1e-5)


def test_with_a_limit_nothing_is_lost() -> None:
    """Error feedback on released values: what was used and what is held add up to what was released."""
    combine, memory = SmoothedResidual(0.3, limit=0.2), dict[str, Tensor]()
    generator = torch.Generator().manual_seed(0)
    released, used, longest = torch.zeros(4), torch.zeros(4), 0.0
    for _ in range(30):
        second = torch.randn(4, generator=generator) * 10 + 3
        step = combine.gradient([torch.zeros(4), second.clone()], [], context(4, memory))
        released, used = released + second, used + step
        longest = max(longest, float(step.norm()))
        assert torch.allclose(used + memory[HELD], released, rtol=1e-4, atol=1e-3)
    assert longest == pytest.approx(0.2 * 10.0, rel=1e-5)


@pytest.mark.parametrize("times", [1.0, 1.2])
def test_the_noise_per_step_is_the_formula(times: float) -> None:
    """Empty batches, long after the start: z (C1 + sqrt(rho) Cr), by a Kolmogorov-Smirnov test; 1.2 times is seen."""
    kappa, size = 0.2, 20_000
    bounder, combine, memory = (TwoLevel.smoothed(1.0, 4.0, kappa), SmoothedResidual(kappa), dict[str, Tensor]())
    stream = Streams.seeded(3).noise
    for _ in range(40):
        noisy = [stream.add_normal_(torch.zeros(size), query.std(1.5)) for query in bounder.vectors(1.0)]
        last = combine.gradient(noisy, [], context(size, memory))
    formula = 1.5 * (1.0 + math.sqrt(kappa / (2 - kappa)) * 4.0)
    value = stats.kstest((last / (times * formula)).numpy(), "norm").pvalue
    assert (value > ALPHA) == (times == 1.0)


def test_the_memory_is_public() -> None:
    run = loop.private(which=loop.plan(methods.two_level(clip=0.5, residual=2.0)))
    loop.train(run, most=3)
    assert HELD in run.progress.memory
    assert not run.progress.secrets


def test_other_bounders_and_masks_are_refused_when_the_plan_is_built() -> None:
    with pytest.raises(Refused, match="TwoLevel"):
        methods.two_level().using(bounder=FlatClip(1.0))
    with pytest.raises(Refused, match="all coordinates active"):
        methods.two_level().using(selection=RandomFreeze(final_rate=0.5))


@pytest.mark.parametrize("kappa", [0.0, 1.5, math.nan])
def test_a_weight_outside_the_unit_is_refused(kappa: float) -> None:
    for make in (SmoothedResidual, lambda k: methods.two_level(kappa=k)):
        with pytest.raises(Refused):
            make(kappa)


# -- Appendix B.1 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "point"),
    [
        (methods.dp_sgd(clip=0.2), -0.9),
        (methods.dp_sgd(clip=0.5), -0.75),
        (methods.dicesgd(clip=0.2, feedback_clip=0.2), 0.0),
        (methods.dicesgd(clip=0.2, feedback_clip=1.0), 0.0),
        (methods.two_level(clip=0.2, residual=0.8), -0.5),
        (methods.two_level(clip=0.2, residual=1.8), 0.0),
        (methods.two_level(clip=0.2, residual=1.8, kappa=1.0), 0.0),
    ],
    ids=lambda value: str(value.method) if not isinstance(value, float) else str(value),
)
def test_stationary_points_of_appendix_b_1(recipe: object, point: float) -> None:
    """The optimum is 0; clipped SGD settles at -1 + C/C', not at C'/(C' + C) as the paper prints."""
    assert settled(recipe, Huber(clip=0.2)) == pytest.approx(point, abs=1e-3)  # type: ignore[arg-type]
