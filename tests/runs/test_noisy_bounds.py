"""Bounds of private columns: what a record can move, the noise, the charge before the read, and an audit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import refused, run

from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian
from discreet.accounting.ledger import read
from discreet.auditing.bounds import Tally, best_audit
from discreet.core.check import Refused
from discreet.core.errors import RunStopped
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.runs import noisy_bounds
from discreet.runs.budget import Budget, BudgetLimit
from discreet.runs.noisy_bounds import EDGES, find_bounds, histogram, released, within

STRANGE: list[Any] = ["", "?", None, "nan", "inf", "-inf", "1e400", "-0.0", 0, "3.5", -7, 1e300, "1e-300", True, "x"]


def counts(table: dict[str, list[Any]]) -> np.ndarray:
    return np.stack([histogram(np.array(cells, object)) for cells in table.values()])


def test_leaving_any_record_out_moves_the_counts_by_at_most_one_in_each_column() -> None:
    rows = [(one, other, third) for one in STRANGE for other in STRANGE for third in (5, "?")]
    table = {name: [row[place] for row in rows] for place, name in enumerate("abc")}
    whole = counts(table)
    for left_out in range(len(rows)):
        some = {name: [*cells[:left_out], *cells[left_out + 1 :]] for name, cells in table.items()}
        moved = whole - counts(some)
        assert np.linalg.norm(moved) <= math.sqrt(len(table))
        assert (np.abs(moved).sum(1) <= 1).all()


@pytest.mark.parametrize(
    ("cell", "low"), [(0, 0.0), (17, 10.0), (20, 20.0), (-1, -1.0), (-1.5, -2.0), (1e99, EDGES[-2]), (-1e99, EDGES[0])]
)
def test_a_number_counts_in_the_bucket_that_holds_it(cell: float, low: float) -> None:
    (place,) = np.flatnonzero(histogram(np.array([cell], object)))
    assert EDGES[place] == low
    clamped = min(max(cell, EDGES[0]), EDGES[-1])
    assert EDGES[place] <= clamped <= EDGES[place + 1]


def test_the_noise_on_each_count_has_the_charged_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    """False alarms: below 1e-6 for 4 columns of 252 counts. Half the noise is caught (negative control)."""
    seen: list[np.ndarray] = []
    monkeypatch.setattr(noisy_bounds, "within", lambda row, sigma, columns: seen.append(np.array(row)))
    table = {name: np.array([3.0] * 10, object) for name in "abcd"}
    released(table, list("abcd"), 6.0, Streams.from_os().noise)
    noise = np.stack(seen) - counts({name: [3.0] * 10 for name in "abcd"})

    def fits(values: np.ndarray) -> bool:
        share = (values / (6.0 * math.sqrt(4))).var() * values.size
        return bool(abs(share - values.size) < 5 * math.sqrt(2 * values.size))

    assert fits(noise)
    assert not fits(noise / 2)


def test_an_audit_of_the_counts_stays_below_the_certificate() -> None:
    """The attacker sees all noisy counts, and one record is there or not; 99.9 % confidence."""
    noise, columns, delta = 1.0, 3, 1e-2
    proven = certify(Charge.of(Gaussian(noise)), delta=delta, relation=Neighbouring.ADD_REMOVE).epsilon
    own = counts({name: [42] for name in "abc"})

    def shown(sigma: float) -> float:
        generator, tallies = np.random.default_rng(0), []
        for _ in range(2):
            drawn = sigma * generator.standard_normal((2, 40_000, int(own.sum())))
            tally = Tally(-15.0, 18.0)
            tally.add(absent=drawn[0].sum(1), present=(drawn[1] + 1).sum(1))
            tallies.append(tally)
        return float(best_audit([(tallies[0], tallies[1])], delta=delta, confidence=0.999).epsilon)

    assert 0.6 * proven < shown(noise * math.sqrt(columns)) <= proven
    assert shown(noise) > proven  # negative control: noise that forgets the number of columns


def test_bounds_hold_almost_all_records_and_buckets_of_noise_are_not_taken() -> None:
    generator = np.random.default_rng(1)
    ages = generator.normal(45, 12, 20_000).round()
    table = {"age": np.array(ages, object), "pay": np.array(generator.lognormal(10, 1, 20_000), object)}
    for _ in range(20):
        found = released(table, ["age", "pay"], 20.0, Streams.from_os().noise)
        for name, values in table.items():
            pair = found[name]
            assert pair is not None
            inside = (values >= pair[0]) & (values <= pair[1])
            assert inside.mean() > 0.97
    wide = [within(20.0 * generator.standard_normal(len(EDGES) - 1), 20.0, 1) for _ in range(300)]
    assert sum(pair is not None for pair in wide) < 15  # 3 expected; more has probability below 1e-6


def written(folder: Path) -> Path:
    file = folder / "visits.csv"
    file.write_text("age,ward\n" + "\n".join(f"{20 + i % 50},{'AB'[i % 2]}" for i in range(4000)) + "\n")
    return file


def test_the_charge_is_on_disk_before_a_record_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, ledger = written(tmp_path), tmp_path / "bounds.jsonl"
    budget = Budget.create(tmp_path / "budget.jsonl", BudgetLimit(epsilon=1.0, delta=1e-5))

    def refuse(path: Path) -> Any:
        assert len(read(ledger).entries) == 1
        assert len(budget.read().entries) == 1
        raise ValueError("no disk")

    monkeypatch.setattr(noisy_bounds.tables, "read", refuse)
    settings: dict[str, Any] = {"epsilon": 0.4, "delta": 1e-5, "records": 4000, "budget": budget.path}
    with pytest.raises(RunStopped):
        find_bounds(file, ["age"], ledger=ledger, **settings)
    assert len(read(ledger).entries) == 1
    with pytest.raises(Refused, match="a new file"):  # neither repeated nor hidden
        find_bounds(file, ["age"], ledger=ledger, **settings)


def test_a_budget_that_is_spent_refuses_and_leaves_nothing(tmp_path: Path) -> None:
    budget = Budget.create(tmp_path / "budget.jsonl", BudgetLimit(epsilon=0.3, delta=1e-5))
    ledger = tmp_path / "bounds.jsonl"
    with pytest.raises(Refused, match="a charge within what is left"):
        find_bounds(
            written(tmp_path), ["age"], epsilon=0.5, delta=1e-5, records=4000, ledger=ledger, budget=budget.path
        )
    assert not ledger.exists()
    assert budget.read().entries == ()


@pytest.mark.parametrize("relation", list(Neighbouring))
def test_the_certificate_is_within_the_budget(tmp_path: Path, relation: Neighbouring) -> None:
    budget = Budget.create(tmp_path / "budget.jsonl", BudgetLimit(epsilon=2.0, delta=1e-5, relation=relation))
    ledger = tmp_path / "bounds.jsonl"
    found = find_bounds(
        written(tmp_path), ["age"], epsilon=1.5, delta=1e-5, records=4000, ledger=ledger, budget=budget.path
    )
    assert found.certified.relation is relation
    assert 1.4 < found.certified.epsilon <= 1.5
    again = certify(read(ledger).charge(), delta=1e-5, relation=relation).epsilon
    assert again == found.certified.epsilon
    assert budget.read().spent == pytest.approx(found.certified.epsilon)


def test_the_command(tmp_path: Path) -> None:
    file, out = written(tmp_path), tmp_path / "schema.json"
    paid = ("--spend", "1", "--numbers", "age", "--delta", "1e-5", "--records", "4000", "--out", str(out))
    answer = run("schema", str(file), *paid, "--json").json
    assert json.loads(out.read_text()) == answer["schema"] == {"age": {"bounds": [20.0, 80.0]}}
    assert answer["certified"]["epsilon"] <= 1
    assert len(read(tmp_path / "schema.ledger.jsonl").entries) == 1
    refused(run("schema", str(file), *paid), "a new file")
    refused(run("schema", str(file), "--spend", "1"), "--numbers, --delta, --records and --out, got none of them")
    refused(run("schema", str(file), "--spend", "1", "--public"), "--public or --spend, got both")
    refused(run("schema", str(file), "--records", "9"), "--spend with --records")
    refused(run("schema", str(file)), "--public, your word")
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize(
    ("columns", "fields", "match"),
    [
        ([], {}, "different columns"),
        (["age", "age"], {}, "different columns"),
        (["age"], {"epsilon": 0.0}, "epsilon > 0"),
        (["age"], {"delta": 0.5}, "delta"),
    ],
)
def test_a_question_without_sense_is_refused_before_a_ledger_is_made(
    tmp_path: Path, columns: list[str], fields: dict[str, Any], match: str
) -> None:
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "records": 4000, **fields}
    with pytest.raises(Refused, match=match):
        find_bounds(written(tmp_path), columns, ledger=tmp_path / "bounds.jsonl", **given)
    assert not (tmp_path / "bounds.jsonl").exists()
