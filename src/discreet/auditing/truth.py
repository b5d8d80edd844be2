"""The truth table: for every method what is certified, what its paper claims, and what an attack has shown.

verdict              when
CERTIFICATE BROKEN   audited > certified: a fault of ours
claim broken         audited > claimed
holds                audited <= certified
claim not tested     nothing is certified, and the attack shows less than the claim (or there is none)
"""

from __future__ import annotations

import enum
import math
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.accounting import Neighbouring, certify, gdp
from discreet.auditing import broken
from discreet.auditing.games import CONFIDENCE, GaussianStep, play
from discreet.core import check
from discreet.core.plain import plain

if TYPE_CHECKING:
    from discreet.methods import Method

OnProgress = Callable[[str, int, int], None]
"""Told the row under way, its trials so far, and of how many."""

NOISE = 1.0
COARSE_DELTA = 1e-2
"""The delta at which a few thousand real releases can show something."""


class Verdict(enum.Enum):
    """What a row of the table says."""

    HOLDS = "holds"
    CLAIM_BROKEN = "claim broken"
    NOT_TESTED = "claim not tested"
    CERTIFICATE_BROKEN = "CERTIFICATE BROKEN"


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """Trials a world: of scalar games, of releases with many canaries, of whole runs; `times` for demonstrations."""

    scalar: int
    canaries: int
    runs: int
    times: int = 1


QUICK = Effort(scalar=20_000_000, canaries=100_000, runs=800)
FULL = Effort(scalar=100_000_000, canaries=1_000_000, runs=20_000, times=4)


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; None where there is no such number."""

    method: str
    parameters: MappingProxyType[str, Any]
    certified: float | None
    claimed: float | None
    analytic: float | None
    audited: float
    confidence: float

    @property
    def verdict(self) -> Verdict:
        """The strongest thing that the numbers say."""
        return verdict(certified=self.certified, claimed=self.claimed, audited=self.audited)

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinity is the string "inf"."""
        row: dict[str, Any] = plain(
            {
                "method": self.method,
                "parameters": self.parameters,
                "certified": self.certified,
                "claimed": self.claimed,
                "analytic": self.analytic,
                "audited": self.audited,
                "confidence": self.confidence,
                "verdict": self.verdict,
            }
        )
        return row


def verdict(*, certified: float | None, claimed: float | None, audited: float) -> Verdict:
    """The word for these three numbers.

    >>> verdict(certified=4.0, claimed=1.0, audited=2.0).value
    'claim broken'
    """
    if certified is not None and audited > certified:
        return Verdict.CERTIFICATE_BROKEN
    if claimed is not None and audited > claimed:
        return Verdict.CLAIM_BROKEN
    proven = certified is not None and math.isfinite(certified)
    return Verdict.HOLDS if proven else Verdict.NOT_TESTED


@final
@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a table covers."""

    methods: tuple[Method, ...]
    claims: tuple[broken.Demonstration, ...]

    @staticmethod
    def everything() -> Scope:
        """Every method, and every claim that is known to be false."""
        from discreet.methods import METHODS

        return Scope(methods=tuple(METHODS.values()), claims=broken.demonstrations())

    @staticmethod
    def of(name: str) -> Scope:
        """One method: its release, where we have a recipe, and its paper's claim, where that is under attack."""
        whole = Scope.everything()
        known = {m.name for m in whole.methods} | {c.method for c in whole.claims}
        check.require(
            name in known, f"a method of {', '.join(sorted(known))}", repr(name), "use --all for all"
        )
        return Scope(
            methods=tuple(m for m in whole.methods if m.name == name),
            claims=tuple(c for c in whole.claims if c.method == name),
        )

    @property
    def has_statistic(self) -> bool:
        """Whether DP-SGD is covered, whose step is one number."""
        return any(method.name == "dp-sgd" for method in self.methods)

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return len(self.methods) + self.has_statistic + len(self.claims)


