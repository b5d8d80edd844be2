"""The truth table: its words and its form."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from discreet.auditing import truth
from discreet.auditing.truth import Effort
from discreet.core.check import Refused
from discreet.core.workers import JobFailed, run_jobs
from discreet.methods import METHODS
from discreet.runs.audit_rows import AuditRow, AuditVerdict, read_audit

KEYS = {"method", "parameters", "certified", "claimed", "analytic", "audited", "confidence", "verdict"}
SMALL = Effort(scalar=2000, canaries=1000, runs=16, copies=400)


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
    numbers = {"certified": certified, "claimed": claimed, "audited": audited, "analytic": None, "confidence": 0.999}
    assert AuditRow(method="m", parameters=MappingProxyType({}), **numbers).verdict.value == word


def test_a_row_in_json() -> None:
    row = truth.against_claim("geodp", SMALL).row(generator=np.random.default_rng(1))
    told = json.loads(json.dumps(row.to_json(), allow_nan=False))
    assert set(told) == KEYS
    assert told["certified"] == "inf"
    assert told["claimed"] == pytest.approx(4.8448, rel=1e-4)
    assert told["audited"] > told["claimed"]
    assert told["verdict"] == "claim broken"
    assert told["confidence"] == 0.999
    assert AuditRow.from_json(told) == row


def test_everything_covers_every_method_and_the_four_claims() -> None:
    labels = [attack.label for attack in truth.attacks(truth.QUICK)]
    assert {f"{name}, as published" for name in ("geodp", "dicesgd", "d2p2-sgd", "dpsgd-dc")} <= set(labels)
    assert len(set(labels)) == len(labels)
    for name in METHODS:
        assert f"{name}, one step" in labels
    assert "dp-sgd, whole run, data canary" in labels
    assert "dpsgd-dc, last iterate" in labels
    assert {f"dp-ftrl, {words}" for words in ("fixed order", "new order in every epoch", "stream")} <= set(labels)
    assert {f"dp-sgd, {words}" for words in ("sampled users", "capped records")} <= set(labels)
    full = [attack.label for attack in truth.attacks(truth.FULL)]
    assert {f"{name}, whole run, crafted gradient" for name in METHODS} <= set(full)


def test_a_method_has_its_rows_in_order() -> None:
    told: list[str] = []
    found = list(
        truth.truth_table(truth.attacks(SMALL, "dp-sgd"), effort=SMALL, listener=lambda label, *_: told.append(label))
    )
    assert [(row.method, row.parameters["game"]) for row in found] == [
        ("dp-sgd", "one step, crafted gradient"),
        ("dp-sgd", "whole run, crafted gradient"),
        ("dp-sgd", "whole run, data canary"),
        ("dp-sgd", "one step, sufficient statistic"),
        ("dp-sgd", "one step, sampled users, 20 records of a user"),
        ("dp-sgd", "one step, capped records, 20 records of a user"),
    ]
    assert {row.verdict for row in found} == {AuditVerdict.HOLDS}
    assert told[0] == "dp-sgd, one step"


def test_rows_are_kept_for_their_effort_and_code_and_torn_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = truth.statistic(SMALL).row(generator=np.random.default_rng(2))
    kept = truth.KeptRows(tmp_path / "deep" / "rows")
    kept.add("one", row, SMALL)
    with kept.path.open("a") as file:
        file.write('{"label": "two", ')
    again = truth.KeptRows(kept.path)
    assert again.made(SMALL) == {"one": row}
    assert again.made(truth.QUICK) == {}
    again.add("three", row, truth.QUICK)
    assert set(again.made(truth.QUICK)) == {"three"}
    monkeypatch.setattr(truth, "_code", lambda: "another")  # whose certificates may be others
    assert again.made(SMALL) == {}
    kept.path.write_text("no rows\n")
    with pytest.raises(Refused, match="delete the file"):
        again.made(SMALL)


@pytest.mark.slow
def test_several_workers_give_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    """But for what is random."""
    kept = truth.KeptRows(tmp_path / "rows")
    told: list[str] = []
    alone = truth.truth_table(truth.attacks(SMALL, "dp-sgd"), effort=SMALL)
    together = truth.truth_table(
        truth.attacks(SMALL, "dp-sgd"),
        effort=SMALL,
        workers=2,
        kept=kept,
        listener=lambda label, *_: told.append(label),
    )
    assert [(row.parameters, row.certified) for row in together] == [(row.parameters, row.certified) for row in alone]
    assert sorted(told) == sorted(kept.made(SMALL))
    assert (
        truth.truth_table(truth.attacks(SMALL, "dp-sgd"), effort=SMALL, kept=kept) == together
    )  # nothing is played again


def test_rows_of_an_older_table_are_played_again_if_their_game_or_certificate_changed() -> None:
    planned = truth.attacks(SMALL, "d2p-sgd")[:2]
    rows = truth.truth_table(planned, effort=SMALL)
    read = tuple(AuditRow.from_json(json.loads(json.dumps(row.to_json()))) for row in rows)
    assert truth.truth_table(planned, effort=SMALL, older=read) == rows  # chance would make them others
    first = rows[0]
    assert first.certified is not None
    for changes in (
        {"certified": first.certified * 1.001},
        {"claimed": None},
        {"confidence": 0.99},
        {"method": "dp-sgd"},
        {"parameters": MappingProxyType({**first.parameters, "trials": 7})},
    ):
        other = dataclasses.replace(first, audited=0.001, **changes)
        found = truth.truth_table(planned, effort=SMALL, older=(other, rows[1]))
        assert found[0].audited != 0.001
        assert found[0].certified == first.certified
        assert found[1] == rows[1]


def test_a_refusal_of_a_worker_arrives_as_one() -> None:
    """Too few trials are bad input, exit code 2, also where another process plays the row."""
    few = Effort(scalar=3, canaries=3, runs=3)
    planned = truth.attacks(few, "dp-sgd")
    assert [attack.label for attack in planned][:2] == ["dp-sgd, one step", "dp-sgd, one number a trial"]
    with pytest.raises(Refused, match=r"^dp-sgd, (one|sampled|capped) [a-z ]+: Expected trials"):
        truth.truth_table(planned, effort=few, workers=2)


def test_an_error_of_a_worker_names_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_this_process(call: str, orders: list[Any], listener: Any, *, workers: int, threads: int) -> None:
        run_jobs(call, orders, listener, workers=1, threads=threads)

    monkeypatch.setattr(truth, "run_jobs", in_this_process)
    unknown = truth.Attack(method="none", label="no such row", prepare=lambda: 1 / 0)  # its worker finds no such label
    with pytest.raises(JobFailed, match=r"^no such row: StopIteration"):
        truth.truth_table([unknown, unknown], effort=SMALL, workers=2)


def test_a_method_without_a_guarantee_has_an_infinite_certificate() -> None:
    (row, *_) = truth.truth_table(truth.attacks(SMALL, "geodp"), effort=SMALL)
    assert row.certified == math.inf
    assert row.verdict in (AuditVerdict.NOT_TESTED, AuditVerdict.CLAIM_BROKEN)


def test_the_statistic_row_is_below_the_exact_epsilon() -> None:
    row = truth.statistic(SMALL).row(generator=np.random.default_rng(2))
    assert row.certified == pytest.approx(4.37718, abs=1e-5)
    assert row.audited <= row.certified


def test_a_written_table_is_read_back_and_a_forged_verdict_is_not(tmp_path: Path) -> None:
    row = truth.statistic(SMALL).row(generator=np.random.default_rng(2))
    path = tmp_path / "table.json"
    answer = truth.document([row], command="discreet audit --all")
    path.write_text(json.dumps(answer))
    assert read_audit(path) == (row,)
    answer["rows"][0]["verdict"] = "claim broken"
    path.write_text(json.dumps(answer))
    with pytest.raises(Refused, match="verdict"):
        read_audit(path)
    for text in ("{}", "[", '{"rows": [{}]}'):
        path.write_text(text)
        with pytest.raises(Refused, match="truth table"):
            read_audit(path)
    with pytest.raises(Refused, match="truth table"):
        read_audit(tmp_path / "none.json")


def test_the_table_in_the_repository_breaks_no_certificate() -> None:
    path = Path(__file__).parents[2] / "results" / "truth-table.json"
    found = read_audit(path)
    assert {row.method for row in found} >= {*METHODS, "geodp (as published)"}
    for row in found:
        assert row.verdict is not AuditVerdict.CERTIFICATE_BROKEN
        if row.method.endswith("(as published)"):
            assert row.verdict is AuditVerdict.CLAIM_BROKEN
