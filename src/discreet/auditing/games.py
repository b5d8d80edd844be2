"""Distinguishing games: releases with and without one record, reduced to one number each.

Randomness: releases of a method use the library's own streams, seeded by the operating system, since these are part of
what is attacked. Scalar games and coin flips use a NumPy generator seeded by the operating system: an audit hides
nothing, so its draws must be independent, not unpredictable. A fixed seed makes an audit repeatable, and is as valid if
it was not chosen by looking at results.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, final

import numpy as np

from discreet.auditing.bounds import CONFIDENCE, Audit, Flags, Floats, Tally, best_audit
from discreet.core import check
from discreet.runs.audit_rows import AuditRow

_CHUNK = 2**20
_PILOT = 2**13

Advance = Callable[[int, int], None]
"""Receives the number of finished trials and the total."""


class Game(Protocol):
    """A pair of neighbouring worlds, and a statistic that tends to be larger with the record."""

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        """Independent values of the statistic without the record, and with it.

        Several statistics are the columns of a matrix: the trials that choose the event also choose the statistic.
        """


def play(
    game: Game,
    *,
    trials: int,
    delta: float,
    confidence: float = CONFIDENCE,
    generator: np.random.Generator | None = None,
    advance: Advance | None = None,
) -> Audit:
    """Play `trials` games in each world: half choose the statistic and the event, half test it."""
    check.count("half of the trials choose the event, half test it", least=16, trials=trials)
    rng = generator if generator is not None else np.random.default_rng()
    pilot = game.draw(min(_PILOT, max(16, trials // 8)), rng)  # only sets the range of the histograms
    halves = [[Tally.around(*pair) for pair in _columns(pilot)] for _ in range(2)]
    done = 0
    for tallies, end in zip(halves, (trials // 2, trials), strict=True):
        while done < end:
            count = min(end - done, _CHUNK)
            for tally, (absent, present) in zip(tallies, _columns(game.draw(count, rng)), strict=True):
                tally.add(absent=absent, present=present)
            done += count
            if advance is not None:
                advance(done, trials)
    return best_audit(list(zip(*halves, strict=True)), delta=delta, confidence=confidence)


def by_world(play: Callable[[], tuple[Flags, Floats]], trials: int) -> tuple[Floats, Floats]:
    """Play until both worlds have `trials` values; a play gives the coins of some records, and a value for each."""
    worlds: tuple[list[Floats], list[Floats]] = [], []
    while min(sum(map(len, world)) for world in worlds) < trials:
        there, values = play()
        for world, coins in zip(worlds, (~there, there), strict=True):
            world.append(values[coins])
    absent, present = (np.concatenate(world)[:trials] for world in worlds)
    return absent, present


def _columns(drawn: tuple[Floats, Floats]) -> list[tuple[Floats, Floats]]:
    """Each statistic in both worlds."""
    absent, present = (np.atleast_2d(values.T) for values in drawn)
    return list(zip(absent, present, strict=True))


@final
@dataclass(frozen=True, kw_only=True)
class PreparedGame:
    """A game, and the row of the truth table that it belongs to, without its result."""

    game: Game
    method: str
    parameters: dict[str, Any]
    trials: int
    delta: float
    certified: float
    claimed: float | None = None
    analytic: float | None = None

    def play(self, *, generator: np.random.Generator | None = None, advance: Advance | None = None) -> AuditRow:
        audit = play(self.game, trials=self.trials, delta=self.delta, generator=generator, advance=advance)
        return self._row(audit.epsilon, audit.confidence)

    def would_give(self, row: AuditRow) -> bool:
        """Whether the row has the settings, the certificate and the claim of this game: a play differs by chance."""
        own = self._row(row.audited, CONFIDENCE)
        pairs = [(getattr(own, name), getattr(row, name)) for name in ("certified", "claimed", "analytic")]
        same = all(a == b or (None not in (a, b) and math.isclose(a, b, rel_tol=1e-9)) for a, b in pairs)
        return same and (own.method, own.parameters, own.confidence) == (row.method, row.parameters, row.confidence)

    def _row(self, audited: float, confidence: float) -> AuditRow:
        return AuditRow(
            method=self.method,
            parameters=MappingProxyType({**self.parameters, "delta": self.delta, "trials": self.trials}),
            certified=self.certified,
            claimed=self.claimed,
            analytic=self.analytic,
            audited=audited,
            confidence=confidence,
        )


@final
@dataclass(frozen=True, kw_only=True)
class PoissonStep:
    """One Poisson-sampled release: N(0, z^2) against (1 - q) N(0, z^2) + q N(1, z^2), in units of the clip.

    The projection on the record's direction is a sufficient statistic, in any dimension. At rate 1 every record joins.
    """

    rate: float = 1.0
    noise: float

    def __post_init__(self) -> None:
        check.fraction("the rate is a probability", rate=self.rate)
        check.positive("noise is the standard deviation on the sum divided by the clip", noise=self.noise)

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        absent, present = generator.standard_normal(trials), generator.standard_normal(trials)
        joins = True if self.rate == 1 else generator.random(trials) < self.rate
        return absent, present + joins / self.noise
