"""A row of an audit and its verdict, as `discreet audit --out FILE` writes it and a comparison shows it.

verdict              when
CERTIFICATE BROKEN   audited > certified: a bug in this library
claim broken         audited > claimed
holds                audited <= certified
claim not tested     nothing is certified, and the attack shows less than the claim (or there is none)
"""

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, final

from discreet.core import check
from discreet.core.plain import from_plain, plain


class CanaryKind(enum.StrEnum):
    """What is planted in one training: records with a crafted gradient, or records with a wrong label."""

    GRADIENT = "gradient"
    DATA = "data"


class AuditVerdict(enum.Enum):
    HOLDS = "holds"
    CLAIM_BROKEN = "claim broken"
    NOT_TESTED = "claim not tested"
    CERTIFICATE_BROKEN = "CERTIFICATE BROKEN"


@final
@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """Certified, claimed, analytic and audited epsilon of one setting; None where there is no such number.

    parameters  the settings; they begin with the game, in words
    """

    method: str
    parameters: MappingProxyType[str, Any]
    certified: float | None
    claimed: float | None
    analytic: float | None
    audited: float
    confidence: float

    @property
    def verdict(self) -> AuditVerdict:
        if self.certified is not None and self.audited > self.certified:
            return AuditVerdict.CERTIFICATE_BROKEN
        if self.claimed is not None and self.audited > self.claimed:
            return AuditVerdict.CLAIM_BROKEN
        is_proven = self.certified is not None and math.isfinite(self.certified)
        return AuditVerdict.HOLDS if is_proven else AuditVerdict.NOT_TESTED

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinity is the string "inf"."""
        held = {name: value for name, value in plain(self).items() if name != "is"}
        return {**held, "verdict": self.verdict.value}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """What `to_json` wrote; a verdict that contradicts the numbers is refused."""
        row: AuditRow = from_plain(AuditRow, body)
        right, told = row.verdict.value, body["verdict"]
        remedy = "write the table again with `discreet audit --all --out FILE`"
        check.require(right == told, f"the verdict {right!r} for the numbers of {row.method}", repr(told), remedy)
        return row


def read_audit(path: Path) -> tuple[AuditRow, ...]:
    """The rows of a file that `discreet audit --out FILE` wrote."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return tuple(AuditRow.from_json(row) for row in held["rows"])
    except check.Refused:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        remedy = "write one with `discreet audit --all --out FILE`"
        check.refuse(f"a truth table in {path}", f"{type(error).__name__}: {error}", remedy)
