"""Canaries in an ordinary training run: how much of its certificate an attack can demonstrate.

The run is trained once more with extra records, each included by a fair coin. Then the coins are guessed.

gradient  each canary has an extra coordinate of its own, along which its gradient is huge: the worst case for a
          mechanism that adds the same noise to all coordinates. The score uses every release.
data      records of the test set with a wrong label; the score is how much training lowered their loss.

The bound comes from the theorem of Steinke, Nasr and Jagielski (2023), which allows every dependence between canaries
(`Guesses`). With thousands of gradient canaries and a plan that couples no records, they are independent trials of the
one-record game (`Tally`), which gives a larger bound: the theorem adds a term 2 * canaries * delta.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from discreet.auditing.bounds import CONFIDENCE, Flags, Floats, Guesses, Tally, best_audit, guess
from discreet.auditing.releases import active_in, observing_releases
from discreet.auditing.trainings import OnStep, TrainingSetup, fit, log_probabilities
from discreet.auditing.whole_run import couples_nothing
from discreet.core import check
from discreet.core.plain import plain
from discreet.core.relation import Neighbouring
from discreet.methods.dp_sgd.clipping import PerLayer
from discreet.runs import RunConfig
from discreet.runs.audit_rows import CanaryKind
from discreet.stages.plan import Plan
from discreet.stages.values import Released, StepContext

CANARIES = 1000
_MANY = 4000  # from this number on, independent trials give more than the theorem
_LOUD = 1e3  # the norm of a gradient canary: beyond every clip


@final
@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """The result of canaries in one training run.

    audited      a lower bound on epsilon at the run's delta, wrong with probability at most 1 - confidence
    independent  whether canaries counted as independent trials; otherwise the bound comes from `guesses`
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
        """audited / certified; the gap is the attack's weakness or the certificate's slack."""
        return self.audited / self.certified if 0 < self.certified < math.inf else None

    def to_json(self) -> dict[str, Any]:
        held = plain(self)
        del held["is"], held["kind"], held["independent"]
        return {
            **held,
            "canary": self.kind.value,
            "tightness": self.tightness,
            "bound": "independent trials" if self.independent else "guesses of one run",
            "guesses": {"made": self.guesses.made, "correct": self.guesses.correct},
        }


def audit_training(
    config: RunConfig,
    *,
    kind: CanaryKind | None = None,
    canaries: int = CANARIES,
    confidence: float = CONFIDENCE,
    generator: np.random.Generator | None = None,
    on_step: OnStep | None = None,
) -> RunAudit:
    """Train once as the config says, with canaries, and report what they show. Nothing is written.

    kind  None: gradient canaries, or data canaries where only the final parameters may be seen
    """
    check.count("the number of canaries", least=16, canaries=canaries)
    setup = TrainingSetup.of(config)
    rng = generator if generator is not None else np.random.default_rng()
    chosen = kind or (CanaryKind.GRADIENT if setup.plan.analysis.visible else CanaryKind.DATA)
    planted = (_GradientCanaries if chosen is CanaryKind.GRADIENT else _DataCanaries)(setup, canaries, rng)
    scores = planted.train(on_step)
    plan, there = setup.plan, planted.there
    guesses, delta = guess(scores, there), plan.delta
    # Decided by public numbers: taking the larger of two bounds would be multiple testing.
    independent = chosen is CanaryKind.GRADIENT and len(there) >= _MANY and couples_nothing(plan)
    bound = _as_trials(scores, there, delta, confidence) if independent else None
    claim = plan.charge().claimed
    return RunAudit(
        method=setup.config.method,
        kind=chosen,
        canaries=len(there),
        steps=plan.horizon.steps,
        certified=plan.certificate().epsilon,
        claimed=None if claim is None else claim.epsilon(delta),
        audited=guesses.epsilon(delta, confidence) if bound is None else bound,
        delta=delta,
        confidence=confidence,
        independent=independent,
        guesses=guesses,
    )


def _as_trials(scores: Floats, there: Flags, delta: float, confidence: float) -> float:
    """Half of the canaries choose the event, half test it."""
    half = len(scores) // 2
    tallies = []
    for part in (slice(None, half), slice(half, None)):
        tally = Tally.around(scores[:half][~there[:half]], scores[:half][there[:half]])
        tally.add(absent=scores[part][~there[part]], present=scores[part][there[part]])
        tallies.append(tally)
    return best_audit([(tallies[0], tallies[1])], delta=delta, confidence=confidence).epsilon


