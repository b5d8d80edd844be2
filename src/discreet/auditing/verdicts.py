"""A row of the truth table, and its verdict.

verdict              when
CERTIFICATE BROKEN   audited > certified: a fault of ours
claim broken         audited > claimed
holds                audited <= certified
claim not tested     nothing is certified, and the attack shows less than the claim (or there is none)
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from discreet.core import check
from discreet.core.plain import plain


class Verdict(enum.Enum):
    """What a row of the table says."""

    HOLDS = "holds"
    CLAIM_BROKEN = "claim broken"
    NOT_TESTED = "claim not tested"
    CERTIFICATE_BROKEN = "CERTIFICATE BROKEN"


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; None where there is no such number. `parameters` begin with the game, in words."""

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

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Row:
        """What `to_json` wrote; a verdict that its numbers do not give is refused."""
        row = Row(
            method=str(body["method"]),
            parameters=MappingProxyType(dict(body["parameters"])),
            certified=_number(body["certified"]),
            claimed=_number(body["claimed"]),
            analytic=_number(body["analytic"]),
            audited=float(body["audited"]),
            confidence=float(body["confidence"]),
        )
        check.require(
            row.verdict.value == body["verdict"],
            f"the verdict {row.verdict.value!r} for the numbers of {row.method}",
            repr(body["verdict"]),
            "write the table again with `discreet audit --all --out FILE`",
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


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
