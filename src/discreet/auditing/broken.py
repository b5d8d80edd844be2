"""Simulations of published mechanisms that refute the claims of their papers.

Every demonstration has a game, the paper's claim for the same numbers, the certificate of our own analysis, and an
analytic lower bound: n trials show at most about ln n, a formula can show more.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import numpy as np
from scipy import optimize, special, stats

from discreet.accounting import gdp
from discreet.accounting.accountants import certify
from discreet.accounting.charges import AccountedClaim, Accounting, Charge, Claim
from discreet.accounting.events import ClippedFeedback, Event, Gaussian, NonPrivate, PoissonSampled, ProjectedGaussian
from discreet.auditing.bounds import Floats
from discreet.auditing.games import Game, PoissonStep, PreparedGame
from discreet.core.relation import Neighbouring
from discreet.methods.dicesgd.recipes import DiceClaim
from discreet.methods.dpsgd_dc.recipes import LastIterateClaim
from discreet.methods.geodp.recipes import GeoDpOneStepClaim

DELTA = 1e-5
_WRAPS = 20  # full turns of an angle in the sum


# -- GeoDP: one record can turn the direction of the average ----------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class GeoDp:
    """Algorithm 1 of GeoDP on one full batch: noisy norm and noisy angles of the average, released as a vector.

    Without the record the average is almost zero and points along the first axis; one record of norm C turns it to the
    second axis. Statistic: the angle between the released line and the first axis, whatever the sign of the norm.
    """

    dimension: int = 3
    batch: int = 100
    beta: float = 1.0
    noise: float = 1.0
    clip: float = 1.0

    @property
    def angle_std(self) -> float:
        """The paper's noise on every angle, sqrt(d + 2) beta pi sigma / B."""
        return math.sqrt(self.dimension + 2) * self.beta * math.pi * self.noise / self.batch

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        tiny = self.clip / 100
        absent, record = np.zeros((2, self.dimension))
        absent[0] = tiny
        record[:2] = -tiny, math.sqrt(self.clip**2 - tiny**2)
        return self._statistic(absent, trials, generator), self._statistic(absent + record, trials, generator)

    def _statistic(self, total: Floats, trials: int, generator: np.random.Generator) -> Floats:
        mean = total / self.batch
        norm = np.linalg.norm(mean) + self.clip / self.batch * self.noise * generator.standard_normal(trials)
        noise = self.angle_std * generator.standard_normal((self.dimension - 1, trials))
        released = norm * from_angles(to_angles(mean)[:, None] + noise)
        return np.asarray(np.arccos(np.abs(released[0]) / np.linalg.norm(released, axis=0)))

    def analytic(self, delta: float) -> float:
        """Best threshold on the angle between the released line and the first axis, wraps and all.

        >>> round(GeoDp(dimension=2).analytic(1e-5), 1), round(GeoDp(dimension=10).analytic(1e-5), 1)
        (311.8, 103.5)
        """
        half = math.pi / 2
        short_of = np.geomspace(1e-6, 0.99, 4000) * half  # the event: at most this far from a right angle
        turns = math.pi * np.arange(-_WRAPS, _WRAPS + 1)[:, None]
        low, high = turns - short_of, turns + short_of
        log_p, log_q = (
            np.logaddexp.reduce(_log_between((low - centre) / self.angle_std, (high - centre) / self.angle_std))
            for centre in (0.0, half)
        )
        p = np.exp(log_p) - delta
        shown = np.log(np.maximum(p, np.finfo(np.float64).tiny)) - log_q
        return max(0.0, float(shown[p > 0].max(initial=0.0)))


def _log_between(low: Floats, high: Floats) -> Floats:
    """ln P(low < N(0, 1) < high), accurate in the tails."""
    flip = low + high > 0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)  # the left tail: no cancellation
    top, bottom = special.log_ndtr(b), special.log_ndtr(a)
    return np.asarray(top + np.log1p(-np.exp(np.minimum(bottom - top, -1e-300))))


