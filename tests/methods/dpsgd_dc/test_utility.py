"""Settings for bounded domains: the paper's formulas, by hand, and the step from which a certificate stands still."""

from __future__ import annotations

import dataclasses
import math

import pytest

from discreet import methods
from discreet.core.check import Refused
from discreet.methods.dpsgd_dc.analysis import with_visible_iterates
from discreet.methods.dpsgd_dc.curvature import Link
from discreet.methods.dpsgd_dc.utility import (
    Problem,
    propose,
    propose_bounded,
    standstill,
    utility,
    utility_bounded,
)
from discreet.stages.sampling import Horizon

LOG = math.log(1e5)
MANY = Problem(
    epsilon=2.0,
    delta=1e-5,
    records=50_000,
    batch=500,
    dimensions=1000,
    smoothness=2.0,
    gradient_deviation=1.5,
)
FEW = dataclasses.replace(MANY, records=100, batch=10, dimensions=10_000, gradient_deviation=0.1)


def test_equations_88_and_92() -> None:
    few, many = propose(FEW), propose(MANY)
    assert few.few_records
    assert few.paper_steps == pytest.approx(4 * 100**2 / (10 * 10_000 * LOG))
    assert few.clip == pytest.approx(math.sqrt(10_000 * 2 * LOG) / 200)
    assert few.utility == pytest.approx(10_000 * 2 * LOG / 200**2)
    assert not many.few_records
    weight = 1000 * 2 * LOG
    assert many.paper_steps == pytest.approx(1e5 ** (4 / 3) * 2 / (500 * weight ** (2 / 3) * 1.5 ** (2 / 3)))
    assert many.clip == pytest.approx(1.5 ** (4 / 3) * 1e5 ** (1 / 3) / weight ** (1 / 6))
    assert many.utility == pytest.approx(1.5 ** (4 / 3) * (weight / 1e10) ** (1 / 3))


def test_equations_100_and_102() -> None:
    few = propose_bounded(FEW, diameter=2.0, strong_convexity=0.5)
    many = propose_bounded(MANY, diameter=2.0, strong_convexity=0.5)
    assert (few.few_records, many.few_records) == (True, False)
    assert few.paper_steps == pytest.approx(200**2 * 0.5**2.5 / (10 * 2**1.5 * LOG))
    weight = 1000 * 2 * LOG
    assert many.paper_steps == pytest.approx(1e5 ** (7 / 6) * 0.5 * 2 / (500 * weight ** (2 / 3) * 1.5))
    assert many.clip == pytest.approx(1.5**1.5 * 1e5**0.5 / (0.5**0.5 * 2**0.5 * weight**0.25))
    assert few.utility == pytest.approx(4 * 10_000 * 2 * LOG / 200**2)


@pytest.mark.parametrize("task", [MANY, FEW], ids=["many", "few"])
def test_steps_follow_the_rule_that_minimises_the_bound(task: Problem) -> None:
    """Without the limit on the learning rate the rule of DPSGD-GC gives the printed T."""
    found = propose(task)
    assert found.learning_rate <= 1 / (9 * task.smoothness)
    size, weight = task.epsilon * task.records, task.dimensions * task.smoothness * LOG
    assert found.steps == max(1, round(size / (found.learning_rate * found.clip * math.sqrt(weight))))
    free = {
        True: task.batch / task.smoothness,
        False: task.batch / (task.smoothness * task.gradient_deviation ** (2 / 3)) * task.price ** (1 / 3),
    }[found.few_records]
    assert size / (free * found.clip * math.sqrt(weight)) == pytest.approx(found.paper_steps, rel=1e-9)


def test_more_data_and_larger_budgets_promise_more() -> None:
    for better in (dataclasses.replace(MANY, records=500_000), dataclasses.replace(MANY, epsilon=8.0)):
        assert propose(better).utility < propose(MANY).utility
        kept = {"diameter": 2.0, "strong_convexity": 0.5}
        assert propose_bounded(better, **kept).utility < propose_bounded(MANY, **kept).utility
    smaller = propose_bounded(MANY, diameter=1.0, strong_convexity=0.5).utility
    assert smaller < propose_bounded(MANY, diameter=2.0, strong_convexity=0.5).utility