# -- gradient canaries ------------------------------------------------------------------------------------------


@final
class ModelWithCanaries(nn.Module):
    """A model with one extra parameter for each canary."""

    def __init__(self, model: nn.Module, canaries: int) -> None:
        super().__init__()
        self.model = model
        self.own = nn.Embedding(canaries, 1)
        nn.init.zeros_(self.own.weight)

    def forward(self, x: Tensor, mark: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(x), torch.as_tensor(self.own(mark.clamp(min=0))).squeeze(-1)


@final
class _GradientCanaries:
    """Canaries with coordinates of their own; the mark of a record is its canary's number, or -1."""

    def __init__(self, setup: TrainingSetup, canaries: int, rng: np.random.Generator) -> None:
        self._setup = setup
        analysis, remedy = setup.plan.analysis, "use data canaries: only the last iterate leaves such a run"
        check.require(analysis.visible, "a plan whose releases may be seen", type(analysis).__name__, remedy)
        self.there: Flags = rng.random(canaries) < 0.5
        self._scores = np.zeros(canaries)

    def train(self, on_step: OnStep | None) -> Floats:
        """The run; for each canary the likelihood ratio of all releases."""
        setup, streams = self._setup, self._setup.streams(0)
        model = ModelWithCanaries(setup.build(streams), len(self.there)).to(setup.config.device)
        fit(
            setup,
            model,
            self._data(),
            streams=streams,
            plan=observing_releases(setup.plan, self._see),
            losses=self._losses,
            inputs=lambda batch: (batch[0], batch[2]),
            on_step=on_step,
        )
        return self._scores

    def _data(self) -> TensorDataset:
        x, y = self._setup.task.train.tensors
        there = torch.from_numpy(self.there)
        if self._setup.plan.relation is Neighbouring.REPLACE_ONE:  # the size is public: canaries replace records
            marks = torch.arange(len(there))
            signs = torch.where(there, 1, -1)
            check.require(len(there) <= len(x), "no more canaries than records", len(there), "take fewer canaries")
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
        """Add each canary's log-likelihood ratio of this release; frozen coordinates tell nothing."""
        plan, count = self._setup.plan, len(self.there)
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
class _DataCanaries:
    """Records of the test set with a wrong label."""

    def __init__(self, setup: TrainingSetup, canaries: int, rng: np.random.Generator) -> None:
        self._setup, (x, y) = setup, setup.task.test.tensors
        count = min(canaries, len(x), len(setup.task.train) // 2)
        chosen = torch.from_numpy(rng.permutation(len(x))[:count])
        wrong = torch.from_numpy(rng.integers(1, setup.task.classes, count))
        self._x, self._y = x[chosen], (y[chosen] + wrong) % setup.task.classes
        self._right = y[chosen]
        self.there: Flags = rng.random(count) < 0.5

    def train(self, on_step: OnStep | None) -> Floats:
        """Train; the score is how much each canary's loss fell."""
        setup, streams = self._setup, self._setup.streams(0)
        model = setup.build(streams)
        before = self._losses(model)
        fit(setup, model, self._data(), streams=streams, on_step=on_step)
        return np.asarray(before - self._losses(model))

    def _losses(self, model: nn.Module) -> Floats:
        answers = log_probabilities(model, self._x, self._setup.config.device)
        return -answers.gather(1, self._y.unsqueeze(1)).squeeze(1).numpy()

    def _data(self) -> TensorDataset:
        """Canaries replace other records, so that no public number is exceeded."""
        x, y = self._setup.task.train.tensors
        kept, there = len(x) - len(self.there), torch.from_numpy(self.there)
        if self._setup.plan.relation is Neighbouring.REPLACE_ONE:
            labels = torch.where(there, self._y, self._right)
            return TensorDataset(torch.cat([x[:kept], self._x]), torch.cat([y[:kept], labels]))
        return TensorDataset(torch.cat([x[:kept], self._x[there]]), torch.cat([y[:kept], self._y[there]]))