def to_angles(vector: Floats) -> Floats:
    """Spherical angles: the first d - 2 in [0, pi], the last in (-pi, pi].

    >>> to_angles(np.array([0.0, 1.0, 0.0])).round(4).tolist()
    [1.5708, 0.0]
    """
    rest = np.sqrt(np.cumsum(vector[::-1] ** 2)[::-1])
    return np.array([*np.arctan2(rest[1:-1], vector[:-2]), math.atan2(vector[-1], vector[-2])])


def from_angles(angles: Floats) -> Floats:
    """The unit vectors with these angles, one a column."""
    sines = np.cumprod(np.vstack([np.ones_like(angles[:1]), np.sin(angles)]), axis=0)
    return np.asarray(sines * np.vstack([np.cos(angles), np.ones_like(angles[:1])]))


# -- DiceSGD: after one inclusion, the hidden error shifts every later release -------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class Dice:
    """Algorithm 2 of DiceSGD in one dimension, all releases of a run; noise by its Theorem 3.8 for `target`.

    Without the record all gradients are zero; the record's gradient is huge, which the theorem allows. Statistic: the
    likelihood ratio of "every release after the first inclusion is shifted by C2", mixed over the step of inclusion.
    """

    records: int = 10_000
    batch: int = 100
    steps: int = 1000
    clip: float = 1.0
    feedback_clip: float = 1.0
    target: float = 1.0
    delta: float = DELTA
    gradient: float = 1e12

    @property
    def rate(self) -> float:
        return self.batch / self.records

    @property
    def noise_std(self) -> float:
        """sigma_1 on the mean, with C = B * C2 and no bound on the gradients."""
        square = self.clip**2 + 2 * (self.batch * self.feedback_clip) ** 2
        return math.sqrt(32 * self.steps * square * math.log(1 / self.delta)) / (self.records * self.target)

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        return self._world(False, trials, generator), self._world(True, trials, generator)

    def _world(self, present: bool, trials: int, generator: np.random.Generator) -> Floats:
        error = np.zeros(trials)
        mixed = np.zeros(trials)  # likelihood ratio over past inclusions
        for step in range(self.steps):
            g = self.gradient * (generator.random(trials) < self.rate) if present else np.zeros(trials)
            feedback = np.clip(error, -self.feedback_clip, self.feedback_clip)
            v = np.minimum(g, self.clip) / self.batch + feedback
            release = v + self.noise_std * generator.standard_normal(trials)
            error += g / self.batch - v
            gain = (self.feedback_clip * release - self.feedback_clip**2 / 2) / self.noise_std**2
            mixed = mixed * np.exp(gain) + self.rate * (1 - self.rate) ** step
        return np.asarray(np.log(mixed + (1 - self.rate) ** self.steps))

    def analytic(self, delta: float) -> float:
        """The best threshold on a weighted sum of all releases; later releases are shifted more often."""
        first = np.arange(self.steps)
        chance, never = stats.geom.pmf(first + 1, self.rate), (1 - self.rate) ** self.steps
        weight = np.sqrt(1 - (1 - self.rate) ** first)
        after = np.append(np.cumsum(weight[::-1])[::-1][1:], 0.0)
        shift = self.feedback_clip * after + weight * self.clip / self.batch
        spread = self.noise_std * float(np.linalg.norm(weight))

        def shown(cut: float) -> float:
            q = special.log_ndtr(-cut)
            p = float(chance @ special.ndtr(shift / spread - cut)) + never * math.exp(q) - delta
            return -math.inf if p <= 0 else math.log(p) - float(q)

        far = float(shift.max()) / spread + 8
        best = optimize.minimize_scalar(lambda cut: -max(shown(cut), -1e9), bounds=(0, far), method="bounded")
        return max(0.0, float(shown(best.x)))


# -- D2P2-SGD: a dense projection before the noise changes the sensitivity -----------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class ProjectedRelease:
    """A release after a Gaussian projection to `dims` numbers: N(0, z^2) against N(s, z^2), with s^2 ~ chi2_p / p.

    The matrix is public, so s is. Statistic: the log-likelihood ratio (s y - s^2 / 2) / z^2, which is optimal.
    """

    noise: float = 1.1
    dims: int = 1

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        def ratio(present: float) -> Floats:
            mu = np.sqrt(generator.chisquare(self.dims, trials) / self.dims) / self.noise
            return mu * (generator.standard_normal(trials) + present * mu) - mu**2 / 2

        return ratio(0.0), ratio(1.0)


