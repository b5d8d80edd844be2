"""How the rows of the truth table are made: which game is played against which method, and how often."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.accounting import Neighbouring, certify, gdp
from discreet.auditing import broken
from discreet.auditing.games import Game, GaussianStep, play
from discreet.auditing.verdicts import Row

if TYPE_CHECKING:
    from discreet.auditing.whole_run import Record
    from discreet.methods import Method
    from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe

OnProgress = Callable[[str, int, int], None]
"""Told the row under way, its trials so far, and of how many."""

NOISE, LITTLE_NOISE = 1.0, 0.5
"""Noise multipliers; the little one is for games of a few hundred trials, which would show nothing at the other.

A claim without a certificate is attacked at the usual one, where it is lower."""

COARSE_DELTA = 1e-2
"""The delta at which a few thousand real releases can show something."""

RATE, STEPS = 0.25, 10
"""Of whole runs; trainings of one model at a time take half of the steps."""

LAST_ITERATE = MappingProxyType(
    {"dpsgd-dc": MappingProxyType({"link": "logistic", "learning_rate": 4.0, "radius": 1.0})}
)
"""Recipes whose certificate is for the last iterate alone."""


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """How many trials a world.

    scalar     of games that are one number
    canaries   of releases with many canaries
    runs       of releases with one record
    copies     of whole runs, many models at a time
    trainings  of whole runs, one model at a time; 0: none but those that show a last iterate, `few` of them
    times      as many as a demonstration needs
    """

    scalar: int
    canaries: int
    runs: int
    copies: int = 0
    trainings: int = 0
    few: int = 0
    times: int = 1


QUICK = Effort(scalar=20_000_000, canaries=100_000, runs=600, copies=20_000, few=100)
FULL = Effort(
    scalar=100_000_000, canaries=1_000_000, runs=10_000, copies=200_000, trainings=1000, few=2000, times=4
)


@final
@dataclass(frozen=True)
class Attack:
    """One row to be made."""

    label: str
    make: Callable[[np.random.Generator | None, Callable[[int, int], None] | None], Row]

    def row(self, listener: OnProgress | None = None, generator: np.random.Generator | None = None) -> Row:
        """Play it."""
        advance = None if listener is None else functools.partial(listener, self.label)
        return self.make(generator, advance)


# -- methods ------------------------------------------------------------------------------------------------


def attacks_on(method: Method, effort: Effort) -> Iterator[Attack]:
    """One step, and whole runs: by a crafted gradient and by a data canary."""
    from discreet.auditing.whole_run import Crafted, Mislabelled, couples_nothing

    yield Attack(f"{method.name}, one step", functools.partial(_one_step, method, effort))
    recipe = method.recipe()
    free = couples_nothing(recipe)
    trials = effort.copies if free else effort.trainings
    steps = STEPS if free else STEPS // 2
    records: tuple[tuple[str, Record], ...] = (
        ("crafted gradient", Crafted()),
        ("data canary", Mislabelled()),
    )
    for words, record in records if trials else ():
        yield Attack(
            f"{method.name}, whole run, {words}",
            functools.partial(_whole_run, recipe, record, f"whole run, {words}", steps, trials),
        )
    if method.name in LAST_ITERATE and effort.few:
        told = LAST_ITERATE[method.name]
        yield Attack(
            f"{method.name}, last iterate",
            functools.partial(
                _whole_run,
                method.recipe(**told),
                Mislabelled(),
                "last iterate, data canary",
                STEPS // 2,
                effort.few,
            ),
        )


def _one_step(
    method: Method,
    effort: Effort,
    generator: np.random.Generator | None,
    advance: Callable[[int, int], None] | None,
) -> Row:
    """What the recipe really releases, at rate 1, where sampling hides nothing."""
    from discreet.auditing.releases import Canaries, game_for

    game = game_for(method.recipe(), noise=NOISE, delta=COARSE_DELTA)
    if not isinstance(game, Canaries) and method.certified:
        game = game_for(method.recipe(), noise=LITTLE_NOISE, delta=COARSE_DELTA)
    plan, many = game.attacked.plan, isinstance(game, Canaries)
    steps = plan.horizon.steps
    words = "one step" if steps == 1 else f"{steps} steps"
    return _played(
        game, plan, f"{words}, crafted gradient", effort.canaries if many else effort.runs, generator, advance
    )


def _whole_run(
    recipe: Recipe,
    record: Record,
    words: str,
    steps: int,
    trials: int,
    generator: np.random.Generator | None,
    advance: Callable[[int, int], None] | None,
) -> Row:
    """A small model, trained to the end through `Private`."""
    from discreet.auditing.whole_run import WholeRun, couples_nothing

    noise = NOISE if couples_nothing(recipe) else LITTLE_NOISE
    game = WholeRun(recipe, record, rate=RATE, steps=steps, noise=noise, delta=COARSE_DELTA)
    return _played(game, game.plan, words, trials, generator, advance)


def _played(
    game: Game,
    plan: Plan,
    words: str,
    trials: int,
    generator: np.random.Generator | None,
    advance: Callable[[int, int], None] | None,
) -> Row:
    audit = play(game, trials=trials, delta=COARSE_DELTA, generator=generator, advance=advance)
    claim, horizon = plan.charge().claimed, plan.horizon
    return Row(
        method=plan.method,
        parameters=_parameters(
            game=words,
            noise=plan.noise,
            rate=horizon.rate,
            steps=horizon.steps,
            delta=COARSE_DELTA,
            trials=trials,
        ),
        certified=plan.certificate().epsilon,
        claimed=None if claim is None else claim.epsilon(COARSE_DELTA),
        analytic=None,
        audited=audit.epsilon,
        confidence=audit.confidence,
    )


# -- mathematics --------------------------------------------------------------------------------------------


def statistic(effort: Effort, *, delta: float = broken.DELTA) -> Attack:
    """DP-SGD's full-batch step by its sufficient statistic: how close an attack comes at a small delta."""

    def make(generator: np.random.Generator | None, advance: Callable[[int, int], None] | None) -> Row:
        trials = effort.scalar
        audit = play(
            GaussianStep(noise=NOISE), trials=trials, delta=delta, generator=generator, advance=advance
        )
        exact = gdp.epsilon(1 / NOISE, delta)
        return Row(
            method="dp-sgd",
            parameters=_parameters(
                game="one step, sufficient statistic",
                noise=NOISE,
                rate=1.0,
                steps=1,
                delta=delta,
                trials=trials,
            ),
            certified=exact,
            claimed=None,
            analytic=exact,
            audited=audit.epsilon,
            confidence=audit.confidence,
        )

    return Attack("dp-sgd, one number a trial", make)


def against_claim(shown: broken.Demonstration, effort: Effort) -> Attack:
    """A published mechanism against its paper's claim."""

    def make(generator: np.random.Generator | None, advance: Callable[[int, int], None] | None) -> Row:
        delta, trials = broken.DELTA, shown.trials * effort.times
        audit = play(shown.game, trials=trials, delta=delta, generator=generator, advance=advance)
        certificate = certify(shown.charge, delta=delta, relation=Neighbouring.ADD_REMOVE)
        return Row(
            method=f"{shown.method} (as published)",
            parameters=_parameters(game="simulation", **shown.parameters, delta=delta, trials=trials),
            certified=certificate.epsilon,
            claimed=shown.claim.epsilon(delta),
            analytic=shown.analytic(delta),
            audited=audit.epsilon,
            confidence=audit.confidence,
        )

    return Attack(f"{shown.method}, as published", make)


def _parameters(**values: Any) -> MappingProxyType[str, Any]:
    return MappingProxyType(values)
