"""What has been spent, in numbers and in one line."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from discreet.accounting import Certificate, Charge, certify
from discreet.core.randomness import SEEDED
from discreet.stages.plan import Plan

if TYPE_CHECKING:
    from discreet.core.streams import Streams


@final
@dataclass(frozen=True, kw_only=True)
class Spent:
    """The epsilon that is proven, the one that the method's paper claims, and how the run was keyed.

    A run that was seeded for any of its steps is not private, however it went on: `statement` and the
    certificate say so, and `certified.epsilon` is what the same run has with secret randomness.
    """

    certified: Certificate
    claimed: float | None
    steps: int
    statement: str
    warnings: tuple[str, ...] = ()

    @staticmethod
    def of(plan: Plan, steps: int, charge: Charge, streams: Streams) -> Spent:
        """From the ledger's charge; the claim is the whole run's, so it is there only at the end."""
        if streams.is_seeded:  # also before its first charge
            charge = dataclasses.replace(charge, assumptions=(*charge.assumptions, SEEDED))
        certified = certify(charge, delta=plan.delta, relation=plan.relation)
        finished = steps == plan.horizon.steps and plan.claims is not None
        claim = plan.charge().claimed if finished else None
        claimed = None if claim is None else claim.epsilon(plan.delta)
        keyed = SEEDED if charge.seeded else streams.statement
        return Spent(
            certified=certified, claimed=claimed, steps=steps, statement=keyed, warnings=plan.warnings
        )

    @property
    def seeded(self) -> bool:
        """Whether any step was seeded; results of older versions say so in their statement alone."""
        return self.certified.seeded or SEEDED in self.statement

    def __str__(self) -> str:
        proven = self.certified
        claimed = "none" if self.claimed is None else format_epsilon(self.claimed)
        rests_on = f"{proven.accountant}, {proven.relation}, delta={proven.delta:g}"
        held = "".join(f", {condition}" for condition in proven.conditions)
        warned = "".join(f" · warning: {warning}" for warning in self.warnings)
        return f"certified {format_epsilon(proven.epsilon)}{held} ({rests_on}) · claimed {claimed}{warned}"

    def to_json(self) -> dict[str, Any]:
        """For result files."""
        claimed = "inf" if self.claimed is not None and math.isinf(self.claimed) else self.claimed
        return {
            "certified": self.certified.to_json(),
            "claimed": claimed,
            "steps": self.steps,
            "randomness": self.statement,
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }


def format_epsilon(epsilon: float) -> str:
    """An epsilon rounded up to three digits, so that print never shows less than is proven.

    >>> format_epsilon(2.9991), format_epsilon(math.inf)
    ('3.00', 'no proven guarantee')
    """
    if math.isinf(epsilon):
        return "no proven guarantee"
    digits = max(0, 2 - math.floor(math.log10(epsilon))) if epsilon > 0 else 2
    scale = 10**digits
    return f"{math.ceil(epsilon * scale - 1e-9) / scale:.{digits}f}"
