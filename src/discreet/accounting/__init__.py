"""What a run cost: events to certified epsilon, beside what papers claim. Never imports torch.

Read in this order: `events` (what happened), `rules` (what is proven), `accountants` (what it costs). Names
whose modules take long to import are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.accounting.charges import Charge
from discreet.accounting.claims import AccountedClaim, Accounting, Claim
from discreet.accounting.events import (
    BallsInBinsEpoch,
    ClippedFeedback,
    CountQuery,
    Event,
    Free,
    Gaussian,
    LastIterateRun,
    NonPrivate,
    PoissonSampled,
    ProjectedGaussian,
    Queries,
    SelectionQuery,
    TruncatedPoissonSampled,
    Unamplified,
    WithoutReplacement,
    event_from_json,
)
from discreet.core.lazy import lazy
from discreet.core.relation import Neighbouring

if TYPE_CHECKING:
    from discreet.accounting.accountants import Certificate, certify, delta_at, pld_epsilon, profile, rdp_epsilon
    from discreet.accounting.calibration import calibrate_batch, calibrate_claim, calibrate_noise, calibrate_steps
    from discreet.accounting.ledger import Ledger, merge, read, verify

__all__ = [
    "AccountedClaim",
    "Accounting",
    "BallsInBinsEpoch",
    "Certificate",
    "Charge",
    "Claim",
    "ClippedFeedback",
    "CountQuery",
    "Event",
    "Free",
    "Gaussian",
    "LastIterateRun",
    "Ledger",
    "Neighbouring",
    "NonPrivate",
    "PoissonSampled",
    "ProjectedGaussian",
    "Queries",
    "SelectionQuery",
    "TruncatedPoissonSampled",
    "Unamplified",
    "WithoutReplacement",
    "calibrate_batch",
    "calibrate_claim",
    "calibrate_noise",
    "calibrate_steps",
    "certify",
    "delta_at",
    "event_from_json",
    "merge",
    "pld_epsilon",
    "profile",
    "rdp_epsilon",
    "read",
    "verify",
]

_HOME = {
    "Certificate": "discreet.accounting.accountants",
    "Ledger": "discreet.accounting.ledger",
    "calibrate_batch": "discreet.accounting.calibration",
    "calibrate_claim": "discreet.accounting.calibration",
    "calibrate_noise": "discreet.accounting.calibration",
    "calibrate_steps": "discreet.accounting.calibration",
    "certify": "discreet.accounting.accountants",
    "delta_at": "discreet.accounting.accountants",
    "merge": "discreet.accounting.ledger",
    "pld_epsilon": "discreet.accounting.accountants",
    "profile": "discreet.accounting.accountants",
    "rdp_epsilon": "discreet.accounting.accountants",
    "read": "discreet.accounting.ledger",
    "verify": "discreet.accounting.ledger",
}

__getattr__, __dir__ = lazy(__name__, _HOME)
