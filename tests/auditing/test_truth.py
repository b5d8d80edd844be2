"""The truth table: its words and its form."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from discreet.auditing import broken, truth
from discreet.auditing.truth import Effort, Scope, Verdict, verdict
from discreet.methods import METHODS

KEYS = {"method", "parameters", "certified", "claimed", "analytic", "audited", "confidence", "verdict"}
SMALL = Effort(scalar=2000, canaries=1000, runs=16)


@pytest.mark.parametrize(
    ("certified", "claimed", "audited", "word"),
    [
        (4.0, None, 3.9, "holds"),
        (4.0, 4.0, 4.0, "holds"),
        (4.0, 1.0, 1.1, "claim broken"),
        (math.inf, 1.0, 1.1, "claim broken"),
        (math.inf, 1.0, 0.9, "claim not tested"),
        (math.inf, None, 9.0, "claim not tested"),
        (None, None, 9.0, "claim not tested"),
        (4.0, None, 4.1, "CERTIFICATE BROKEN"),
        (4.0, 1.0, 4.1, "CERTIFICATE BROKEN"),
    ],
)
def test_verdicts(certified: float | None, claimed: float | None, audited: float, word: str) -> None:
    assert verdict(certified=certified, claimed=claimed, audited=audited).value == word


def test_a_row_in_json() -> None:
    demonstration = next(d for d in broken.demonstrations() if d.method == "geodp")
    row = truth.audit_claim(demonstration, effort=SMALL, generator=np.random.default_rng(1))
    told = json.loads(json.dumps(row.to_json(), allow_nan=False))
    assert set(told) == KEYS
    assert told["certified"] == "inf"
    assert told["claimed"] == pytest.approx(4.8448, rel=1e-4)
    assert told["audited"] > told["claimed"]
    assert told["verdict"] == "claim broken"
    assert told["confidence"] == 0.999


def test_everything_covers_every_method_and_the_four_claims() -> None:
    scope = Scope.everything()
    assert [method.name for method in scope.methods] == list(METHODS)
    assert {claim.method for claim in scope.claims} == {"geodp", "dicesgd", "d2p2-sgd", "dpsgd-dc"}
    assert scope.rows == len(METHODS) + 1 + 4


def test_a_method_has_its_rows_in_order() -> None:
    told: list[str] = []
    rows = list(
        truth.truth_table(Scope.of("dp-sgd"), effort=SMALL, listener=lambda label, *_: told.append(label))
    )
    assert [row.method for row in rows] == ["dp-sgd", "dp-sgd"]
    assert {row.verdict for row in rows} == {Verdict.HOLDS}
    assert told[0] == "dp-sgd"


def test_the_statistic_row_is_below_the_exact_epsilon() -> None:
    row = truth.audit_statistic(effort=SMALL, generator=np.random.default_rng(2))
    assert row.certified == pytest.approx(4.37718, abs=1e-5)
    assert row.audited <= row.certified