def truth_table(scope: Scope, *, effort: Effort, listener: OnProgress | None = None) -> Iterator[Row]:
    """A row for each method's release, and one for each claim."""
    for method in scope.methods:
        yield audit_method(method, effort=effort, listener=listener)
    if scope.has_statistic:
        yield audit_statistic(effort=effort, listener=listener)
    for claim in scope.claims:
        yield audit_claim(claim, effort=effort, listener=listener)


def audit_method(
    method: Method,
    *,
    effort: Effort,
    listener: OnProgress | None = None,
    generator: np.random.Generator | None = None,
) -> Row:
    """Attack what the method's recipe really releases, at rate 1, where sampling hides nothing."""
    from discreet.auditing.releases import Canaries, game_for

    game = game_for(method.recipe(), noise=NOISE, delta=COARSE_DELTA)
    plan = game.attacked.plan
    trials = effort.canaries if isinstance(game, Canaries) else effort.runs
    audit = play(
        game,
        trials=trials,
        delta=COARSE_DELTA,
        generator=generator,
        advance=_named(method.name, listener),
    )
    claim = plan.charge().claimed
    return Row(
        method=method.name,
        parameters=_parameters(
            noise=plan.known_noise,
            rate=1.0,
            steps=plan.known_horizon.steps,
            delta=COARSE_DELTA,
            trials=trials,
        ),
        certified=plan.certificate().epsilon,
        claimed=None if claim is None else claim.epsilon(COARSE_DELTA),
        analytic=None,
        audited=audit.epsilon,
        confidence=audit.confidence,
    )


def audit_statistic(
    *,
    effort: Effort,
    delta: float = broken.DELTA,
    listener: OnProgress | None = None,
    generator: np.random.Generator | None = None,
) -> Row:
    """DP-SGD's full-batch step by its sufficient statistic: how close an attack comes at a small delta."""
    audit = play(
        GaussianStep(noise=NOISE),
        trials=effort.scalar,
        delta=delta,
        generator=generator,
        advance=_named("dp-sgd, one number a trial", listener),
    )
    exact = gdp.epsilon(1 / NOISE, delta)
    return Row(
        method="dp-sgd",
        parameters=_parameters(noise=NOISE, rate=1.0, steps=1, delta=delta, trials=effort.scalar),
        certified=exact,
        claimed=None,
        analytic=exact,
        audited=audit.epsilon,
        confidence=audit.confidence,
    )


def audit_claim(
    demonstration: broken.Demonstration,
    *,
    effort: Effort,
    listener: OnProgress | None = None,
    generator: np.random.Generator | None = None,
) -> Row:
    """Measure a published mechanism against its paper's claim."""
    delta = broken.DELTA
    trials = demonstration.trials * effort.times
    audit = play(
        demonstration.game,
        trials=trials,
        delta=delta,
        generator=generator,
        advance=_named(f"{demonstration.method}, as published", listener),
    )
    certificate = certify(demonstration.charge, delta=delta, relation=Neighbouring.ADD_REMOVE)
    return Row(
        method=f"{demonstration.method} (as published)",
        parameters=_parameters(**demonstration.parameters, delta=delta, trials=trials),
        certified=certificate.epsilon,
        claimed=demonstration.claim.epsilon(delta),
        analytic=demonstration.analytic(delta),
        audited=audit.epsilon,
        confidence=audit.confidence,
    )


def document(rows: Iterable[Row], *, command: str) -> dict[str, Any]:
    """The table as one JSON value, with the command and the versions that made it."""
    packages = ("discreet", "numpy", "scipy", "torch", "dp-accounting")
    return {
        "rows": [row.to_json() for row in rows],
        "confidence": CONFIDENCE,
        "command": command,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }


def _named(label: str, listener: OnProgress | None) -> Callable[[int, int], None] | None:
    return None if listener is None else lambda done, total: listener(label, done, total)


def _parameters(**values: Any) -> MappingProxyType[str, Any]:
    return MappingProxyType(values)