def test_proposition_3_8() -> None:
    found = utility(MANY, steps=400, clip=0.5, learning_rate=0.04, order=8.0, rdp=1.0)
    noise = 8 * 0.25 * 400 / (50_000 * 500)
    by_hand = (
        1 / (0.04 * 0.5 * 400)
        + 1 / math.sqrt(0.04 * 400)
        + min(1.5, 1.5**2 / 0.5)
        + math.sqrt(0.04 * 2) * 1.5 / math.sqrt(500)
        + 1000 * 2 * 0.04 / 0.5 * noise
        + math.sqrt(1000 * 2 * 0.04 * noise)
    )
    assert found == pytest.approx(by_hand)


def test_proposition_3_12_stops_paying_for_steps() -> None:
    fixed = {"clip": 0.5, "learning_rate": 0.04, "order": 8.0, "rdp": 1.0, "strong_convexity": 0.5}
    near = utility_bounded(MANY, steps=10**12, diameter=1e-4, **fixed)
    assert near == pytest.approx(utility_bounded(MANY, steps=10**13, diameter=1e-4, **fixed), rel=1e-3)
    assert utility_bounded(MANY, steps=10**6, diameter=9.0, **fixed) > utility_bounded(
        MANY, steps=10**4, diameter=9.0, **fixed
    )
    noise = 8 * 0.25 * 400 / (50_000 * 500)
    by_hand = (
        math.sqrt(2) * 4 / (0.04 * 0.5 * 400)
        + 2 / math.sqrt(0.04 * 400)
        + min(2**0.75 / 0.5**1.25 * 1.5, math.sqrt(1.5**3 / (0.5 * 0.5)))
        + math.sqrt(0.04 / 500) * 1.5
        + 1000 * 0.04 * math.sqrt(2) / 0.5 * noise
        + math.sqrt(1000 * 0.04 * noise)
    )
    assert utility_bounded(MANY, steps=400, diameter=2.0, **fixed) == pytest.approx(by_hand)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_standstill(decay: float) -> None:
    """From that step on the last iterate is cheaper than composition, and not before."""
    recipe = methods.dpsgd_dc(
        link=Link.LOGISTIC, learning_rate=3.8, radius=1.0, weight_decay=decay, features=1.0
    )

    def plan(steps: int) -> object:
        return recipe.bind(noise=30.0, horizon=Horizon.of(records=1000, batch=1000, steps=steps), delta=1e-5)

    still = standstill(plan(10))  # type: ignore[arg-type]
    if decay == 0:
        assert still.steps == pytest.approx(4 * 2 * 1000 / 3.8, rel=1e-2)
    for steps in (still.steps // 2, still.steps + 50, 10 * still.steps):
        hidden = plan(steps).certificate().epsilon  # type: ignore[attr-defined]
        seen = with_visible_iterates(plan(steps)).certificate().epsilon  # type: ignore[arg-type]
        assert (hidden < seen * (1 - 1e-6)) == (steps > still.steps)


def test_refusals() -> None:
    with pytest.raises(Refused, match="a full-batch plan"):
        standstill(methods.dp_sgd().bind(noise=1.0, horizon=Horizon.of_rate(rate=0.1, steps=5), delta=1e-5))
    with pytest.raises(Refused, match="order above 1"):
        utility(MANY, steps=1, clip=1.0, learning_rate=0.1, order=1.0, rdp=1.0)
    with pytest.raises(Refused, match="strongly convex"):
        propose_bounded(MANY, diameter=1.0, strong_convexity=0.0)
    with pytest.raises(Refused, match="spread"):
        dataclasses.replace(MANY, gradient_deviation=0.0)
