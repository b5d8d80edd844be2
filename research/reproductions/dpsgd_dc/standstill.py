"""From which step on a full-batch certificate for the last iterate stops growing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from discreet.accounting import last_iterate
from discreet.accounting.events import Gaussian, LastIterateRun, units
from discreet.core import check
from discreet.stages.plan import Plan


@final
@dataclass(frozen=True, kw_only=True)
class Standstill:
    """A full-batch run for the last iterate: after `steps` steps its certificate is `mu`-Gaussian for ever."""

    steps: int
    mu: float


def standstill(plan: Plan) -> Standstill:
    """When the certificate of a full-batch plan under LastIterate stops growing. A shorter run gains nothing from it.

    About 4 D n / (eta C) steps without weight decay, and ln(...) / (eta decay) with it.
    """
    event = plan.event_at(0)
    if not isinstance(event, LastIterateRun) or not isinstance(event.step, Gaussian):
        check.refuse(
            "a full-batch plan with analysis=LastIterate(...)",
            f"{type(plan.analysis).__name__} with {type(plan.sampling).__name__}",
            "other plans hardly ever stand still at a useful epsilon: compare certificates at several steps",
        )
    noise = event.step.noise
    shift = event.diameter * event.batch / (event.learning_rate * noise * event.clip)
    noise /= units(plan.relation)
    mu, _ = last_iterate.gaussian_mu(steps=2**50, noise=noise, shift=shift, factor=event.expansion)
    # Composition of T steps has sqrt(T)/z: from here on the last iterate is cheaper.
    return Standstill(steps=math.ceil((mu * noise) ** 2), mu=mu)
