"""What every member of a family must keep. Each contract raises AssertionError where it is broken.

`test_members.py` runs them on every listed member; `tests/known_bad` puts faults of other libraries in and
demands that a contract notices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy import stats
from torch import Tensor, nn

import loop
from discreet.accounting.accountants import certify
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.methods.d2p2.projected_noise import ProjectedNoise, width
from discreet.methods.d2p2.projections import padded_size
from discreet.methods.dicesgd.stages import SmoothedResidual
from discreet.methods.geodp.stages import FromAngles, FromPolar
from discreet.methods.gep.combination import FromEmbedding
from discreet.stages.analysis import Composition
from discreet.stages.clipping import Bounder, Query
from discreet.stages.combination import TakeFirst
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import FullBatch, Horizon, Poisson, Sampling, TruncatedPoisson
from discreet.training.private import Private
from discreet.training.step import PrivateStep, RunState

ALPHA = 1e-6  # false-alarm rate of every statistical contract
NORMS = [0.0, 5e-324, 1e-38, 1e-12, 0.1, 0.5, 1.0, 1.0000001, 3.0, 1e4, 1e19, 1e38, 1e300]


def bounder_contract(bounder: Bounder) -> None:
    """weight * norm <= sensitivity for every norm; not finite -> weight 0; scalars are bounded too."""
    for scale in (1.0, 0.01, 37.0):
        groups = 3 if len(bounder.groups(_layout(3))) == 3 else 1
        columns = torch.tensor([*NORMS, math.inf, math.nan], dtype=torch.float64)
        norms = columns.expand(groups, -1).clone()
        weights = bounder.weights(norms, scale)
        queries = bounder.vectors(scale)
        assert weights.shape == (len(queries), *norms.shape), "weights of another shape"
        assert bool((weights[:, :, -2:] == 0).all()), "a record that is not finite has weight"
        for broken in (math.inf, math.nan):  # one group is enough, whichever it is
            partly = torch.where(torch.eye(groups, dtype=torch.bool), broken, torch.ones(groups, groups).double())
            assert not bool(bounder.weights(partly, scale).any()), "a record that is partly not finite has weight"
        finite = norms[:, :-2]
        for query, own in zip(queries, weights[:, :, :-2], strict=True):
            moved = (own * finite).square().sum(0).sqrt()
            assert bool(own.isfinite().all()), "a weight that is not finite"
            assert float(moved.max()) <= query.sensitivity, "a record moves the sum by more than the bound"
        for query, own in zip(bounder.scalars(), bounder.numbers(norms, scale), strict=True):
            assert float(own.abs().max()) <= query.sensitivity, "a record moves the count by more than the bound"
        assert abs(sum(query.share**-2 for query in queries) - 1) < 1e-12, "shares of more than one budget"


def _layout(count: int) -> Any:
    from discreet.engine.layout import Layout

    return Layout(tuple(f"p{i}" for i in range(count)), ((2,),) * count)


def release(plan: Plan, net: nn.Module, x: Tensor, y: Tensor, *, seed: int = 0) -> Tensor:
    """What one step of the plan lets out for this batch, times the public batch: the noisy sum."""
    engine = Engine(net)
    try:
        paid: list[int] = []
        streams, world = Streams.seeded(seed), World.current()
        batch = PrivateStep(plan, engine, RunState(), streams, lambda event, step: paid.append(step), world)
        if len(x):
            engine.begin(len(x))
            batch.add(loop.losses(net, x, y))
        out = batch.release()
        assert paid == [0], "a release that was not paid for"
        return out.value * plan.horizon.size.batch
    finally:
        engine.close()


def gain(plan: Plan, net: nn.Module) -> float:
    """What lifting multiplies by after the noise: n/p for p orthonormal rows of length n, else 1.

    The price is for the vector before it is lifted: tests/methods/d2p2/test_projected_noise.py looks there.
    """
    mechanism = plan.mechanism
    if not isinstance(mechanism, ProjectedNoise) or mechanism.reduction == 0:
        return 1.0
    padded = padded_size(sum(parameter.numel() for parameter in net.parameters()))
    return padded / width(padded, mechanism.reduction)


def combined(plan: Plan) -> list[tuple[Query, float]]:
    """The vector queries with their weights in the first gradient: two-level clipping takes kappa of its second sum."""
    first, *others = plan.bounder.vectors(1.0)
    if not isinstance(plan.combination, SmoothedResidual):
        return [(first, 1.0)]
    return [(first, 1.0), *((query, plan.combination.kappa) for query in others)]


def first_sum(plan: Plan) -> Plan:
    """The plan without putting the parts of a gradient together: bounds and noise are those of the sums."""
    if not isinstance(plan.combination, FromPolar | FromAngles | FromEmbedding):
        return plan
    return dataclasses.replace(plan, combination=TakeFirst(), analysis=Composition())


def step_contract(recipe: Recipe) -> None:
    """Leave-one-out without noise: a record moves the sum by at most the bound; NaN moves nothing."""
    plan = first_sum(loop.plan(recipe, noise=0.0))
    bound = sum(weight * query.sensitivity for query, weight in combined(plan))
    x, y = (tensor[:6].clone() for tensor in loop.data().tensors)
    x[1] = x[0]
    x[2] *= 1e6
    x[3] = 0.0
    x[4, 0] = math.nan
    net = loop.model()
    bound *= gain(plan, net)
    whole = release(plan, net, x, y)
    assert bool(whole.isfinite().all()), "one record poisons the sum"
    for record in range(len(x)):
        kept = torch.arange(len(x)) != record
        moved = float((whole - release(plan, net, x[kept], y[kept])).double().norm())
        assert moved <= bound * (1 + 1e-5), "removing one record moves the release by more than the bound"
    empty = release(plan, net, x[:0], y[:0])
    assert not bool(empty.any()), "an empty batch has a signal"


def noise_contract(recipe: Recipe, *, times: float = 1.0) -> None:
    """An empty batch is noise of the stated size on every coordinate, another one at every step."""
    plan = first_sum(loop.plan(recipe, noise=1.5))
    net = nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 2))
    net.register_parameter("unused", nn.Parameter(torch.zeros(500)))
    x, y = torch.zeros(0, 100), torch.zeros(0, dtype=torch.long)
    found = release(plan, net, x, y, seed=1).double().numpy()
    # n/p times the noise of p of n orthonormal directions: variance n/p on each coordinate
    std = math.hypot(*(weight * query.std(1.5) for query, weight in combined(plan)))
    std *= math.sqrt(gain(plan, net)) * times
    unused = found[-500:]
    assert bool(unused.all()), "a parameter without noise"
    assert stats.kstest(found / std, "norm").pvalue > ALPHA, "noise of another size or shape"
    # The size to about 2.4 %: 4.9 deviations of the variance of so many independent values. Projected noise has
    # fewer independent values than coordinates, by the factor `gain`.
    independent = len(found) / gain(plan, net)
    spread = float((found / std) @ (found / std)) / gain(plan, net)
    tails = stats.chi2.cdf(spread, independent), stats.chi2.sf(spread, independent)
    assert 2 * min(tails) > ALPHA, "noise of another size"
    assert stats.kstest(unused / std, "norm").pvalue > ALPHA, "a parameter with other noise"
    # Two of so many float32 values agree now and then; blocks of them do not.
    assert len(set(found.tolist())) > 0.99 * len(found), "noise that repeats"
    other = release(plan, net, x, y, seed=2).double().numpy()
    assert np.isin(other, found).mean() < 0.01, "noise that repeats"


def billing_contract(recipe: Recipe, **options: Any) -> None:
    """The ledger holds exactly what the plan said, one charge for each update, and the price of it."""
    run = loop.private(which=loop.plan(recipe), **options)
    loop.train(run)
    assert run.progress.step == run.plan.horizon.steps, "another number of steps than planned"
    # a tested update may be rejected
    assert run.updates == run.progress.step or run.plan.has_tests, "a step without an update"
    assert run.ledger.charge().certified == run.plan.charge().certified, "charged is not what was planned"
    certified = certify(run.ledger.charge(), delta=1e-5, relation=run.plan.relation).epsilon
    assert run.spent().certified.epsilon == certified, "spent is not what was charged"
    assert math.isfinite(certified), "no guarantee"


def sampler_contract(sampling: Sampling, *, rate: float = 0.2, steps: int = 400, size: int = 60) -> None:
    """Each record joins at the stated rate, whatever the others did and whatever it did one step before.

    All p-values are two-sided, and each is compared with its share of ALPHA.
    """
    horizon = Horizon.of(records=size, batch=rate * size, steps=steps)
    joined = np.zeros((steps, size), dtype=bool)
    batches = list(sampling.batches(size, horizon, Streams.seeded(3).sampling, 0))
    assert len(batches) == steps, "another number of batches than planned"
    for step, indices in enumerate(batches):
        assert len(set(indices.tolist())) == len(indices), "a record that is twice in a batch"
        joined[step, indices] = True
    sizes, alpha = joined.sum(1), ALPHA / 4
    assert stats.binomtest(int(sizes.sum()), steps * size, rate).pvalue > alpha, "records join at another rate"
    rarest = min(stats.binomtest(int(count), steps, rate).pvalue for count in joined.sum(0))
    assert rarest > alpha / size, "some records join at another rate than others"
    if isinstance(sampling, Poisson | TruncatedPoisson):
        spread = float(((sizes - rate * size) ** 2).sum() / (rate * (1 - rate) * size))
        tails = stats.chi2.cdf(spread, steps), stats.chi2.sf(spread, steps)
        assert 2 * min(tails) > alpha, "batch sizes do not vary as those of independent records"
    if sampling.per_epoch:
        epochs = joined.reshape(-1, horizon.steps_per_epoch, size)
        assert bool((epochs.sum(1) == 1).all()), "a record that is not in exactly one batch of an epoch"
        return
    # Whether a record joins two steps in a row: pairs of steps that do not overlap.
    twice = int((joined[0::2] & joined[1::2]).sum())
    assert stats.binomtest(twice, steps // 2 * size, rate**2).pvalue > alpha, "steps in a row are not independent"


def price_contract(sampling: Sampling, relation: Neighbouring) -> None:
    """Only records that are drawn independently get the price of Poisson sampling, and they get no less.

    The reference is another library's accountant; its discretisation errs upwards by much less than one percent.
    """
    recipe = Recipe(method="test", bounder=loop.plan().bounder, sampling=sampling, relation=relation)
    plan = loop.plan(recipe, batch=loop.RECORDS if isinstance(sampling, FullBatch) else loop.BATCH)
    poisson = from_gaussian_mechanism(1.5, sampling_prob=loop.BATCH / loop.RECORDS).self_compose(loop.STEPS)
    reference = poisson.get_epsilon_for_delta(plan.delta)
    found = plan.certificate().epsilon
    assert found > 0.995 * reference, "less than the price of Poisson sampling"
    if isinstance(sampling, Poisson | TruncatedPoisson):
        assert found < 1.005 * reference, "more than the price of Poisson sampling"
    else:
        assert found > 1.05 * reference, "the price of Poisson sampling for another sampling"


def horizon_contract(make: Callable[..., Horizon]) -> None:
    """rate = batch / records exactly, and never fewer steps planned than an epoch takes."""
    for records, batch, epochs in ((1000, 300, 1), (60_000, 1024, 40), (7, 3, 3), (10**6, 1, 1)):
        horizon = make(records=records, batch=batch, epochs=epochs)
        assert horizon.rate == batch / records, "a rate from the length of a loader"
        assert horizon.steps >= Fraction(epochs * records) / Fraction(batch), "fewer steps than are taken"


def no_repeat_contract(run: Callable[[], Private]) -> None:
    """Two runs never share a key, whatever the state of torch's generator."""
    keys = []
    for _ in range(2):
        torch.manual_seed(1)
        private = run()
        keys += [private.streams.noise.fingerprint, private.streams.sampling.fingerprint]
    assert len(set(keys)) == len(keys), "two runs with the same noise"
