"""The step from which the certificate of a full-batch run stops growing."""

from __future__ import annotations

import pytest

from discreet import methods
from discreet.core.check import Refused
from discreet.methods.dpsgd_dc.curvature import Link
from discreet.stages.analysis import Composition
from discreet.stages.sampling import Horizon
from research.reproductions.dpsgd_dc.standstill import standstill


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_standstill(decay: float) -> None:
    """From that step on the last iterate is cheaper than composition, and not before."""
    recipe = methods.dpsgd_dc(link=Link.LOGISTIC, learning_rate=3.8, radius=1.0, weight_decay=decay, features=1.0)

    def plan(steps: int) -> object:
        return recipe.bind(noise=30.0, horizon=Horizon.of(records=1000, batch=1000, steps=steps), delta=1e-5)

    still = standstill(plan(10))  # type: ignore[arg-type]
    if decay == 0:
        assert still.steps == pytest.approx(4 * 2 * 1000 / 3.8, rel=1e-2)
    for steps in (still.steps // 2, still.steps + 50, 10 * still.steps):
        hidden = plan(steps).certificate().epsilon  # type: ignore[attr-defined]
        seen = plan(steps).using(analysis=Composition()).certificate().epsilon  # type: ignore[attr-defined]
        assert (hidden < seen * (1 - 1e-6)) == (steps > still.steps)


def test_a_plan_that_never_stands_still_is_refused() -> None:
    with pytest.raises(Refused, match="a full-batch plan"):
        standstill(methods.dp_sgd().bind(noise=1.0, horizon=Horizon.of_rate(rate=0.1, steps=5), delta=1e-5))
