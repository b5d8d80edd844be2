"""A recipe: the stages of a method, without the numbers of a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import final

from discreet.accounting import Charge, Claim, calibrate_claim, calibrate_noise
from discreet.stages.pipeline import Pipeline
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon


@final
@dataclass(frozen=True, kw_only=True)
class Recipe(Pipeline):
    """What a method does in a step. `for_budget`, `for_claim` or `bind` turn it into a `Plan`.

    >>> from discreet import methods
    >>> recipe = methods.dp_sgd(clip=0.1)
    >>> plan = recipe.for_budget(epsilon=3.0, delta=1e-5, records=60_000, batch=1024, epochs=20)
    >>> plan.certificate().epsilon <= 3.0
    True
    """

    def bind(self, *, noise: float, horizon: Horizon, delta: float) -> Plan:
        """The plan with this noise multiplier, for a run of these public numbers."""
        stages = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Plan(**stages, noise=noise, horizon=horizon, delta=delta)

    def for_budget(
        self,
        *,
        epsilon: float,
        delta: float,
        records: int,
        batch: float,
        epochs: int | None = None,
        steps: int | None = None,
    ) -> Plan:
        """The plan with the least noise whose certificate stays within (epsilon, delta)."""
        horizon = Horizon.of(records=records, batch=batch, epochs=epochs, steps=steps)
        return self.for_horizon(epsilon=epsilon, delta=delta, horizon=horizon)

    def for_horizon(self, *, epsilon: float, delta: float, horizon: Horizon) -> Plan:
        """`for_budget` for a horizon that is already there."""

        def charge(noise: float) -> Charge:
            return self.bind(noise=noise, horizon=horizon, delta=delta).charge()

        noise = calibrate_noise(charge, epsilon=epsilon, delta=delta, relation=self.relation)
        return self.bind(noise=noise, horizon=horizon, delta=delta)

    def for_claim(self, *, epsilon: float, delta: float, horizon: Horizon) -> Plan:
        """The plan with the noise that the paper CLAIMS to be enough; its `certificate` says what is proven."""

        def claim(noise: float) -> Claim | None:
            return self.bind(noise=noise, horizon=horizon, delta=delta).charge().claimed

        noise = calibrate_claim(claim, epsilon=epsilon, delta=delta)
        return self.bind(noise=noise, horizon=horizon, delta=delta)
