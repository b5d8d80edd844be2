"""A recipe: the stages of a method, without noise multiplier, number of steps or delta."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import final

from discreet.stages.pipeline import Pipeline
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon


@final
@dataclass(frozen=True, kw_only=True)
class Recipe(Pipeline):
    """What a method does in each step. `for_budget`, `for_claim` and `bind` turn it into a `Plan`.

    >>> from discreet import methods
    >>> recipe = methods.dp_sgd(clip=0.1)
    >>> plan = recipe.for_budget(epsilon=3.0, delta=1e-5, records=60_000, batch=1024, epochs=20)
    >>> plan.certificate().epsilon <= 3.0
    True
    """

    def bind(self, *, noise: float, horizon: Horizon, delta: float, accept_large_delta: bool = False) -> Plan:
        """Return the plan with this noise multiplier, horizon and delta.

        delta must be below 1/records, unless `accept_large_delta` is true.
        """
        stages = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Plan(**stages, noise=noise, horizon=horizon, delta=delta, accept_large_delta=accept_large_delta)

    def for_budget(
        self,
        *,
        epsilon: float,
        delta: float,
        records: int,
        batch: float,
        epochs: int | None = None,
        steps: int | None = None,
        accept_large_delta: bool = False,
    ) -> Plan:
        """Return the plan with the smallest noise multiplier whose certificate stays within (epsilon, delta).

        Give the length of the run as `epochs` or as `steps`.
        """
        horizon = Horizon.of(records=records, batch=batch, epochs=epochs, steps=steps)
        return self.for_horizon(epsilon=epsilon, delta=delta, horizon=horizon, accept_large_delta=accept_large_delta)

    def for_horizon(self, *, epsilon: float, delta: float, horizon: Horizon, accept_large_delta: bool = False) -> Plan:
        """Like `for_budget`, for an existing `Horizon`."""
        from discreet.accounting.calibration import calibrate_noise

        bind = functools.partial(self.bind, horizon=horizon, delta=delta, accept_large_delta=accept_large_delta)
        relation = self.relation
        noise = calibrate_noise(lambda z: bind(noise=z).charge(), epsilon=epsilon, delta=delta, relation=relation)
        return bind(noise=noise)

    def for_claim(self, *, epsilon: float, delta: float, horizon: Horizon, accept_large_delta: bool = False) -> Plan:
        """Return the plan with the noise multiplier that the paper CLAIMS to suffice.

        The plan's `certificate` states the epsilon that is proven for it, which may be larger.
        """
        from discreet.accounting.calibration import calibrate_claim

        bind = functools.partial(self.bind, horizon=horizon, delta=delta, accept_large_delta=accept_large_delta)
        return bind(noise=calibrate_claim(lambda z: bind(noise=z).charge().claimed, epsilon=epsilon, delta=delta))
