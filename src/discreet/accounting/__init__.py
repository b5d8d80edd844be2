"""What a run cost: events to certified epsilon, beside what papers claim. Never imports torch.

Read in this order: `events` (what happened), `rules` (what is proven), `accountants` (what it costs). Whatever needs
numpy is imported at its first use.
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
from discreet.accounting.ledger import Ledger, merge, read, verify
from discreet.core.lazy import lazy
from discreet.core.relation import Neighbouring

if TYPE_CHECKING:
    from discreet.accounting.accountants import Certificate, certify, delta_at, pld_epsilon, profile, rdp_epsilon
    from discreet.accounting.calibration import calibrate_batch, calibrate_claim, calibrate_noise, calibrate_steps

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
    "calibrate_batch": "discreet.accounting.calibration",
    "calibrate_claim": "discreet.accounting.calibration",
    "calibrate_noise": "discreet.accounting.calibration",
    "calibrate_steps": "discreet.accounting.calibration",
    "certify": "discreet.accounting.accountants",
    "delta_at": "discreet.accounting.accountants",
    "pld_epsilon": "discreet.accounting.accountants",
    "profile": "discreet.accounting.accountants",
    "rdp_epsilon": "discreet.accounting.accountants",
}

__getattr__, __dir__ = lazy(__name__, _HOME)
