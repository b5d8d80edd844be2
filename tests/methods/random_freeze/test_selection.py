"""Masks: how many coordinates they leave active, how likely each is, and what they may depend on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from discreet.core.check import Refused
from discreet.core.streams import Stream, Streams
from discreet.engine.active import Active, from_indices
from discreet.engine.layout import Layout, Mask
from discreet.methods.random_freeze import masks
from discreet.methods.random_freeze.selection import Granularity, RandomFreeze, RankedFreeze, Refresh
from discreet.stages.sampling import Horizon
from discreet.stages.selection import Everything
from discreet.stages.values import Released, StepContext

LAYOUT = Layout(("conv", "w", "b", "s"), ((4, 3, 2, 2), (6, 5), (6,), ()))
CPU = torch.device("cpu")
ALPHA = 1e-6  # false-alarm rate of every statistical test here


def context(step: int = 0, *, layout: Layout = LAYOUT, streams: Streams | None = None, **more: Any) -> StepContext:
    streams = streams or Streams.seeded(1)
    return StepContext(step=step, steps_per_epoch=5, batch=10.0, layout=layout, streams=streams, **more)


def whole(mask: Mask | None, layout: Layout = LAYOUT) -> torch.Tensor:
    """The active coordinates as truth values, by the mask's own definition."""
    assert mask is not None
    flat = torch.ones(layout.size)
    mask.apply_(layout.views(flat))
    return flat.bool()


# How many -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 999, 12_345])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 0.99])
def test_exactly_the_stated_number_of_elements_is_active(size: int, rate: float) -> None:
    layout = Layout(("a", "b"), ((size - 3,), (3,)))
    found = whole(RandomFreeze(final_rate=rate).mask(context(layout=layout)), layout)
    assert int(found.sum()) == max(1, round((1 - rate) * size))


def test_the_rate_rises_to_its_end_and_stays() -> None:
    freeze = RandomFreeze(final_rate=0.8, cooling_epochs=5)
    assert [round(freeze.rate(epoch), 12) for epoch in range(7)] == [0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8]
    assert RandomFreeze(final_rate=0.8).rate(0) == 0.8
    assert freeze.mask(context(0)) is None  # nothing is frozen in the first epoch
    active = [int(whole(freeze.mask(context(5 * epoch))).sum()) for epoch in range(1, 7)]
    assert active == [round((1 - freeze.rate(epoch)) * LAYOUT.size) for epoch in range(1, 7)]


@pytest.mark.parametrize("granularity", list(Granularity))
def test_units_are_frozen_together(granularity: Granularity) -> None:
    freeze = RandomFreeze(final_rate=0.5, granularity=granularity)
    mask = freeze.mask(context())
    assert mask is not None
    mask.check(LAYOUT)
    on = [bool(line.all()) for line in _lines(granularity, whole(mask))]
    assert len(on) == granularity.total_units(LAYOUT)
    assert sum(on) == round(0.5 * len(on))


def _lines(granularity: Granularity, active: torch.Tensor) -> Any:
    """The coordinates of each unit, all on or all off."""
    for view in LAYOUT.views(active):
        if granularity is Granularity.ELEMENTS:
            lines = view.reshape(-1, 1)
        elif granularity is Granularity.TENSORS:
            lines = view.reshape(1, -1)
        else:
            by_column = granularity is Granularity.COLUMNS and view.dim() > 1
            lines = (view.transpose(0, 1) if by_column else view.reshape(-1, 1) if view.dim() < 2 else view).flatten(1)
        for line in lines:
            assert line.all() or not line.any()
            yield line


@pytest.mark.parametrize("wrong", [-0.1, 1.0, 1.5, float("nan")])
def test_a_rate_outside_its_range_is_refused(wrong: float) -> None:
    with pytest.raises(Refused, match="final_rate"):
        RandomFreeze(final_rate=wrong)
    with pytest.raises(Refused, match="cooling_epochs"):
        RandomFreeze(final_rate=0.5, cooling_epochs=0)


# How likely -----------------------------------------------------------------------------------------------


