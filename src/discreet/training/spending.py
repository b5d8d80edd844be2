"""The privacy that a run has spent, as numbers and as one line of text."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from discreet.core.randomness import SEEDED
from discreet.stages.plan import Plan

if TYPE_CHECKING:
    from discreet.accounting.accountants import Certificate
    from discreet.accounting.charges import Charge
    from discreet.core.streams import Streams


@final
@dataclass(frozen=True, kw_only=True)
class Spent:
    """The certified epsilon, the epsilon that the paper claims, and the source of randomness.

    A run with a seed in any of its steps is not private. `statement` and the certificate say so; `certified.epsilon` is
    then the epsilon of the same run with secret randomness.

    fixed_rows  rows of every pass, if the certificate covers how the gradients of records are rounded; None if not
    """

    certified: Certificate
    claimed: float | None
    steps: int
    statement: str
    warnings: tuple[str, ...] = ()
    unit: str = "record"
    fixed_rows: int | None = None

    @staticmethod
    def of(plan: Plan, steps: int, charge: Charge, streams: Streams, fixed_rows: int | None = None) -> Spent:
        """Compute it from the ledger's charge. A claim is for the whole run, so it is None before the end."""
        from discreet.accounting.accountants import certify

        if streams.is_seeded:  # also before the first charge
            charge = dataclasses.replace(charge, assumptions=(*charge.assumptions, SEEDED))
        certified = certify(charge, delta=plan.delta, relation=plan.relation)
        finished = steps == plan.horizon.steps and plan.claims is not None
        claim = plan.charge().claimed if finished else None
        claimed = None if claim is None else claim.epsilon(plan.delta)
        keyed = SEEDED if charge.seeded else streams.statement
        return Spent(
            certified=certified,
            claimed=claimed,
            steps=steps,
            statement=keyed,
            warnings=plan.warnings,
            unit=plan.unit.name,
            fixed_rows=fixed_rows,
        )

    @property
    def seeded(self) -> bool:
        """Whether any step used a seed. Results of older versions record it in the statement only."""
        return self.certified.seeded or SEEDED in self.statement

    @property
    def neighbours(self) -> str:
        """The relation, with its unit if that is not a record."""
        relation = str(self.certified.relation)
        return relation if self.unit == "record" else f"{relation} of one {self.unit}"

    def __str__(self) -> str:
        proven = self.certified
        claimed = "none" if self.claimed is None else format_epsilon(self.claimed)
        rests_on = f"{proven.accountant}, {self.neighbours}, delta={proven.delta:g}"
        held = "".join(f", {condition}" for condition in proven.conditions)
        warned = "".join(f" · warning: {warning}" for warning in self.warnings)
        rounding = "" if self.fixed_rows is None else " · rounding of records by the batch is covered"
        return f"certified {format_epsilon(proven.epsilon)}{held} ({rests_on}) · claimed {claimed}{rounding}{warned}"

    def to_json(self) -> dict[str, Any]:
        """JSON values for result files."""
        claimed = "inf" if self.claimed is not None and math.isinf(self.claimed) else self.claimed
        return {
            "certified": self.certified.to_json(),
            "claimed": claimed,
            "steps": self.steps,
            "randomness": self.statement,
            **({"unit": self.unit} if self.unit != "record" else {}),
            **({} if self.fixed_rows is None else {"fixed_rows": self.fixed_rows}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }


def format_epsilon(epsilon: float) -> str:
    """An epsilon rounded up to three digits, so that the printed value is never below the proven one.

    >>> format_epsilon(2.9991), format_epsilon(math.inf)
    ('3.00', 'no proven guarantee')
    """
    if math.isinf(epsilon):
        return "no proven guarantee"
    digits = max(0, 2 - math.floor(math.log10(epsilon))) if epsilon > 0 else 2
    scale = 10**digits
    return f"{math.ceil(epsilon * scale - 1e-9) / scale:.{digits}f}"