def projection_epsilon(noise: float, dims: int, delta: float) -> float:
    """Exact epsilon of one such release: the least with E_s delta_s(epsilon) = delta.

    >>> round(projection_epsilon(1.1, 1, 1e-5), 3)
    12.783
    """
    nodes, weights = special.roots_legendre(2000)
    top = math.sqrt(stats.chi2.isf(1e-16, dims) / dims)
    s = (nodes + 1) * top / 2
    density = weights * top / 2 * stats.chi2.pdf(dims * s**2, dims) * 2 * dims * s
    mu = s / noise

    def excess(epsilon: float) -> float:
        terms = special.ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu))
        return float(density @ terms) - delta

    return float(optimize.brentq(excess, 0.0, 500.0, xtol=1e-10))


# -- the four claims -----------------------------------------------------------------------------------------


def _geodp() -> PreparedGame:
    game = GeoDp()
    parameters = {"beta": game.beta, "dimension": game.dimension, "batch": game.batch, "noise": game.noise, "steps": 1}
    claim = GeoDpOneStepClaim(noise=game.noise, beta=game.beta)
    return _prepared("geodp", parameters, game, claim, NonPrivate(), game.analytic(DELTA), trials=40_000)


def _dice() -> PreparedGame:
    game = Dice()
    run = ClippedFeedback(
        rate=game.rate,
        steps=game.steps,
        batch=float(game.batch),
        clip=game.clip,
        feedback_clip=game.feedback_clip,
        noise_std_on_mean=game.noise_std,
    )
    parameters = {"records": game.records, "batch": game.batch, "steps": game.steps, "target": game.target}
    claim = DiceClaim(run=run, records=game.records)
    return _prepared("dicesgd", parameters, game, claim, run, game.analytic(DELTA), trials=20_000)


def _projected() -> PreparedGame:
    game = ProjectedRelease()
    claim = AccountedClaim(
        events=((Gaussian(game.noise), 1),),
        by=Accounting.PLD,
        theorem="D2P2-SGD, accounting of the noise that is drawn",
        assumes="the projection is post-processing, though the noise is added after it",
    )
    parameters = {"dims": game.dims, "rate": 1.0, "steps": 1, "noise": game.noise}
    event, analytic = ProjectedGaussian(game.noise, (game.dims,)), projection_epsilon(game.noise, game.dims, DELTA)
    return _prepared("d2p2-sgd", parameters, game, claim, event, analytic, trials=4_000_000)


def _sampled_lemma() -> PreparedGame:
    rate, noise, batch = 0.01, 0.3, 600.0
    claim = LastIterateClaim(records=60_000, batch=batch, clip=1.0, noise_std_on_mean=noise / batch, steps=1)
    game, event = PoissonStep(rate=rate, noise=noise), PoissonSampled(rate, Gaussian(noise))
    # Exact epsilon of one Poisson-sampled Gaussian: ln(1 + q (e^e - 1)), e that of the Gaussian at delta / q.
    analytic = math.log1p(rate * math.expm1(gdp.epsilon(1 / noise, DELTA / rate)))
    parameters = {"rate": rate, "steps": 1, "noise": noise}
    return _prepared("dpsgd-dc", parameters, game, claim, event, analytic, trials=4_000_000)


def _prepared(
    method: str, parameters: dict[str, Any], game: Game, claim: Claim, event: Event, analytic: float, *, trials: int
) -> PreparedGame:
    """A published mechanism against its paper's claim; `trials` in each world refute it with a margin."""
    return PreparedGame(
        game=game,
        method=f"{method} (as published)",
        parameters={"game": "simulation", **parameters},
        trials=trials,
        delta=DELTA,
        certified=certify(Charge.of(event), delta=DELTA, relation=Neighbouring.ADD_REMOVE).epsilon,
        claimed=claim.epsilon(DELTA),
        analytic=analytic,
    )


CLAIMS: Mapping[str, Callable[[], PreparedGame]] = MappingProxyType(
    {"geodp": _geodp, "dicesgd": _dice, "d2p2-sgd": _projected, "dpsgd-dc": _sampled_lemma}
)
"""The attack on each claim that an audit must refute, by method."""
