"""Games on whole runs with correlated noise: one canary on each coordinate, and the likelihood ratio of all steps."""

import itertools
import math
from typing import Final, final

import numpy as np
import numpy.typing as npt
import torch

from discreet.auditing.bounds import Flags, Floats
from discreet.auditing.games import by_world
from discreet.auditing.releases import Attacked, canaries, linear
from discreet.core import check
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.methods.dp_ftrl.correlated_noise import CorrelatedNoise
from discreet.stages.participation import CyclicPoisson, OnePass, Participation
from discreet.stages.plan import Recipe
from discreet.stages.sampling import Horizon
from discreet.training.step import PrivateStep, RunState

Parts = npt.NDArray[np.int64]

CANARIES: Final = 500
STEPS: Final = 4
EPSILON: Final = 3.0
"""The certified epsilon of the attacked run: of the order that an audit can show."""


@final
class CorrelatedCanaries:
    """Many records in one run, each on its own coordinate and included by a fair coin: one trial each.

    Valid because the noise of coordinates is independent, and the bounder sees one record at a time. The attacker knows
    C, the clip, and the part that a record belongs to, which the certificate allows; not when it was sampled. Trials
    are records of the first part: those of the others have columns that the end of the run cuts short. Records of the
    user's own loader take the places that the sampler names as the worst.
    """

    def __init__(self, recipe: Recipe, *, delta: float, epsilon: float = EPSILON, steps: int = STEPS) -> None:
        sampling = recipe.sampling
        check.require(isinstance(sampling, Participation), "correlated noise", recipe.method, "play ReleaseGame")
        # All records in every step; or two parts and two cycles; or two epochs of a loader; or one of a stream.
        share = 4 if isinstance(sampling, CyclicPoisson) else steps // 2 if sampling.is_own_loader else 1
        share = steps if isinstance(sampling, OnePass) else share
        horizon = Horizon.of(records=share * CANARIES, batch=CANARIES, steps=steps)
        if isinstance(sampling, CyclicPoisson):
            recipe = recipe.using(sampling=CyclicPoisson(parts=2))
        plan = recipe.for_horizon(epsilon=epsilon, delta=delta, horizon=horizon, accept_large_delta=True)
        self.attacked = Attacked(plan=plan, playing=plan, start=0)
        assert isinstance(plan.mechanism, CorrelatedNoise)
        column = plan.mechanism.matrix.column(steps)
        self._matrix = np.stack([np.concatenate([np.zeros(t), column[: steps - t]]) for t in range(steps)], axis=1)

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        def play() -> tuple[Flags, Floats]:
            there = generator.random(CANARIES) < 0.5
            seen, own_part = self._released(there)
            parts = generator.integers(self._parts, size=CANARIES)  # what is said of records that are not there
            if self._parts > 1:
                parts[there] = own_part
            first = parts == 0
            return there[first], self._ratios(seen[:, first])

        return by_world(play, trials)

    @property
    def _parts(self) -> int:
        sampling = self.attacked.plan.sampling
        return sampling.parts or 1 if isinstance(sampling, CyclicPoisson) else 1

    def _released(self, there: Flags) -> tuple[Floats, Parts]:
        """The noisy sums [steps, canaries] in clips, and the part of each record."""
        plan, streams, state = self.attacked.plan, Streams.from_os(), RunState()
        records, world = canaries(plan, there), World.current()
        sampling, horizon = plan.sampling, plan.horizon
        assert isinstance(sampling, Participation)
        everyone = np.arange(len(records))
        if sampling.is_own_loader:
            worst = set(sampling.worst(horizon))
            drawn = [everyone if step in worst else everyone[:0] for step in range(horizon.steps)]
        else:
            drawn = list(sampling.batches(len(records), horizon, streams.sampling, 0))
        part = np.zeros(len(records), dtype=np.int64)
        if self._parts > 1:
            part = streams.sampling.again(0).integers(len(records), below=self._parts)
        sums = []
        with linear(CANARIES) as (net, engine):
            for indices in drawn:
                step = PrivateStep(plan, engine, state, streams, lambda event, number: None, world)
                if len(indices):
                    engine.begin(len(indices))
                    step.add(net(records[torch.from_numpy(indices)]).squeeze(1))
                sums.append(step.release().value.double().numpy() * self.attacked.batch)
        return np.stack(sums) / plan.queries(1.0)[0].sensitivity, part

    def _ratios(self, seen: Floats) -> Floats:
        """The log-likelihood ratio of each coordinate, over all samples of a record of the first part."""
        whitened, noise, terms = self._matrix @ seen, self.attacked.plan.noise, []
        for weight, move in self._moves():
            shift = self._matrix @ move
            terms.append(math.log(weight) + (shift @ whitened - shift @ shift / 2) / noise**2)
        return np.asarray(np.logaddexp.reduce(terms, axis=0))

    def _moves(self) -> list[tuple[float, Floats]]:
        """The contributions of a record of the first part to all steps, with their probabilities."""
        plan, steps = self.attacked.plan, self.attacked.steps
        assert isinstance(plan.sampling, Participation)
        if self._parts == 1:
            places = plan.sampling.worst(plan.horizon) if plan.sampling.is_own_loader else range(steps)
            move = np.zeros(steps)
            # Under replace-one the worlds are a record and its opposite: the ratio is that of twice the record.
            move[list(places)] = 1.0
            return [(1.0, move)]
        rate, own = self._parts * plan.horizon.rate, range(0, steps, self._parts)
        moves = []
        for coins in itertools.product((0, 1), repeat=len(own)):
            move = np.zeros(steps)
            move[list(own)] = coins
            moves.append((math.prod(rate if coin else 1 - rate for coin in coins), move))
        return moves