def test_every_coordinate_is_equally_likely() -> None:
    """Chi-square over 40 coordinates and 2000 masks; without replacement it varies less, so it is scaled."""
    of, count, draws = 40, 8, 2000
    stream = Streams.seeded(2).mask
    hits = sum(stream.at(i).subset(count, of).astype(int) for i in range(draws))
    assert _uniform(hits, count / of, draws) > ALPHA
    favoured = hits.copy()
    favoured[:4] += 100  # negative control: four coordinates 25 % likelier
    assert _uniform(favoured, count / of, draws) < ALPHA


def _uniform(hits: Any, share: float, draws: int) -> float:
    variance = draws * share * (1 - share) * len(hits) / (len(hits) - 1)
    statistic = ((hits - draws * share) ** 2).sum() / variance
    return float(stats.chi2.sf(statistic, len(hits) - 1))


def test_a_tie_is_drawn_again() -> None:
    class Ties:
        calls = 0

        def uniform64(self, count: int) -> Any:
            self.calls += 1
            words = np.arange(count, dtype=np.uint64)
            return np.zeros(count, dtype=np.uint64) if self.calls == 1 else words

    stream: Any = Ties()
    assert Stream.subset(stream, 2, 4).tolist() == [True, True, False, False]
    assert stream.calls == 2


# What they depend on --------------------------------------------------------------------------------------


def test_a_mask_serves_an_epoch_or_a_step() -> None:
    streams = Streams.seeded(3)
    epoch, step = (RandomFreeze(final_rate=0.5, refresh=refresh) for refresh in Refresh)
    by_epoch = [whole(epoch.mask(context(i, streams=streams))) for i in range(7)]
    by_step = [whole(step.mask(context(i, streams=streams))) for i in range(7)]
    assert all(torch.equal(own, by_epoch[0]) for own in by_epoch[:5])
    assert not torch.equal(by_epoch[5], by_epoch[0])
    assert len({tuple(own.tolist()) for own in by_step}) == 7


def test_a_mask_comes_from_the_mask_stream_alone() -> None:
    """The same stream gives the same mask again; another one another; noise and sampling are not touched."""
    freeze = RandomFreeze(final_rate=0.5)
    streams = Streams.seeded(4)
    first = whole(freeze.mask(context(streams=streams)))
    masks.cached_mask.cache_clear()
    assert torch.equal(first, whole(freeze.mask(context(streams=Streams.seeded(4)))))
    assert not torch.equal(first, whole(freeze.mask(context(streams=Streams.seeded(5)))))
    assert streams.noise.spent == streams.sampling.spent == 0
    memory: dict[str, torch.Tensor] = {}
    freeze.mask(context(memory=memory))
    assert not memory  # never stored


def test_indices_are_the_mask() -> None:
    for granularity in Granularity:
        mask = RandomFreeze(final_rate=0.5, granularity=granularity).mask(context())
        assert mask is not None
        active = Active.of(mask, LAYOUT, CPU)
        assert torch.equal(active.whole, whole(mask).nonzero().flatten())
        assert active is Active.of(mask, LAYOUT, CPU)
        again = from_indices(active.whole, LAYOUT)
        assert torch.equal(whole(again), whole(mask))
        known = Active.of(again, LAYOUT, CPU)
        assert known.counts == active.counts
        for one, other in zip(known.parts, active.parts, strict=True):
            assert (one is None and other is None) or (
                one is not None and other is not None and torch.equal(one, other)
            )


# Ranked ---------------------------------------------------------------------------------------------------


def released(values: torch.Tensor, mask: Mask | None = None) -> Released:
    return Released.on(mask, values.clone(), LAYOUT, 1.0)


def test_ranked_freeze_keeps_the_largest_releases() -> None:
    freeze = RankedFreeze(final_rate=0.5)
    memory: dict[str, torch.Tensor] = {}
    assert freeze.mask(context(0, memory=memory)) is None  # nothing to rank yet
    values = torch.randn(LAYOUT.size)
    for step in range(5):
        freeze.observe(released(values if step < 4 else -3 * values), 0.1, context(step, memory=memory))
    mask = freeze.mask(context(5, memory=memory))
    count = round(0.5 * LAYOUT.size)
    assert torch.equal(whole(mask).nonzero().flatten(), values.abs().topk(count).indices.sort().values)
    assert torch.equal(whole(mask), whole(freeze.mask(context(9, memory=memory))))  # for the whole epoch


