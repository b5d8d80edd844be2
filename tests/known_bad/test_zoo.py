"""Faults of other libraries, put into ours one by one: the contract tests must notice each of them.

The letter and number of a fault is its place in the list that we keep of what went wrong elsewhere: A sampling
and accounting, B sensitivity and clipping, C noise, D state. This tests the tests.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import loop
from contracts import (
    billing_contract,
    bounder_contract,
    horizon_contract,
    no_repeat_contract,
    noise_contract,
    price_contract,
    sampler_contract,
    step_contract,
)
from discreet import methods
from discreet.accounting import events
from discreet.accounting.ledger import Ledger
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.core.streams import Stream, Streams
from discreet.engine import engine
from discreet.engine.active import Active
from discreet.methods.random_freeze.selection import Refresh
from discreet.stages import aggregation, clipping, sampling
from discreet.stages import noise as gaussian
from discreet.stages import update as updating
from discreet.stages.noise import GaussianNoise
from discreet.stages.selection import Frozen
from discreet.stages.values import Released
from discreet.training import step
from discreet.training.payment import Payment
from discreet.training.private import Private
from freezing import coverage_contract, frozen_contract

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Fault:
    """One known fault: how it is put in, the contract that must fail, and what the contract must say."""

    name: str
    put_in: Callable[[Patch], None]
    contract: Callable[[], None]
    says: str


def _batches(draw: Callable[[int, sampling.Horizon], list[Any]]) -> Callable[[Patch], None]:
    """Poisson sampling that draws its batches in another way."""

    def put_in(patch: Patch) -> None:
        patch.setattr(sampling.Poisson, "batches", lambda self, size, horizon, *rest: draw(size, horizon))

    return put_in


def _in_turn(size: int, horizon: sampling.Horizon) -> list[Any]:
    """Epochs of shuffled records, cut in batches: what most loaders do."""
    chance, epochs = np.random.default_rng(0), -(-horizon.steps // horizon.steps_per_epoch)
    shuffled = [np.array_split(chance.permutation(size), horizon.steps_per_epoch) for _ in range(epochs)]
    return [part for epoch in shuffled for part in epoch][: horizon.steps]


def _of_one_size(size: int, horizon: sampling.Horizon) -> list[Any]:
    chance = np.random.default_rng(0)
    return [chance.choice(size, int(horizon.size.batch), replace=False) for _ in range(horizon.steps)]


def _favourites(size: int, horizon: sampling.Horizon) -> list[Any]:
    """The right number of records on average, but some join far more often than others."""
    chance, rates = np.random.default_rng(0), horizon.rate * np.linspace(0.5, 1.5, size)
    return [(chance.random(size) < rates).nonzero()[0] for _ in range(horizon.steps)]


def _twice(size: int, horizon: sampling.Horizon) -> list[Any]:
    """Every batch is used for two steps."""
    chance = np.random.default_rng(0)
    halves = [(chance.random(size) < horizon.rate).nonzero()[0] for _ in range(horizon.steps // 2)]
    return [batch for batch in halves for _ in range(2)]


def _with_replacement(size: int, horizon: sampling.Horizon) -> list[Any]:
    chance = np.random.default_rng(0)
    return [chance.integers(size, size=int(horizon.size.batch)) for _ in range(horizon.steps)]


def _bins_as_poisson(patch: Patch) -> None:
    patch.setattr(sampling.BallsInBins, "batches", sampling.Poisson.batches)


def _poisson_at_half_the_rate(patch: Patch) -> None:
    def bill(self: Any, release: Any, horizon: Any) -> events.Event:
        return events.PoissonSampled(horizon.rate / 2, release)

    patch.setattr(sampling.Poisson, "bill", bill)


def _own_loader_as_poisson(patch: Patch) -> None:
    def bill(self: Any, release: Any, horizon: Any) -> events.Event:
        return events.PoissonSampled(horizon.rate, release)

    patch.setattr(sampling.OwnLoader, "bill", bill)


def _fixed_size_as_poisson(patch: Patch) -> None:
    patch.setattr(sampling.FixedSize, "bill", lambda self, release, h: events.PoissonSampled(h.rate, release))
    patch.setattr(sampling.FixedSize, "relations", (Neighbouring.ADD_REMOVE,))


def _rate_from_loader(patch: Patch) -> None:
    real = sampling.Horizon.of

    def of(**numbers: Any) -> sampling.Horizon:
        made = real(**numbers)
        rate = 1 / made.steps_per_epoch
        return sampling.Horizon(rate=rate, steps=made.steps, steps_per_epoch=made.steps_per_epoch)

    patch.setattr(sampling.Horizon, "of", staticmethod(of))


def _floored_steps(patch: Patch) -> None:
    real = sampling.Horizon.of

    def of(**numbers: Any) -> sampling.Horizon:
        made = real(**numbers)
        steps = max(1, int(numbers["epochs"] / made.rate))
        return sampling.Horizon(rate=made.rate, steps=steps, steps_per_epoch=made.steps_per_epoch)

    patch.setattr(sampling.Horizon, "of", staticmethod(of))


def _poisson_at(factor: float) -> Callable[[Patch], None]:
    def put_in(patch: Patch) -> None:
        real = Stream.bernoulli
        patch.setattr(Stream, "bernoulli", lambda self, count, rate: real(self, count, rate * factor))

    return put_in


def _count_query_for_free(patch: Patch) -> None:
    real = GaussianNoise.event
    patch.setattr(GaussianNoise, "event", lambda self, queries, noise: real(self, queries[:1], noise))


def _charge_forgotten(patch: Patch) -> None:
    real = Ledger.append

    def append(self: Ledger, event: events.Event, *, step: int, note: Any = None) -> None:
        if step % 2 == 0:
            real(self, event, step=step, note=note)

    patch.setattr(Ledger, "append", append)


def _nothing_charged(patch: Patch) -> None:
    patch.setattr(Payment, "__call__", lambda self, event, step: None)


def _weights(kind: type, change: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[[Patch], None]:
    def put_in(patch: Patch) -> None:
        real = kind.weights  # type: ignore[attr-defined]
        patch.setattr(kind, "weights", lambda self, norms, scale: change(norms, real(self, norms, scale)))

    return put_in


def _inverted(norms: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    upside_down = (norms / 0.7).clamp(max=1.0).unsqueeze(0)
    return torch.where(norms.isfinite(), upside_down, 0.0)


def _no_finite_check(patch: Patch) -> None:
    patch.setattr(clipping, "zero_non_finite", lambda weights, norms: weights.unsqueeze(0))


def _poisoned_sum(patch: Patch) -> None:
    def everyone(self: engine.Engine) -> torch.Tensor:
        return torch.ones(self._open_records(), dtype=torch.bool)

    patch.setattr(engine.Engine, "finite", everyone)


def _clip_ignored(patch: Patch) -> None:
    patch.setattr(clipping.FlatClip, "weights", lambda self, norms, scale: torch.ones_like(norms).unsqueeze(0))


def _norms_of_one_parameter(patch: Patch) -> None:
    real = engine.Engine.norms

    def norms(self: engine.Engine, groups: Any = None, mask: Any = None) -> torch.Tensor:
        return real(self, [[i] for i in range(len(self.layout.names))], mask)[:1]

    patch.setattr(aggregation.Aggregation, "add", _add_with(norms))


def _add_with(norms: Callable[..., torch.Tensor]) -> Callable[..., None]:
    def add(self: aggregation.Aggregation, vacant: torch.Tensor | None = None) -> None:
        found = norms(self._engine)
        weights = self._bounder.weights(found, self._scale)
        self._engine.add_weighted(weights, self._vectors, None, None)
        self._engine.discard()

    return add


def _mean_over_the_drawn_batch(patch: Patch) -> None:
    real_add, real_release = step.PrivateStep.add, step.PrivateStep.release
    seen: dict[int, int] = {}

    def add(self: step.PrivateStep, losses: torch.Tensor) -> None:
        seen[id(self)] = seen.get(id(self), 0) + len(losses)
        real_add(self, losses)

    def release(self: step.PrivateStep) -> Released:
        out = real_release(self)
        drawn = seen.get(id(self), 0)
        scale = loop.BATCH / drawn if drawn else 0.0
        return Released(out.value * scale, out.layout)

    patch.setattr(step.PrivateStep, "add", add)
    patch.setattr(step.PrivateStep, "release", release)


def _fake_record_on_empty(patch: Patch) -> None:
    real = aggregation.Aggregation.sums

    def sums(self: aggregation.Aggregation, world: Any, **options: Any) -> Any:
        if not bool(self._vectors.any()):
            self._vectors += 0.1
        return real(self, world, **options)

    patch.setattr(aggregation.Aggregation, "sums", sums)


def _noise_scaled(factor: float) -> Callable[[Patch], None]:
    def put_in(patch: Patch) -> None:
        real = Stream.add_normal_
        patch.setattr(Stream, "add_normal_", lambda self, value, std: real(self, value, std * factor))

    return put_in


def _same_noise_for_everyone(patch: Patch) -> None:
    def add(self: Stream, value: torch.Tensor, std: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        return value.add_(std * torch.randn(value.shape, generator=generator))

    patch.setattr(Stream, "add_normal_", add)


def _no_noise_where_no_gradient(patch: Patch) -> None:
    real = Stream.add_normal_

    def add(self: Stream, value: torch.Tensor, std: float) -> torch.Tensor:
        clean = value.clone()
        real(self, value, std)
        value[-500:] = clean[-500:]
        return value

    patch.setattr(Stream, "add_normal_", add)


def _seeded_by_torch(patch: Patch) -> None:
    patch.setattr(Streams, "from_os", classmethod(lambda cls: cls.seeded(int(torch.initial_seed()))))


def _mask_changes_inside_a_batch(patch: Patch) -> None:
    """Each micro-batch on a mask of its own, noise on the last one, and the whole sum leaves."""
    real = step.PrivateStep.add

    def add(self: step.PrivateStep, losses: torch.Tensor) -> None:
        real(self, losses)
        now = dataclasses.replace(self._context, step=self._context.step + 1)
        mask = self._plan.selection.mask(now)
        self._context = dataclasses.replace(self._context, mask=mask)
        self._sums._mask = self._sums._clipped = mask

    def noise_on_the_last(value: torch.Tensor, std: float, context: Any) -> torch.Tensor:
        index = Active.of(context.mask, context.layout, value.device).whole
        value[index] = context.streams.noise.add_normal_(value[index], std)
        return value

    def whole(mask: Any, value: torch.Tensor, layout: Any, batch: float) -> Released:
        return Released(value / batch, layout)

    patch.setattr(step.PrivateStep, "add", add)
    patch.setattr(gaussian, "_add_noise", noise_on_the_last)
    patch.setattr(Released, "on", staticmethod(whole))


def _noise_on_another_mask(patch: Patch) -> None:
    def stale(value: torch.Tensor, std: float, context: Any) -> torch.Tensor:
        value[::2] = context.streams.noise.add_normal_(value[::2].clone(), std)
        return value

    patch.setattr(gaussian, "_add_noise", stale)


def _frozen_coordinates_coast(patch: Patch) -> None:
    real = step.update

    def update(optimizer: Any, parameters: Any, released: Released, frozen: Frozen) -> None:
        real(optimizer, parameters, released, Frozen.COASTING)

    patch.setattr(step, "update", update)


def _frozen_state_decays(patch: Patch) -> None:
    """Parameters are put back, but the velocity of frozen coordinates goes on decaying."""
    patch.setattr(updating, "COORDINATE_WISE", ())


STEPWISE = methods.random_freeze(clip=0.5, final_rate=0.5, cooling_epochs=1, refresh=Refresh.STEP)


def _fresh_run() -> Private:
    return loop.private(streams=Streams.from_os())


ADAPTIVE = methods.adaptive_quantile(count_noise=3.0)


def _adaptive_costs_more() -> None:
    free = loop.plan(methods.dp_sgd()).certificate().epsilon
    assert loop.plan(ADAPTIVE).certificate().epsilon > free * 1.01, "a count query for free"


FAULTS = [
    Fault(
        "A1 a loader of one's own at the price of Poisson",
        _own_loader_as_poisson,
        lambda: price_contract(sampling.OwnLoader(), Neighbouring.ADD_REMOVE),
        "the price of Poisson sampling for another sampling",
    ),
    Fault(
        "A1 fixed batches at the price of Poisson",
        _fixed_size_as_poisson,
        lambda: price_contract(sampling.FixedSize(), Neighbouring.ADD_REMOVE),
        "the price of Poisson sampling for another sampling",
    ),
    Fault(
        "A2 rate from the length of a loader",
        _rate_from_loader,
        lambda: horizon_contract(sampling.Horizon.of),
        "a rate from the length of a loader",
    ),
    Fault(
        "A3 steps rounded down",
        _floored_steps,
        lambda: horizon_contract(sampling.Horizon.of),
        "fewer steps than are taken",
    ),
    Fault(
        "A6 records join too often",
        _poisson_at(1.2),
        lambda: sampler_contract(sampling.Poisson()),
        "records join at another rate",
    ),
    Fault("A7 the count query is free", _count_query_for_free, _adaptive_costs_more, "a count query for free"),
    Fault(
        "A14 steps that are not recorded",
        _charge_forgotten,
        lambda: billing_contract(methods.dp_sgd()),
        "charged is not what was planned",
    ),
    Fault(
        "A14 nothing is recorded",
        _nothing_charged,
        lambda: billing_contract(methods.dp_sgd()),
        "charged is not what was planned",
    ),
    Fault(
        "B1 weight for what is not finite",
        _no_finite_check,
        lambda: bounder_contract(clipping.AutoS()),
        "a record that is not finite has weight",
    ),
    Fault(
        "B1 one record poisons the sum",
        _poisoned_sum,
        lambda: step_contract(methods.dp_sgd(clip=0.5)),
        "one record poisons the sum",
    ),
    Fault(
        "B2 the clip is ignored",
        _clip_ignored,
        lambda: step_contract(methods.dp_sgd(clip=0.5)),
        "removing one record moves the release by more than the bound",
    ),
    Fault(
        "B2 the clip factor upside down",
        _weights(clipping.FlatClip, _inverted),
        lambda: bounder_contract(clipping.FlatClip(0.7)),
        "a record moves the sum by more than the bound",
    ),
    Fault(
        "B5 a parameter that is not counted",
        _norms_of_one_parameter,
        lambda: step_contract(methods.dp_sgd(0.5)),
        "removing one record moves the release by more than the bound",
    ),
    Fault(
        "B12 a made-up record in an empty batch",
        _fake_record_on_empty,
        lambda: step_contract(methods.dp_sgd()),
        "an empty batch has a signal",
    ),
    Fault(
        "B14 automatic clipping above its bound",
        _weights(clipping.AutoS, lambda norms, weights: weights * 1.001),
        lambda: bounder_contract(clipping.AutoS()),
        "a record moves the sum by more than the bound",
    ),
    Fault(
        "B15 division by the size of the drawn batch",
        _mean_over_the_drawn_batch,
        lambda: step_contract(methods.automatic()),
        "removing one record moves the release by more than the bound",
    ),
    Fault(
        "C1 the same noise for everyone",
        _same_noise_for_everyone,
        lambda: noise_contract(methods.dp_sgd()),
        "noise that repeats",
    ),
    Fault(
        "C1 keys from torch's seed",
        _seeded_by_torch,
        lambda: no_repeat_contract(_fresh_run),
        "two runs with the same noise",
    ),
    Fault(
        "C2 noise divided among processes",
        _noise_scaled(1 / math.sqrt(2)),
        lambda: noise_contract(methods.dp_sgd()),
        "noise of another size or shape",
    ),
    Fault(
        "C3 too much noise",
        _noise_scaled(1.5),
        lambda: noise_contract(methods.dp_sgd()),
        "noise of another size or shape",
    ),
    Fault(
        "C4 no noise without a gradient",
        _no_noise_where_no_gradient,
        lambda: noise_contract(methods.dp_sgd()),
        "a parameter without noise",
    ),
    Fault(
        "C8 a mask that changes inside a logical batch",
        _mask_changes_inside_a_batch,
        lambda: coverage_contract(STEPWISE),
        "signal without noise",
    ),
    Fault(
        "C8 noise on another mask", _noise_on_another_mask, lambda: coverage_contract(STEPWISE), "signal without noise"
    ),
    Fault(
        "D7 momentum moves what is frozen",
        _frozen_coordinates_coast,
        lambda: frozen_contract(STEPWISE),
        "frozen coordinates whose weights moves",
    ),
    Fault(
        "D7 frozen state decays",
        _frozen_state_decays,
        lambda: frozen_contract(STEPWISE),
        "frozen coordinates whose velocity moves",
    ),
    Fault(
        "A1 shuffled batches for Poisson sampling",
        _batches(_in_turn),
        lambda: sampler_contract(sampling.Poisson()),
        "batch sizes do not vary",
    ),
    Fault(
        "A1 batches of one size for Poisson sampling",
        _batches(_of_one_size),
        lambda: sampler_contract(sampling.Poisson()),
        "batch sizes do not vary",
    ),
    Fault(
        "A6 some records join more often",
        _batches(_favourites),
        lambda: sampler_contract(sampling.Poisson()),
        "some records join at another rate than others",
    ),
    Fault(
        "A1 a batch for two steps",
        _batches(_twice),
        lambda: sampler_contract(sampling.Poisson()),
        "steps in a row are not independent",
    ),
    Fault(
        "A1 epochs that leave records out",
        _bins_as_poisson,
        lambda: sampler_contract(sampling.BallsInBins()),
        "a record that is not in exactly one batch of an epoch",
    ),
    Fault(
        "A1 sampling with replacement",
        _batches(_with_replacement),
        lambda: sampler_contract(sampling.Poisson()),
        "a record that is twice in a batch",
    ),
    Fault(
        "A2 the price of half the rate",
        _poisson_at_half_the_rate,
        lambda: price_contract(sampling.Poisson(), Neighbouring.ADD_REMOVE),
        "less than the price of Poisson sampling",
    ),
]


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.name)
def fault(request: pytest.FixtureRequest) -> Fault:
    found: Fault = request.param
    return found


def test_the_contract_holds_without_the_fault(fault: Fault) -> None:
    if fault.name.startswith("A1 fixed"):
        with pytest.raises(Refused, match="relation"):  # without the fault this relation is refused
            fault.contract()
        return
    fault.contract()
    assert fault.says


def test_the_fault_is_noticed(fault: Fault, monkeypatch: Patch) -> None:
    fault.put_in(monkeypatch)
    with pytest.raises(AssertionError, match=re.escape(fault.says)):
        fault.contract()
