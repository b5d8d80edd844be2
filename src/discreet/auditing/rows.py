"""The attacks of the truth table: which game is played against which method, and with how many trials."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.accounting import gdp
from discreet.auditing import broken
from discreet.auditing.games import Game, PoissonStep, PreparedGame
from discreet.runs.audit_rows import AuditRow

if TYPE_CHECKING:
    from discreet.auditing.whole_run import TargetRecord
    from discreet.methods import Method
    from discreet.stages.plan import Plan
    from discreet.stages.recipe import Recipe

OnProgress = Callable[[str, int, int], None]
"""Receives the label of the current row, its trials so far, and their total."""

NOISE, LITTLE_NOISE = 1.0, 0.5
"""Noise multipliers. Games with a few hundred trials use the smaller one; at the other they would show nothing.

A claim without a certificate is attacked at the usual one, where it is lower."""

COARSE_DELTA = 1e-2
"""The delta at which a few thousand real releases can show something."""

RATE, STEPS = 0.25, 10
"""Of whole runs; where each trial is a training, half of the steps."""

LAST_ITERATE = MappingProxyType(
    {"dpsgd-dc": MappingProxyType({"link": "logistic", "learning_rate": 4.0, "radius": 1.0})}
)
"""Settings of methods that are certified for their final parameters only."""


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """The number of trials in each world.

    scalar     of games with one number a trial
    canaries   of releases with many canaries
    runs       of releases with one record
    copies     of whole runs, many models at a time
    trainings  of whole runs, one model at a time; 0: only last iterates, with `few` trials
    times      multiplies what a demonstration needs
    """

    scalar: int
    canaries: int
    runs: int
    copies: int = 0
    trainings: int = 0
    few: int = 0
    times: int = 1


QUICK = Effort(scalar=20_000_000, canaries=100_000, runs=600, copies=20_000, few=100)
FULL = Effort(scalar=100_000_000, canaries=1_000_000, runs=10_000, copies=200_000, trainings=1000, few=2000, times=4)


@final
@dataclass(frozen=True, kw_only=True)
class Attack:
    """A row of the table that is still to be played."""

    method: str
    label: str
    prepare: Callable[[], PreparedGame]

    def row(self, listener: OnProgress | None = None, generator: np.random.Generator | None = None) -> AuditRow:
        """Play it."""
        advance = None if listener is None else functools.partial(listener, self.label)
        return self.prepare().play(generator=generator, advance=advance)


def attacks_on(method: Method, effort: Effort) -> Iterator[Attack]:
    """One step, and whole runs: with a crafted gradient and with a mislabelled record."""
    from discreet.auditing.whole_run import CraftedGradient, MislabelledRecord, couples_nothing

    def attack(words: str, prepare: Callable[[], PreparedGame]) -> Attack:
        return Attack(method=method.name, label=f"{method.name}, {words}", prepare=prepare)

    yield attack("one step", functools.partial(_one_step, method, effort))
    recipe = method.recipe()
    independent = couples_nothing(recipe)
    trials, steps = (effort.copies, STEPS) if independent else (effort.trainings, STEPS // 2)
    records: dict[str, TargetRecord] = {"crafted gradient": CraftedGradient(), "data canary": MislabelledRecord()}
    for words, record in records.items() if trials else ():
        words = f"whole run, {words}"
        yield attack(words, functools.partial(_whole_run, recipe, record, words, steps, trials))
    if method.name in LAST_ITERATE and effort.few:
        recipe, words = method.recipe(**LAST_ITERATE[method.name]), "last iterate, data canary"
        play = functools.partial(_whole_run, recipe, MislabelledRecord(), words, STEPS // 2, effort.few)
        yield attack("last iterate", play)


def _one_step(method: Method, effort: Effort) -> PreparedGame:
    """What the method really releases at a sampling rate of 1, where sampling hides nothing."""
    from discreet.auditing.releases import Canaries, game_for

    game = game_for(method.recipe(), noise=NOISE, delta=COARSE_DELTA)
    many = isinstance(game, Canaries)
    if not many and method.certified:
        game = game_for(method.recipe(), noise=LITTLE_NOISE, delta=COARSE_DELTA)
    steps = "one step" if game.attacked.steps == 1 else f"{game.attacked.steps} steps"
    trials = effort.canaries if many else effort.runs
    return _against(game.attacked.plan, game, f"{steps}, crafted gradient", trials)


def _whole_run(recipe: Recipe, record: TargetRecord, words: str, steps: int, trials: int) -> PreparedGame:
    """A small model, trained to the end through `Private`."""
    from discreet.auditing.whole_run import WholeRun, couples_nothing

    noise = NOISE if couples_nothing(recipe) else LITTLE_NOISE
    game = WholeRun(recipe, record, rate=RATE, steps=steps, noise=noise, delta=COARSE_DELTA)
    return _against(game.plan, game, words, trials)


def _against(plan: Plan, game: Game, words: str, trials: int) -> PreparedGame:
    """A game against the real releases of a plan."""
    claim, horizon = plan.charge().claimed, plan.horizon
    return PreparedGame(
        game=game,
        method=plan.method,
        parameters={"game": words, "noise": plan.noise, "rate": horizon.rate, "steps": horizon.steps},
        trials=trials,
        delta=COARSE_DELTA,
        certified=plan.certificate().epsilon,
        claimed=None if claim is None else claim.epsilon(COARSE_DELTA),
    )


def statistic(effort: Effort) -> Attack:
    """DP-SGD's full-batch step by its sufficient statistic: how close an attack comes at a small delta."""
    exact = gdp.epsilon(1 / NOISE, broken.DELTA)
    prepared = PreparedGame(
        game=PoissonStep(noise=NOISE),
        method="dp-sgd",
        parameters={"game": "one step, sufficient statistic", "noise": NOISE, "rate": 1.0, "steps": 1},
        trials=effort.scalar,
        delta=broken.DELTA,
        certified=exact,
        analytic=exact,
    )
    return Attack(method="dp-sgd", label="dp-sgd, one number a trial", prepare=lambda: prepared)


def against_claim(method: str, effort: Effort) -> Attack:
    """A published mechanism against its paper's claim."""

    def prepare() -> PreparedGame:
        prepared = broken.CLAIMS[method]()
        return dataclasses.replace(prepared, trials=prepared.trials * effort.times)

    return Attack(method=method, label=f"{method}, as published", prepare=prepare)
