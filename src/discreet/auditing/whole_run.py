"""The whole-run game: train a small model to the end many times, with and without one record.

Training uses `Private` with its sampling, bounding, noise, optimizer and domain. If every coordinate has independent
noise and nothing couples records, a thousand copies of the small model are trained in one run, each with its own data,
weights and coin; they are independent trials. Otherwise each trial is a training.

The attacker sees every release or the final weights only, as in the plan's analysis, and knows the other records.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from discreet.auditing.bounds import Flags, Floats
from discreet.auditing.games import by_world
from discreet.auditing.releases import active_in, observing_releases, public_inputs
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.methods.dp_sgd.clipping import PerLayer
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.methods.dpsgd_dc.curvature import LinearModel
from discreet.methods.dpsgd_dc.guard import ClippedFeatures
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages.clipping import AutoS, FlatClip, Psac
from discreet.stages.pipeline import Pipeline
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import BallsInBins, FixedSize, FullBatch, Horizon, Poisson
from discreet.stages.selection import Everything
from discreet.stages.values import Released, StepContext
from discreet.training.private import Private

COPIES = 1000
_LOUD = 1e3  # the norm of a crafted gradient: beyond every clip
# The weight of a record depends on its own norm only.
_ONE_RECORD = (FlatClip, AutoS, Psac, PerLayer)


def couples_nothing(stages: Pipeline) -> bool:
    """Whether copies of a model in one run are independent; a stage that is not known to be safe counts as coupling."""
    plain = Recipe(method=stages.method, bounder=stages.bounder)
    # Gaussian noise, one query, no domain, no test, composition
    left_alone = ("mechanism", "combination", "acceptance", "domain", "analysis")
    return (
        all(getattr(stages, stage) == getattr(plain, stage) for stage in left_alone)
        and type(stages.bounder) in _ONE_RECORD
        and type(stages.selection) in (Everything, RandomFreeze)
        and type(stages.sampling) in (Poisson, FullBatch, BallsInBins)
    )


# -- the record -----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class TargetRecord:
    """The data of one copy of the model; inputs are label times features.

    others  the inputs of the other records, [n, d]
    own     the input of the attacked record, [d]
    losses  the loss l(w x) of each product of weights and input
    slopes  its derivative l', by which the gradient is l' x
    """

    others: Tensor
    own: Tensor
    losses: Callable[[Tensor], Tensor]
    slopes: Callable[[Tensor], Tensor]


def crafted_gradient(dimension: int = 4) -> TargetRecord:
    """A worst case: l(w x) = w x, so the record's gradient is huge at every step; there are no other records."""
    own = torch.full((dimension,), _LOUD * dimension**-0.5)
    return TargetRecord(torch.zeros(0, dimension), own, lambda products: products, torch.ones_like)


def mislabelled_record(dimension: int = 4, ordinary: int = 12) -> TargetRecord:
    """A data canary in logistic regression: an extreme record with the wrong label among `ordinary` ones."""
    noise = torch.randn(ordinary, dimension, generator=torch.Generator().manual_seed(ordinary)) / 2
    others = noise.add_(dimension**-0.5)  # already times the label: both classes look alike
    own = torch.full((dimension,), -10 * dimension**-0.5)
    return TargetRecord(others, own, lambda products: F.softplus(-products), lambda products: -torch.sigmoid(-products))


# -- the game -------------------------------------------------------------------------------------------------


