"""`--unit`: users are protected from the command line to the statement."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from discreet import runs
from discreet.accounting.ledger import merge, read
from discreet.core.check import Refused
from discreet.data.tables import load_table
from discreet.runs.config import RunConfig
from discreet.runs.evaluation import evaluate
from discreet.runs.planning.advisor import Wanted, advise
from discreet.runs.tuning.sweep import tune

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
        ({"budget": "b.json"}, "no budget file with --unit"),
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


def test_searches_and_noisy_scores_are_for_records(table: Path) -> None:
    """A user moves a count of right answers by more than one record does."""
    with pytest.raises(Refused, match="settings without a unit for a search"):
        tune(config(table, learning_rate=None), {"learning_rate": [0.1, 1.0]}, runs=2)
    run = runs.train(config(table, seed=3)).directory
    with pytest.raises(Refused, match="settings without a unit for a noisy count"):
        evaluate(run, epsilon=1.0, delta=1e-3, records=80)


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
