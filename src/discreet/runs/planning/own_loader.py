"""What your own loader or stream costs beside Poisson sampling, at the same certificate.

Noise multipliers of independent and of correlated noise do not compare: correlated noise is larger in a step and takes
a part of itself back later. The noise on the parameters does. It is that of plain SGD with a constant learning rate:
the root mean square, over the steps of the run, of the noise in the sum of all releases so far.
"""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from discreet import methods
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.runs.config import LOADERS, sampler_of
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon

LOADER_WORDS: Final = MappingProxyType(
    {
        "poisson": "Poisson sampling from the dataset",
        "fixed-order": "own loader, the same order in every epoch",
        "reshuffled": "own loader, shuffle=True",
        "one-pass": "own stream, no record twice",
        "own-loader": "own loader, order unknown",
    }
)
"""The samplers that are compared, in words; a stream is priced as one epoch of as many steps."""


@final
@dataclass(frozen=True, kw_only=True)
class LoaderPrice:
    """The cost of one way to get batches.

    noise  the noise multiplier that the budget needs; None, with the reason in `why`, if there is no such plan
    times  the noise on the parameters, relative to Poisson sampling with independent noise
    """

    sampling: str
    method: str
    relation: str
    noise: float | None = None
    times: float | None = None
    why: str = ""


def loader_prices(
    horizon: Horizon, *, epsilon: float, delta: float, accept_large_delta: bool = False
) -> tuple[LoaderPrice, ...]:
    """Price Poisson sampling and each kind of the user's own loader for the run.

    Guarantee: every noise is certified to stay within the budget.
    """
    found: list[LoaderPrice] = []
    reference = math.nan
    for name in LOADER_WORDS:
        recipe = _recipe(name)
        row = LoaderPrice(sampling=name, method=recipe.method, relation=str(recipe.relation))
        try:
            plan = recipe.for_horizon(
                epsilon=epsilon,
                delta=delta,
                horizon=_as_long(horizon, name),
                accept_large_delta=accept_large_delta or name == "one-pass",  # compared at one delta
            )
        except check.Refused as error:
            found.append(LoaderPrice(**{**vars(row), "why": str(error)}))
            continue
        on_parameters = _noise_on_parameters(plan)
        reference = on_parameters if name == "poisson" else reference
        found.append(LoaderPrice(**{**vars(row), "noise": plan.noise, "times": on_parameters / reference}))
    return tuple(found)


def _recipe(name: str) -> Recipe:
    if name not in LOADERS:
        return methods.dp_sgd()
    sampling = sampler_of(name)
    recipe = methods.dp_sgd() if name == "own-loader" else methods.dp_ftrl()
    return recipe.using(sampling=sampling, relation=Neighbouring.REPLACE_ONE)


def _as_long(horizon: Horizon, name: str) -> Horizon:
    """The same steps and batch; a stream has as many records as they take."""
    if name != "one-pass":
        return horizon
    batch = horizon.size.batch
    return Horizon.of(records=math.ceil(horizon.steps * batch), batch=batch, steps=horizon.steps)


def _noise_on_parameters(plan: Plan) -> float:
    from discreet.methods.dp_ftrl.correlated_noise import CorrelatedNoise, Workload
    from discreet.methods.dp_ftrl.optimised import noise_on_parameters

    steps = plan.horizon.steps
    if isinstance(plan.mechanism, CorrelatedNoise):
        return plan.noise * noise_on_parameters(plan.mechanism.matrix.noise(steps), Workload())
    return plan.noise * math.sqrt((steps + 1) / 2)