def test_frozen_coordinates_are_ranked_by_noise_of_the_right_size() -> None:
    """Frozen in epoch 1, a coordinate is ranked for epoch 2 by N(0, steps std^2), whatever its old releases."""
    layout = Layout(("w",), ((40_000,),))
    freeze, memory = RankedFreeze(final_rate=0.5), {}
    values = torch.arange(40_000.0) + 1e6
    freeze.observe(Released(values, layout), 2.0, context(0, layout=layout, memory=memory))
    mask = freeze.mask(context(5, layout=layout, memory=memory))
    assert mask is not None
    for step in range(5, 9):
        given = Released.on(mask, torch.zeros(40_000), layout, 1.0)
        freeze.observe(given, 3.0, context(step, layout=layout, memory=memory))
    scores = masks._scores(context(10, layout=layout, memory=memory)).numpy()
    assert not scores[20_000:].any()  # active: their releases, which were zero, with no second noise
    assert stats.kstest(scores[:20_000] / 6.0, "norm").pvalue > ALPHA
    assert stats.kstest(scores[:20_000] / 5.5, "norm").pvalue < ALPHA  # negative control


def test_nothing_unreleased_reaches_the_ranking() -> None:
    """The whole interface is the release: what lies on frozen coordinates of a sum does not matter."""
    freeze = RankedFreeze(final_rate=0.5)
    found = []
    for secret in (0.0, 1e9):
        memory: dict[str, torch.Tensor] = {}
        torch.manual_seed(0)
        for step in range(12):
            now = context(step, memory=memory)
            mask = freeze.mask(now)
            total = torch.randn(LAYOUT.size)
            if mask is not None:
                total[~whole(mask)] += secret
            freeze.observe(released(total, mask), 1.0, now)
        found.append(whole(freeze.mask(context(15, memory=memory))))
    assert torch.equal(found[0], found[1])


def test_a_run_that_lost_its_releases_ranks_by_noise() -> None:
    mask = RankedFreeze(final_rate=0.5).mask(context(5))
    assert int(whole(mask).sum()) == round(0.5 * LAYOUT.size)


# Density --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "cooling", "epochs", "baseline", "paper"),
    [
        (0.7, 40, 40, None, 0.65),  # Table 2, end-to-end CNN
        (0.6, 80, 80, None, 0.7),  # handcrafted CNN
        (0.4, 200, 200, None, 0.8),  # GEP
        (0.7, 50, 50, None, 0.65),  # transfer learning
        (0.9, 40, 60, 40, 0.6),  # Table 9: relative to the dense run of 40 epochs that it replaces
        (0.9, 80, 100, 80, 0.575),  # printed as 0.58
    ],
)
def test_density_of_the_paper(rate: float, cooling: int, epochs: int, baseline: int | None, paper: float) -> None:
    horizon = Horizon.of(records=50_000, batch=1000, epochs=epochs)
    freeze = RandomFreeze(final_rate=rate, cooling_epochs=cooling)
    assert freeze.density(horizon, baseline_epochs=baseline) == pytest.approx(paper, abs=1e-12)


def test_density_is_what_a_run_keeps_active() -> None:
    layout = Layout(("w",), ((1000,),))
    horizon = Horizon.of(records=50, batch=10, steps=23)  # the last epoch is cut short
    for freeze in (
        RandomFreeze(final_rate=0.8, cooling_epochs=3),
        RandomFreeze(final_rate=0.8),
        RankedFreeze(final_rate=0.8, cooling_epochs=3),
        RankedFreeze(final_rate=0.8),
    ):
        memory: dict[str, torch.Tensor] = {}
        active = 0
        for step in range(horizon.steps):
            mask = freeze.mask(context(step, layout=layout, memory=memory))
            active += 1000 if mask is None else int(whole(mask, layout).sum())
        assert freeze.density(horizon) == pytest.approx(active / 1000 / horizon.steps, abs=1e-12)
    assert Everything().density(horizon) == 1


def test_settings_are_public_and_frozen() -> None:
    freeze = RandomFreeze(final_rate=0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        freeze.final_rate = 0.1  # type: ignore[misc]
