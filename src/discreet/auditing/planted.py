"""Canaries in an ordinary training run: how much of its certificate an attacker can really see.

A run's own recipe is trained once more, with records that each join by a fair coin. Then the coins are guessed.

gradient  each canary has a coordinate of its own beside the model's, along which its gradient is huge: the worst case
          for a mechanism whose noise covers all coordinates alike. The score follows every release.
data      records of the test set with a wrong label; the score is how far training lowered their loss.

What the guesses prove: by the theorem of Steinke, Nasr and Jagielski (2023), which allows every dependence between
canaries (`one_run`); or, for thousands of gradient canaries of a plan that couples nothing, as independent trials of
the one-record game (`bounds`), which then shows more: the theorem pays 2 * canaries * delta.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from discreet.auditing.bounds import Floats, Tally, audit
from discreet.auditing.games import CONFIDENCE
from discreet.auditing.one_run import Guesses, guess
from discreet.auditing.trainings import OnStep, Recipe, fit, log_probabilities
from discreet.auditing.watching import active_in, watched
from discreet.auditing.whole_run import couples_nothing
from discreet.core import check
from discreet.core.plain import plain
from discreet.core.relation import Neighbouring
from discreet.methods.dp_sgd.bounding import PerLayer
from discreet.stages.plan import Plan

if TYPE_CHECKING:
    from discreet.runs import RunConfig
    from discreet.stages.context import StepContext
    from discreet.stages.values import Released

Flags = npt.NDArray[np.bool_]

CANARIES = 1000
_MANY = 4000  # from here on, independent trials show more than the theorem
_LOUD = 1e3  # the norm of a gradient canary: beyond every clip


class CanaryKind(enum.StrEnum):
    """What a canary is."""

    GRADIENT = "gradient"
    DATA = "data"


@final
@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """What canaries showed about one run's recipe.

    audited      a lower bound on epsilon at the run's delta, wrong with probability at most 1 - confidence
    independent  whether canaries counted as independent trials; otherwise `guesses` proved it
    """

    method: str
    kind: CanaryKind
    canaries: int
    steps: int
    certified: float
    claimed: float | None
    audited: float
    delta: float
    confidence: float
    independent: bool
    guesses: Guesses

    @property
    def tightness(self) -> float | None:
        """audited / certified: what is left is the attack's weakness or the certificate's slack."""
        return self.audited / self.certified if 0 < self.certified < math.inf else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        told: dict[str, Any] = plain(
            {
                "method": self.method,
                "canary": self.kind,
                "canaries": self.canaries,
                "steps": self.steps,
                "certified": self.certified,
                "claimed": self.claimed,
                "audited": self.audited,
                "tightness": self.tightness,
                "delta": self.delta,
                "confidence": self.confidence,
                "bound": "independent trials" if self.independent else "guesses of one run",
                "guesses": {"made": self.guesses.made, "correct": self.guesses.correct},
            }
        )
        return told


def audit_recipe(
    config: RunConfig,
    *,
    kind: CanaryKind | None = None,
    canaries: int = CANARIES,
    confidence: float = CONFIDENCE,
    generator: np.random.Generator | None = None,
    on_step: OnStep | None = None,
) -> RunAudit:
    """Train the config's recipe once with canaries, and say what they show. Nothing is written.

    kind  None: gradient canaries, or data canaries where only the last iterate may be seen
    """
    check.count("coins to be guessed", least=16, canaries=canaries)
    recipe = Recipe.of(config)
    rng = generator if generator is not None else np.random.default_rng()
    chosen = (
        kind
        if kind is not None
        else (CanaryKind.GRADIENT if recipe.plan.analysis.visible else CanaryKind.DATA)
    )
    planted = (_Gradients if chosen is CanaryKind.GRADIENT else _Records)(recipe, canaries, rng)
    scores = planted.train(on_step)
    plan, there = recipe.plan, planted.there
    guesses, delta = guess(scores, there), plan.delta
    # Decided by public numbers alone: taking the larger of two bounds would be a second attempt.
    independent = chosen is CanaryKind.GRADIENT and len(there) >= _MANY and couples_nothing(plan)
    shown = (
        _as_trials(scores, there, delta, confidence) if independent else guesses.epsilon(delta, confidence)
    )
    claim = plan.charge().claimed
    return RunAudit(
        method=recipe.config.method,
        kind=chosen,
        canaries=len(there),
        steps=plan.horizon.steps,
        certified=plan.certificate().epsilon,
        claimed=None if claim is None else claim.epsilon(delta),
        audited=shown,
        delta=delta,
        confidence=confidence,
        independent=independent,
        guesses=guesses,
    )


def _as_trials(scores: Floats, there: Flags, delta: float, confidence: float) -> float:
    """Half of the canaries choose the event, half judge it."""
    half = len(scores) // 2
    tallies = []
    for part in (slice(None, half), slice(half, None)):
        tally = Tally.around(scores[:half][~there[:half]], scores[:half][there[:half]])
        tally.add(absent=scores[part][~there[part]], present=scores[part][there[part]])
        tallies.append(tally)
    return audit(*tallies, delta=delta, confidence=confidence).epsilon


# -- gradient canaries ------------------------------------------------------------------------------------------


@final
class Beside(nn.Module):
    """A model, and beside it one number for each canary."""

    def __init__(self, model: nn.Module, canaries: int) -> None:
        super().__init__()
        self.model = model
        self.own = nn.Embedding(canaries, 1)
        nn.init.zeros_(self.own.weight)

    def forward(self, x: Tensor, mark: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(x), torch.as_tensor(self.own(mark.clamp(min=0))).squeeze(-1)


@final
class _Gradients:
    """Canaries with coordinates of their own; marks say which record is which canary, or -1."""

    def __init__(self, recipe: Recipe, canaries: int, rng: np.random.Generator) -> None:
        self._recipe = recipe
        check.require(
            recipe.plan.analysis.visible,
            "a plan whose releases may be seen",
            type(recipe.plan.analysis).__name__,
            "use data canaries: only the last iterate leaves such a run",
        )
        self.there: Flags = rng.random(canaries) < 0.5
        self._scores = np.zeros(canaries)

    def train(self, on_step: OnStep | None) -> Floats:
        """The run; for each canary the likelihood ratio of all releases."""
        recipe, streams = self._recipe, self._recipe.streams(0)
        model = Beside(recipe.build(streams), len(self.there)).to(recipe.config.device)
        fit(
            recipe,
            model,
            self._data(),
            streams=streams,
            plan=watched(recipe.plan, self._see),
            losses=self._losses,
            inputs=lambda batch: (batch[0], batch[2]),
            on_step=on_step,
        )
        return self._scores

    def _data(self) -> TensorDataset:
        x, y = self._recipe.task.train.tensors
        there = torch.from_numpy(self.there)
        if self._recipe.plan.relation is Neighbouring.REPLACE_ONE:  # the size is public: canaries take places
            marks = torch.arange(len(there))
            signs = torch.where(there, 1, -1)
            check.require(
                len(there) <= len(x), "no more canaries than records", len(there), "take fewer canaries"
            )
            x, y = x[len(there) :], y[len(there) :]
        else:
            marks = torch.arange(len(there))[there]
            signs = torch.ones_like(marks)
        ordinary = torch.full((len(x),), -1)
        return TensorDataset(
            torch.cat([x, x.new_zeros(len(marks), *x.shape[1:])]),
            torch.cat([y, y.new_zeros(len(marks))]),
            torch.cat([ordinary, marks]),
            torch.cat([ordinary, signs]),
        )

    @staticmethod
    def _losses(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        x, y, mark, sign = batch
        scores, own = model(x, mark)
        ordinary = F.cross_entropy(scores, y, reduction="none")
        return torch.where(mark < 0, ordinary, _LOUD * sign * own)

    def _see(self, released: Released, std: float, context: StepContext) -> None:
        """Add the log likelihood ratio of this release, canary by canary; frozen ones learn nothing."""
        plan, count = self._recipe.plan, len(self.there)
        reach = 1 / max(plan.noise_at(context.step) * plan.queries(1.0)[0].share, 1e-12)
        if isinstance(plan.bounder, PerLayer):
            reach /= math.sqrt(len(released.layout.names))
        seen = released.value[-count:].double().cpu().numpy() / max(std, 1e-300)
        active = active_in(released)[-count:].numpy()
        self._scores += np.where(active, _ratio(plan, seen, reach), 0.0)


def _ratio(plan: Plan, seen: Floats, reach: float) -> Floats:
    """ln((1 - q) + q N(reach, 1) / N(0, 1)) at `seen`, for releases in units of their noise."""
    rate = plan.horizon.rate
    if plan.relation is Neighbouring.REPLACE_ONE:
        return seen * reach
    joins = math.log(rate) + seen * reach - reach**2 / 2
    return joins if rate == 1 else np.logaddexp(joins, math.log1p(-rate))


# -- data canaries ----------------------------------------------------------------------------------------------


@final
class _Records:
    """Records of the test set with a wrong label."""

    def __init__(self, recipe: Recipe, canaries: int, rng: np.random.Generator) -> None:
        self._recipe = recipe
        x, y = recipe.task.test.tensors
        count = min(canaries, len(x), len(recipe.task.train) // 2)
        chosen = torch.from_numpy(rng.permutation(len(x))[:count])
        wrong = torch.from_numpy(rng.integers(1, recipe.task.classes, count))
        self._x, self._y = x[chosen], (y[chosen] + wrong) % recipe.task.classes
        self._right = y[chosen]
        self.there: Flags = rng.random(count) < 0.5

    def train(self, on_step: OnStep | None) -> Floats:
        """The run; how far it lowered each canary's loss."""
        recipe, streams = self._recipe, self._recipe.streams(0)
        model = recipe.build(streams)
        before = self._losses(model)
        fit(recipe, model, self._data(), streams=streams, on_step=on_step)
        return np.asarray(before - self._losses(model))

    def _losses(self, model: nn.Module) -> Floats:
        answers = log_probabilities(model, self._x, self._recipe.config.device)
        return -answers.gather(1, self._y.unsqueeze(1)).squeeze(1).numpy()

    def _data(self) -> TensorDataset:
        """They take the places of other records, so that no public number is exceeded."""
        x, y = self._recipe.task.train.tensors
        kept, there = len(x) - len(self.there), torch.from_numpy(self.there)
        if self._recipe.plan.relation is Neighbouring.REPLACE_ONE:
            labels = torch.where(there, self._y, self._right)
            return TensorDataset(torch.cat([x[:kept], self._x]), torch.cat([y[:kept], labels]))
        return TensorDataset(torch.cat([x[:kept], self._x[there]]), torch.cat([y[:kept], self._y[there]]))