@final
class WholeRun:
    """The game of `record` against `recipe`, trained for `steps` steps at rate `rate`; `plan` gives the cost."""

    def __init__(
        self,
        recipe: Recipe,
        record: TargetRecord,
        *,
        rate: float,
        steps: int,
        noise: float,
        delta: float,
        learning_rate: float = 0.5,
        copies: int | None = None,
    ) -> None:
        coupled = not couples_nothing(recipe)
        self.copies = (1 if coupled else COPIES) if copies is None else copies
        is_valid, got = self.copies == 1 or not coupled, f"{copies} copies, which this plan couples"
        check.require(is_valid, "one copy of the model in a run", got, "leave `copies` out")
        self.record = record
        rate = 1.0 if isinstance(recipe.sampling, FullBatch) else rate
        each = max(len(record.others) + 1, math.ceil(1 / rate))  # a public number: there may be fewer records
        batch = rate * self.copies * each
        if isinstance(recipe.sampling, FixedSize):
            batch = max(1, round(batch))
        horizon = Horizon.of(records=self.copies * each, batch=batch, steps=steps)
        # A game with records that are made up: any delta will do.
        self.plan = recipe.bind(noise=noise, horizon=horizon, delta=delta, accept_large_delta=True)
        self._learning_rate = learning_rate * self.copies
        if isinstance(recipe.analysis, LastIterate):
            self._learning_rate = recipe.analysis.learning_rate

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        in_turns = itertools.cycle((False, True))

        def play() -> tuple[Flags, Floats]:
            there = np.array([next(in_turns)]) if self.copies == 1 else generator.random(self.copies) < 0.5
            return there, self._train(there)

        return by_world(play, trials)

    def _train(self, there: Flags) -> Floats:
        """One run of all copies; the attacker's statistics of each copy are a row."""
        model = self._model()
        weights = next(model.parameters())  # [K, d]
        nn.init.zeros_(weights)
        attacker = Attacker(self.plan, self.record, weights)
        plan = observing_releases(self.plan, attacker.see) if self.plan.analysis.visible else self.plan
        optimizer = torch.optim.SGD(model.parameters(), lr=self._learning_rate)
        data = self._data(torch.from_numpy(there))
        public = TensorDataset(public_inputs(len(self.record.own))) if plan.bounder.public_records else None
        private = Private(
            model, optimizer, plan, data, micro_batch=max(len(data), 1), inputs=lambda batch: batch, public=public
        )
        try:
            for batch in private:
                private.step(self.record.losses(model(*batch).flatten()))
        finally:
            private.close()
        return attacker.verdicts()

    def _model(self) -> nn.Module:
        dimension, analysis = len(self.record.own), self.plan.analysis
        if self.copies > 1:
            return LinearModelCopies(self.copies, dimension)
        linear = nn.Linear(dimension, 1, bias=False)
        if isinstance(analysis, LastIterate) and isinstance(analysis.curvature, LinearModel):
            return nn.Sequential(ClippedFeatures(analysis.curvature.features), linear)
        return linear

    def _data(self, there: Tensor) -> TensorDataset:
        """The records of every copy; under replace-one, records with zero gradient fill up the fixed size."""
        copies, others, own = torch.arange(self.copies), self.record.others, self.record.own
        index, inputs = [copies.repeat_interleave(len(others))], [others.repeat(self.copies, 1)]
        if self.plan.relation is Neighbouring.REPLACE_ONE:
            missing = self.plan.horizon.size.records - len(index[0]) - len(copies)
            index += [copies, copies.new_zeros(missing)]
            inputs += [torch.where(there.unsqueeze(1), own, -own), own.new_zeros(missing, len(own))]
        else:
            index.append(copies[there])
            inputs.append(own.expand(len(copies[there]), -1))
        x = torch.cat(inputs)
        return TensorDataset(x) if self.copies == 1 else TensorDataset(torch.cat(index), x)


@final
class LinearModelCopies(nn.Module):
    """Copies of a linear model without bias; maps (copy, input) to the product."""

    def __init__(self, copies: int, dimension: int) -> None:
        super().__init__()
        self.weights = nn.Embedding(copies, dimension)

    def forward(self, copy: Tensor, x: Tensor) -> Tensor:
        return torch.as_tensor(self.weights(copy) * x).sum(-1)


@final
class Attacker:
    """Knows the plan and the other records, sees releases, and scores in which copies the record is.

    Statistics: the likelihood ratio of the releases, each approximated by a Gaussian with the same moments, and the sum
    of the releases along the record's gradient, which detects lasting shifts. With the final weights only: how well
    they fit the record.
    """

    def __init__(self, plan: Plan, record: TargetRecord, weights: Tensor) -> None:
        self._plan, self._record, self._weights = plan, record, weights
        self._ratio, self._sum = torch.zeros(2, len(weights), dtype=torch.float64)

    @torch.no_grad()
    def see(self, released: Released, std: float, context: StepContext) -> None:
        weights = self._weights.double()
        active = active_in(released).view(weights.shape)
        seen = released.value.view(weights.shape).double() * context.batch
        own = self._record.own.double() * active  # [K, d]
        share, norm = self._contributions(weights, own.unsqueeze(1))
        share, norm = share.squeeze(1), norm.squeeze(1).clamp(min=1e-12)
        towards = share / norm.unsqueeze(1)
        others, _ = self._contributions(weights, self._record.others.double() * active.unsqueeze(1))
        along = torch.einsum("knd,kd->kn", others, towards)
        rate = self._plan.horizon.rate
        found = (seen * towards).sum(1) - rate * along.sum(1)
        variance = (std * context.batch) ** 2 + rate * (1 - rate) * along.square().sum(1)
        if self._plan.relation is Neighbouring.REPLACE_ONE:
            self._ratio += found * norm / variance
        else:
            joins = (found * norm - norm.square() / 2) / variance + math.log(rate)
            stays = math.log1p(-rate) if rate < 1 else -math.inf
            self._ratio += torch.logaddexp(joins, torch.full_like(joins, stays))
        self._sum += found

    def _contributions(self, weights: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The bounded contributions of inputs [K, n, d] to the sum of each copy, and their norms."""
        slopes = self._record.slopes(torch.einsum("kd,knd->kn", weights, inputs))
        gradients = slopes.unsqueeze(2) * inputs
        norms = gradients.norm(dim=2)
        bounder = self._plan.bounder
        if type(bounder) not in _ONE_RECORD:  # any statistic is valid
            bounder = FlatClip(self._plan.queries(1.0)[0].sensitivity)
        bounds = bounder.weights(norms.reshape(1, -1), 1.0)[0, 0].view(norms.shape).nan_to_num(0.0)
        return gradients * bounds.unsqueeze(2), norms * bounds

    @torch.no_grad()
    def verdicts(self) -> Floats:
        """A row for each copy."""
        if not self._plan.analysis.visible:
            last = self._weights.double() @ self._record.own.double()
            downhill = -self._record.slopes(torch.zeros(1)).sign()  # where the record moves its own product
            return (last * downhill).unsqueeze(1).numpy()
        return torch.stack([self._ratio, self._sum], dim=1).numpy()
