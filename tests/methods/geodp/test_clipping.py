"""Directions and magnitudes as two queries: bounds by leaving records out, the split, the way back to a gradient."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import loop
import replay
from discreet import methods
from discreet.accounting.events import Gaussian, Queries
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.layout import Layout
from discreet.methods.geodp.recipes import best_split
from discreet.methods.geodp.spherical import from_spherical, middle, to_spherical
from discreet.methods.geodp.stages import ANGLES, AngleWindow, FromAngles, FromPolar, Polar, Tails, Window
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages.aggregation import Aggregation
from discreet.stages.clipping import ROUND_DOWN
from discreet.stages.noise import GaussianNoise
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.selection import Order
from discreet.stages.values import StepContext

CLIP = 0.7
BOUNDERS = [
    Polar(clip=CLIP),
    AngleWindow(clip=CLIP),
    AngleWindow(clip=CLIP, window=Window.BOX, beta=0.3),
    AngleWindow(clip=CLIP, beta=1.0),
    AngleWindow(clip=CLIP, window=Window.BOX, beta=1.0),
]


def hard_records(size: int) -> Tensor:
    """Gradients that are hard to bound: near zero, opposite, at the ends of every angle's range, not finite."""
    generator = torch.Generator().manual_seed(size)
    rows = [torch.randn(size, generator=generator) * factor for factor in (1e-38, 1e-20, 1e-3, 1.0, 1e6, 1e30)]
    rows += [-rows[3], torch.zeros(size), rows[3].clone()]
    for sign in (1.0, -1.0):
        for index in (0, size - 2, size - 1):
            spike = torch.zeros(size)
            spike[index] = sign
            rows.append(spike)
        wrap = torch.zeros(size)  # the last angle just below pi, and just above -pi
        wrap[-2], wrap[-1] = -1.0, sign * 1e-12
        rows.append(wrap)
    for bad in (math.nan, math.inf, -math.inf):
        poisoned = rows[3].clone()
        poisoned[size // 2] = bad
        rows.append(poisoned)
    return torch.stack(rows)


def references(size: int) -> list[dict[str, Tensor]]:
    """No release yet, and released angles at the ends of their ranges."""
    low, high = middle(size, torch.zeros(())), middle(size, torch.zeros(()))
    low[:-1], high[:-1] = 0.0, math.pi
    low[-1], high[-1] = -math.pi, math.pi
    return [{}, {ANGLES: low}, {ANGLES: high}]


@functools.cache
def engine_of(size: int) -> Engine:
    return Engine(torch.nn.Linear(size, 1, bias=False))


def sums(bounder: Polar | AngleWindow, records: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, float]:
    """What a batch of records with these gradients adds up to, through the engine and the aggregation."""
    engine = engine_of(records.shape[1])
    total = Aggregation(bounder, 1.0, engine, None, Order.FREEZE_THEN_CLIP, memory)
    engine.begin(len(records))
    engine.backward(engine.model(records).squeeze(1))
    total.add()
    found = total.sums(World.current())
    return found.vectors[0].value.double(), float(found.scalars[0].value)


@pytest.mark.parametrize("size", [2, 3, 17])
@pytest.mark.parametrize("bounder", BOUNDERS, ids=repr)
def test_no_record_moves_either_sum_by_more_than_its_bound(bounder: Polar | AngleWindow, size: int) -> None:
    records = hard_records(size)
    vector, scalar = bounder.vectors(1.0)[0].sensitivity, bounder.scalars()[0].sensitivity
    assert (vector, scalar) == (CLIP, 1.0)
    for memory in references(size):
        whole = sums(bounder, records, memory)
        assert bool(whole[0].isfinite().all())
        assert math.isfinite(whole[1])
        moved = []
        for left_out in range(len(records)):
            rest = sums(bounder, records[torch.arange(len(records)) != left_out], memory)
            moved.append(float((whole[0] - rest[0]).norm()))
            assert moved[-1] <= vector * (1 + 1e-6)
            assert abs(whole[1] - rest[1]) <= scalar * (1 + 1e-9)
        assert max(moved) > 0.5 * vector, "records that hardly count do not test a bound"
        assert max(moved[-3:]) == 0, "a record that is not finite counts"
        assert sums(bounder, records[-3:], memory)[1] == 0


def test_the_check_sees_a_window_that_is_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: angles without a window, at their own scale."""
    radius = AngleWindow.radius
    bounder = AngleWindow(clip=CLIP, window=Window.BOX, beta=0.3)
    records = hard_records(17)
    monkeypatch.setattr(AngleWindow, "_within", _unbounded)
    assert radius(bounder, 17) > 0
    moved = max(float(sums(bounder, record.unsqueeze(0), {})[0].norm()) for record in records[:-3])
    assert moved > CLIP * 1.1


def _unbounded(self: AngleWindow, gradients: Tensor, known: Tensor | None) -> Tensor:
    out = torch.zeros(gradients.shape, dtype=torch.float64)
    out[:, :-1] = (to_spherical(gradients)[1] - middle(gradients.shape[1], out)) * self.clip
    return out / self.radius(gradients.shape[1])


def test_what_a_record_gives() -> None:
    records = torch.tensor([[3.0, 4.0], [0.03, -0.04], [0.0, 0.0]])
    vector, magnitude = sums(Polar(clip=0.5), records[:2], {})
    assert torch.allclose(vector, 0.5 * torch.tensor([1.2, 0.0], dtype=torch.float64), atol=1e-6)
    assert magnitude == pytest.approx(1.0 + 0.1)
    assert sums(Polar(clip=0.5), records[2:], {})[1] == 0
    window = AngleWindow(clip=0.5, window=Window.BOX, beta=0.5)  # one angle, half-width pi/2
    angle, _ = sums(window, records[1:2], {})
    assert float(angle[0]) == pytest.approx(0.5 * ROUND_DOWN * -math.atan2(4, 3) / (math.pi / 2), rel=1e-6)
    assert float(angle[1]) == 0


def test_the_ball_holds_the_box() -> None:
    """At the same price the ball never cuts what the box keeps."""
    records = hard_records(17)[:9]
    for beta in (0.05, 0.3, 1.0):
        box, ball = (AngleWindow(beta=beta, window=window) for window in (Window.BOX, Window.BALL))
        assert box.vectors(1.0) == ball.vectors(1.0)
        exact = (to_spherical(records)[1] - middle(17, torch.zeros(()))) * ROUND_DOWN / ball.radius(17)
        boxed, balled = (bounder._within(records, None)[:, :-1] for bounder in (box, ball))
        whole = (boxed - exact).abs().amax(1) < 1e-12
        assert bool(((balled - exact).abs().amax(1) < 1e-12)[whole].all())
        cut = ~whole & (exact.norm(dim=1) > 0)
        assert bool((balled.norm(dim=1) >= boxed.norm(dim=1) - 1e-12)[cut].all())


def test_angles_are_taken_the_short_way_round() -> None:
    reference = middle(3, torch.zeros(()))
    reference[-1] = 3.1
    record = from_spherical(torch.tensor(1.0), torch.tensor([math.pi / 2, -3.1])).float().unsqueeze(0)
    bounder = AngleWindow(beta=1.0)
    given, _ = sums(bounder, record, {ANGLES: reference})
    assert float(given[1]) * bounder.radius(3) == pytest.approx(2 * math.pi - 6.2, rel=1e-4)


# -- the price --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [methods.polar, methods.geodp_sound])
@pytest.mark.parametrize("split", [0.5, 0.9, 0.99])
def test_both_queries_together_cost_one_gaussian(recipe: type[Plan], split: float) -> None:
    plan = recipe(split=split)  # type: ignore[call-arg]
    event = GaussianNoise().event(plan.queries(1.0), 1.3)
    assert isinstance(event, Queries)
    assert event.whitened.noise == pytest.approx(1.3, rel=1e-12)
    horizon = Horizon.of_rate(rate=0.01, steps=50)
    plain = methods.dp_sgd().bind(noise=1.3, horizon=horizon, delta=1e-5).certificate().epsilon
    found = plan.bind(noise=1.3, horizon=horizon, delta=1e-5).certificate().epsilon
    assert found == pytest.approx(plain, rel=1e-9)


def test_the_specified_examples() -> None:
    """Multipliers 1.2 and 4 make 1.149392, 2 and 3 make 1.664101; 1000 steps at rate 0.01 with the first: 1.4002."""
    first = Queries((Gaussian(1.2), Gaussian(4.0))).whitened.noise
    assert first == pytest.approx(1.149392, abs=1e-6)
    assert Queries((Gaussian(2.0), Gaussian(3.0))).whitened.noise == pytest.approx(1.66410, abs=1e-5)
    split = (first / 1.2) ** 2
    plan = methods.polar(split=split).bind(noise=first, horizon=Horizon.of_rate(rate=0.01, steps=1000), delta=1e-5)
    assert [query.event(first).noise for query in plan.queries(1.0)] == pytest.approx([1.2, 4.0])
    assert plan.certificate().epsilon == pytest.approx(1.4002, rel=0.005)


@pytest.mark.parametrize("split", [0.0, 1.0, -1.0, math.nan])
def test_the_split_is_inside_the_unit_interval(split: float) -> None:
    for recipe in (methods.polar, methods.geodp_sound):
        with pytest.raises(Refused, match="split"):
            recipe(split=split)


@pytest.mark.parametrize("beta", [0.0, 1.5, -0.1])
def test_the_window_is_a_share(beta: float) -> None:
    with pytest.raises(Refused, match="beta"):
        methods.geodp_sound(beta=beta)


# -- the split ------------------------------------------------------------------------------------------------


def error(split: float, *, size: int, noise: float, batch: float, magnitude: float, agreement: float) -> float:
    """The expected squared error of mean magnitude times noisy sum, over (C z)^2: as derived in the docs."""
    a, b = 1 / split, 1 / (1 - split)
    number = b * noise**2 / batch**2  # variance of the mean magnitude
    return size * a * (magnitude**2 + number) + b * agreement**2


def test_the_best_split_has_the_least_error() -> None:
    for size in (10, 10_000, 10**6):
        for noise, batch in ((0.5, 4096.0), (4.0, 64.0)):
            public = {"size": size, "noise": noise, "batch": batch, "magnitude": 0.7, "agreement": 0.2}
            best = best_split(**public)  # type: ignore[arg-type]
            least = error(best, **public)  # type: ignore[arg-type]
            for other in (best**1.1, best**0.9):
                assert least < error(other, **public)  # type: ignore[arg-type]


def test_the_default_split_is_good_for_every_model_that_is_not_tiny() -> None:
    for size, most in ((1000, 1.05), (10_000, 1.0001), (10**5, 1.01), (10**7, 1.011)):
        public = {"size": size, "noise": 1.0, "batch": 4096.0, "magnitude": 1.0, "agreement": 1.0}
        best = best_split(**public)  # type: ignore[arg-type]
        assert error(0.99, **public) <= most * error(best, **public)  # type: ignore[arg-type]


def test_the_formula_of_the_error_by_simulation() -> None:
    """20000 draws; the mean square of the error within 3 % (its standard error is 0.5 %)."""
    generator = torch.Generator().manual_seed(0)
    size, noise, batch, split, draws = 50, 1.5, 40.0, 0.8, 20_000
    direction = torch.zeros(size)
    direction[0] = 30.0  # agreement 0.75
    a, b = split**-0.5, (1 - split) ** -0.5
    vectors = direction + a * noise * torch.randn(draws, size, generator=generator)
    means = 0.6 + b * noise * torch.randn(draws, 1, generator=generator) / batch
    found = float((means * vectors - 0.6 * direction).square().sum(1).mean()) / noise**2
    expected = error(split, size=size, noise=noise, batch=batch, magnitude=0.6, agreement=0.75)
    assert found == pytest.approx(expected, rel=0.03)


# -- back to a gradient ---------------------------------------------------------------------------------------


def context(size: int, memory: dict[str, Tensor] | None = None) -> StepContext:
    return StepContext(
        step=0,
        steps_per_epoch=1,
        batch=10.0,
        layout=Layout(("w",), ((size,),)),
        streams=Streams.seeded(0),
        memory={} if memory is None else memory,
    )


def test_polar_multiplies_the_mean_magnitude_and_the_sum_of_directions() -> None:
    given = FromPolar().gradient([torch.tensor([2.0, -4.0])], [5.0], context(2))
    assert given.tolist() == [1.0, -2.0]
    for number, factor in ((-3.0, 0.0), (25.0, 1.0)):
        assert FromPolar().gradient([torch.tensor([2.0])], [number], context(1)).tolist() == [2.0 * factor]


def test_records_that_agree_give_their_gradient_back() -> None:
    """Ten copies of one record, no noise: angles reach the record's own, and the product of sines is exact."""
    record = torch.tensor([[0.2, -0.1, 0.4, -0.3]]) / 10
    bounder = AngleWindow(clip=1.0, beta=1.0)
    memory: dict[str, Tensor] = {}
    exact = FromAngles(bounder, Tails.PRODUCT)
    for _ in range(3):
        vector, number = sums(bounder, record.expand(10, -1), memory)
        given = exact.gradient([vector], [number], context(4, memory))
    assert torch.allclose(given, 10 * record[0].double(), atol=1e-5)
    assert torch.allclose(memory[ANGLES], to_spherical(record)[1][0], atol=1e-4)


def test_the_reference_is_what_was_released() -> None:
    bounder = AngleWindow()
    memory: dict[str, Tensor] = {}
    FromAngles(bounder).gradient([torch.randn(6)], [3.0], context(6, memory))
    first = memory[ANGLES].clone()
    assert first.shape == (5,)
    assert bool(((first[:-1] >= 0) & (first[:-1] <= math.pi)).all())
    noisy = torch.randn(6)
    FromAngles(bounder).gradient([noisy.clone()], [3.0], context(6, memory))
    step = noisy[:-1].double() * bounder.radius(6) / 10
    assert torch.allclose(memory[ANGLES][:-1], (first + step)[:-1].clamp(0, math.pi))


def test_averaged_angles_are_not_the_angle_of_the_average() -> None:
    """Records around a direction: the product of sines throws nearly all on the last two coordinates."""
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(4000, 400, generator=generator)
    records[:, 0] += 2.0
    angles = to_spherical(records)[1].mean(0)
    true = (records / records.norm(dim=1, keepdim=True)).double().mean(0)
    window = AngleWindow()
    product, even = (FromAngles(window, tails).direction(angles) for tails in (Tails.PRODUCT, Tails.EVEN))
    assert float(product[-2:].norm()) > 0.9
    assert float(torch.cosine_similarity(product, true, dim=0)) < 0.2
    assert float(torch.cosine_similarity(even[:-2], true[:-2], dim=0)) > 0.95
    assert float(even[:-2].norm()) == pytest.approx(float(true[:-2].norm()), rel=0.1)
    assert float(even[-2:].norm()) <= math.sqrt(2 / 400) * (1 + 1e-12)  # the most that the last two can get


# -- with other stages ------------------------------------------------------------------------------------------


def test_polar_takes_masks() -> None:
    for order in Order:
        plan = methods.polar().using(selection=RandomFreeze(final_rate=0.5, order=order))
        bound = plan.bind(noise=1.0, horizon=Horizon.of(records=8, batch=8, steps=2), delta=1e-5)
        assert replay.leave_one_out(bound) > 0.5


def test_angles_refuse_masks_at_construction() -> None:
    with pytest.raises(Refused, match="all coordinates active"):
        methods.geodp_sound().using(selection=RandomFreeze(final_rate=0.5))
    with pytest.raises(Refused, match="the bounder AngleWindow"):
        methods.geodp_sound().using(bounder=AngleWindow(clip=3.0))
    with pytest.raises(Refused, match="the bounder Polar"):
        methods.polar().using(bounder=AngleWindow(clip=3.0))


def test_a_resumed_run_goes_on_from_the_last_released_angles(tmp_path: Path) -> None:
    plan = loop.plan(methods.geodp_sound(clip=0.5))
    ledger, state = tmp_path / "ledger.jsonl", tmp_path / "state.pt"
    run = loop.private(which=plan, ledger=ledger)
    loop.train(run, most=3)
    run.save(state)
    run.close()
    again = loop.private(which=plan, ledger=ledger, resume=state, seed=8)
    assert torch.equal(again.progress.memory[ANGLES], run.progress.memory[ANGLES])
    loop.train(again)
    assert not torch.equal(again.progress.memory[ANGLES], run.progress.memory[ANGLES])


@pytest.mark.parametrize("recipe", [methods.polar(clip=0.5), methods.geodp_sound(clip=0.5)])
def test_a_run_trains_and_remembers_its_reference(recipe: Recipe) -> None:
    run = loop.private(which=loop.plan(recipe))
    assert loop.train(run) == loop.STEPS
    assert (ANGLES in run.progress.memory) is (recipe.method == "geodp-sound")


def test_angles_of_the_active_coordinates_run() -> None:
    """Angles are summed in double precision, and the sums of a mask take them as those of all coordinates do."""
    recipe = Recipe(method="dp-sgd", bounder=AngleWindow(), selection=RandomFreeze(final_rate=0.5, cooling_epochs=1))
    run = loop.private(None, loop.plan(recipe))
    loop.train(run)
    assert run.progress.step == len(run)
