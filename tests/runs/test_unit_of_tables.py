"""`--unit`: users are protected from the command line to the statement."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from discreet import runs
from discreet.accounting.charges import Charge
from discreet.accounting.events import CountQuery
from discreet.accounting.ledger import merge, read
from discreet.core.check import Refused
from discreet.core.errors import RunStopped
from discreet.core.streams import Streams
from discreet.data.tables import load_table
from discreet.report.page import write
from discreet.runs.budget import Budget, BudgetLimit
from discreet.runs.comparison.compare import Candidate, CompareSettings, compare
from discreet.runs.config import RunConfig
from discreet.runs.evaluation import evaluate
from discreet.runs.planning.advisor import Wanted, advise
from discreet.runs.scoring import Scored
from discreet.runs.tuning.bill import TuneSettings, bill_of
from discreet.runs.tuning.space import Space
from discreet.runs.tuning.sweep import split_task, tune
from discreet.stages.unit import CappedRecords, EachRecord, SampledUsers, Unit
from discreet.training.owners import Owners

SCHEMA = {"age": {"bounds": [18, 90]}, "sick": {"categories": [0, 1]}}
NUMBERS = {"epsilon": 5.0, "delta": 1e-3, "batch": 20, "steps": 4, "learning_rate": 0.5}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    drawn, path = random.Random(1), tmp_path / "visits.csv"
    rows = [(f"p{drawn.randint(0, 59)}", drawn.randint(18, 90)) for _ in range(400)]
    lines = [f"{who},{age},{int(age > 60)}" for who, age in rows]
    path.write_text("\n".join(["patient_id,age,sick", *lines]))
    return path


def config(table: Path, **settings: Any) -> RunConfig:
    own = {"label": "sick", "schema": json.dumps(SCHEMA), "hold_out": 0.2, "unit": "patient_id", "per_user": 3}
    out = str(table.parent / "run")
    return RunConfig(**({"data": str(table), "out": out, "records": 60} | NUMBERS | own | settings))


@pytest.mark.parametrize(("sample", "records"), [("users", 60), ("records", 400)])
def test_a_run_protects_the_owners_of_a_column(table: Path, sample: str, records: int) -> None:
    result = runs.train(config(table, sample=sample, records=records, seed=3))
    assert result.spent.unit == "patient"
    assert "of one patient" in str(result.spent)
    assert runs.load_result(result.directory).spent.unit == "patient"
    statement = (result.directory / "privacy-statement.md").read_text()
    assert "a person with several records is protected less" not in statement
    assert "patient" in statement
    assert read(result.directory / "ledger.jsonl").header["unit"] == "patient"
    files = [path for path in result.directory.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not any(b"p17" in path.read_bytes() for path in files)


def test_owners_are_held_out_as_a_whole(table: Path) -> None:
    task = load_table(table, label="sick", schema=SCHEMA, hold_out=0.3, unit="patient_id")
    assert task.owners is not None
    assert len(task.owners) == len(task.train) < 400
    everyone = {line.split(",")[0] for line in table.read_text().splitlines()[1:]}
    assert len(task.train) + len(task.test) == 400
    held = everyone - set(task.owners)
    assert sum(line.split(",")[0] in held for line in table.read_text().splitlines()[1:]) == len(task.test)
    assert "p1" not in repr(task)


def test_missing_owners_are_refused(table: Path) -> None:
    table.write_text(table.read_text() + "\n?,30,0\n")
    with pytest.raises(Refused, match="an owner in every row"):
        load_table(table, label="sick", schema=SCHEMA, hold_out=0.3, unit="patient_id")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"per_user": None}, "unit and per_user together"),
        ({"unit": None}, "unit and per_user together"),
        ({"unit": "age"}, "no features from the column"),
        ({"unit": "nobody"}, "the column 'nobody'"),
        ({"sample": "both"}, "sample to be one of users, records"),
        ({"per_user": 0}, "per_user"),
        ({"method": "dicesgd", "sample": "records"}, "for capped records of users"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ", ".join(value),
)
def test_what_does_not_fit_is_refused(table: Path, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(Refused, match=match):
        runs.train(config(table, **settings))


def test_units_need_a_table(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="a table with --unit"):
        RunConfig(data="digits", out=str(tmp_path / "run"), unit="author", per_user=2, epsilon=1.0, delta=1e-4)


WAYS = [("users", 60), ("records", 400)]


@pytest.mark.parametrize(("sample", "records"), WAYS)
def test_a_noisy_score_protects_owners(table: Path, sample: str, records: int) -> None:
    run = runs.train(config(table, seed=3, sample=sample, records=records)).directory
    found = evaluate(run, epsilon=4.0, delta=1e-3, records=12 if sample == "users" else 80)
    assert found.unit == "patient"
    assert found.to_json()["unit"] == "patient"
    assert read(found.ledger).header["unit"] == "patient"
    ((count, _),) = merge([found.ledger]).certified
    assert isinstance(count, CountQuery)
    assert found.error == pytest.approx(count.sigma / 12 if sample == "users" else 3 * count.sigma / 80)


def test_a_score_needs_the_owners_of_test_records(table: Path) -> None:
    test = table.with_name("test.csv")
    test.write_text("age,sick\n30,0\n70,1\n")
    run = runs.train(config(table, seed=3, hold_out=None, test=str(test))).directory
    with pytest.raises(RunStopped) as stopped:
        evaluate(run, epsilon=4.0, delta=1e-3, records=12)
    assert "owners of the test records" in str(stopped.value.__cause__)


@pytest.mark.parametrize(("sample", "records"), WAYS)
def test_a_search_protects_owners(table: Path, sample: str, records: int) -> None:
    searched = config(table, learning_rate=None, sample=sample, records=records, out=str(table.parent / "tuned"))
    result = tune(searched, {"learning_rate": [0.1, 1.0]}, runs=2, workers=1)
    assert result.unit == "patient"
    assert result.certified.epsilon <= 5.0
    assert read(result.directory / "ledger.jsonl").header["unit"] == "patient"
    statement = (result.directory / "privacy-statement.md").read_text()
    assert "for every patient" in statement
    assert "is protected less" not in statement


def test_the_noise_of_a_search_is_that_of_its_unit(table: Path) -> None:
    space, same = Space.of({"learning_rate": [0.1, 1.0]}), {"learning_rate": None, "records": 400}
    by_unit = {
        sample: bill_of(TuneSettings(config=config(table, sample=sample, **same), space=space, runs=2))
        for sample in ("users", "records")
    }
    alone = bill_of(TuneSettings(config=config(table, unit=None, per_user=None, **same), space=space, runs=2))
    (users,), (capped,), (each,) = (set(bill.noises.values()) for bill in (*by_unit.values(), alone))
    assert users == pytest.approx(each)  # users in the place of records
    assert capped > 1.2 * each  # three records of one owner
    assert {bill.sigma for bill in by_unit.values()} == {alone.sigma}


@pytest.mark.parametrize(("sample", "records", "counted"), [("users", 60, "patients"), ("records", 400, "records")])
def test_a_comparison_protects_owners(table: Path, sample: str, records: int, counted: str) -> None:
    out = table.parent / "compared"
    settings = CompareSettings(
        out=out,
        data=str(table),
        label="sick",
        schema=json.dumps(SCHEMA),
        hold_out=0.2,
        unit="patient_id",
        per_user=3,
        sample=sample,
        epsilon=5.0,
        delta=1e-3,
        batch=20,
        steps=4,
        records=records,
        rows=tuple(Candidate(method=method) for method in ("dp-sgd", "dicesgd")[: 1 + (sample == "records")]),
        repeats=1,
        workers=1,
    )
    found = compare(settings)
    assert found.neighbours == "add/remove of one patient"
    assert (found.unit, found.sampled, found.records) == ("patient", counted, records)
    (entry,) = found.entries
    assert entry.runs
    assert read(out / "dp-sgd" / "os-1" / "ledger.jsonl").header["unit"] == "patient"
    refused = [row.reason for row in found.excluded if row.method == "dicesgd"]
    assert bool(refused) == (sample == "records")
    assert all("for capped records of users" in reason for reason in refused)
    page = write(found, out).page.read_text()
    assert "Every patient, with all training records that belong to the patient" in page
    assert f"{records} {counted} of" in page
    assert "One training record" not in page


def test_a_budget_file_is_for_one_unit(table: Path) -> None:
    file = table.parent / "budget.json"
    budget = Budget.create(file, BudgetLimit(epsilon=9.0, delta=1e-3, unit="patient"))
    runs.train(config(table, budget=str(file)))
    assert 0 < budget.read().spent <= 5.0
    records = config(table, budget=str(file), unit=None, per_user=None, records=400, out=str(table.parent / "b"))
    with pytest.raises(Refused, match="a charge for every patient"):
        runs.train(records)
    with pytest.raises(Refused, match="no part in a budget for every patient"):
        budget.charge(Charge.of(CountQuery(9.0)), entry="x", what="x", part="a", unit="patient")
    usual = table.parent / "records.json"
    Budget.create(usual, BudgetLimit(epsilon=9.0, delta=1e-3))
    with pytest.raises(Refused, match="a charge for every record"):
        runs.train(config(table, budget=str(usual), out=str(table.parent / "c")))
    assert Budget(usual).read().entries == ()


# The count ----------------------------------------------------------------------------------------------------

OWNED = Owners(["a"] * 7 + ["b"] * 2 + ["c"])


def exact(right: torch.Tensor, owners: Owners | None, unit: Unit) -> float:
    return Scored(TensorDataset(right), owners, unit).noisy_count(right, 1e-12, Streams.seeded(1).noise)


def test_a_count_is_the_mean_of_each_user_or_its_capped_records() -> None:
    right = torch.tensor([True] * 7 + [True, False] + [False])
    assert exact(right, OWNED, SampledUsers(per_user=3)) == pytest.approx(0.5 + 0.0 - 0.5, abs=1e-9)
    assert exact(right, OWNED, CappedRecords(per_user=3)) == pytest.approx(3 * 0.5 + 2 * 0.0 - 0.5)
    assert exact(right, None, EachRecord()) == pytest.approx(3.0)


@pytest.mark.parametrize("unit", [SampledUsers(per_user=3), CappedRecords(per_user=3)], ids=["users", "records"])
def test_a_user_moves_a_count_by_half_of_what_counts(unit: Unit) -> None:
    """Leave every user out in turn; the count by record, a control, moves further."""
    right, names = torch.tensor([True] * 7 + [True, False] + [False]), ["a"] * 7 + ["b"] * 2 + ["c"]
    moves, by_record = [], []
    for left in "abc":
        kept = torch.tensor([name != left for name in names])
        fewer = Owners([name for name in names if name != left])
        moves.append(abs(exact(right, OWNED, unit) - exact(right[kept], fewer, unit)))
        by_record.append(abs(exact(right, None, EachRecord()) - exact(right[kept], None, EachRecord())))
    assert max(moves) == pytest.approx(unit.counted / 2)
    assert max(by_record) == pytest.approx(7 / 2)


def test_owners_join_one_part_of_a_split(table: Path) -> None:
    task = load_table(table, label="sick", schema=SCHEMA, hold_out=0.2, unit="patient_id")
    training, scored = split_task(task, 0.3, bytes(32), SampledUsers(per_user=3))
    assert task.owners is not None
    assert training.owners is not None
    assert scored.owners is not None
    assert len(training.train) + len(scored.data) == len(task.train)
    assert len(training.owners) == len(training.train)
    assert len(set(training.owners)) + len(scored.owners) == len(set(task.owners))
    assert 4 < len(scored.owners) < 30


def test_older_settings_keep_their_digest() -> None:
    body = RunConfig(data="digits", out="x", epsilon=1.0, delta=1e-4).to_json()
    assert not {"unit", "per_user", "sample"} & set(body)


def test_ledgers_of_different_units_are_not_added(table: Path) -> None:
    one = runs.train(config(table, seed=3)).directory
    other = runs.train(config(table, seed=4, unit=None, per_user=None, records=400, out=str(table.parent / "b")))
    with pytest.raises(Refused, match="runs that protect every patient"):
        merge([one / "ledger.jsonl", other.directory / "ledger.jsonl"])


def test_advice_names_the_better_way() -> None:
    many = advise(Wanted(records=100_000, epsilon=3.0, users=5000, per_user=20))
    assert many.lines[0].name == "unit"
    assert many.lines[0].value.startswith("sample records")
    few = advise(Wanted(records=10_000, epsilon=3.0, data="table", users=5000, per_user=10))
    assert few.lines[0].value.startswith("sample users")
    assert "--unit COLUMN --per-user 10 --sample users" in few.command
    assert "discreet.CappedRecords(per_user=20)" in many.command
    with pytest.raises(Refused, match="users and per_user together"):
        Wanted(records=10, epsilon=1.0, users=5)
