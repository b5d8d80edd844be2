"""A table from the command line: schema, train, predict, evaluate; private files are never taken for public ones."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
from cli_runner import refused, run

from discreet import runs
from discreet.runs.comparison.compare import default_seeds

SCHEMA = {
    "age": {"bounds": [18, 90]},
    "ward": {"categories": ["A", "B", "C", "D"]},
    "readmitted": {"categories": ["no", "yes"]},
}
BUDGET = ("--epsilon", "8", "--delta", "1e-4", "--steps", "30")


def visits(path: Path, records: int) -> Path:
    chance = random.Random(path.name)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "ward", "readmitted"])
        for _ in range(records):
            age = chance.randint(18, 90)
            writer.writerow([age, chance.choice("ABC"), "yes" if age + chance.gauss(0, 6) > 54 else "no"])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables, a schema and a finished run."""
    folder = tmp_path_factory.mktemp("tables")
    visits(folder / "visits.csv", 900)
    visits(folder / "more.csv", 300)
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    out = run("train", *words(folder), "--out", folder / "run", "--json").json
    assert out["spent"]["certified"]["epsilon"] <= 8
    assert out["test_accuracy"] > 0.75
    return folder


def words(folder: Path) -> tuple[object, ...]:
    table = ("--data", folder / "visits.csv", "--label", "readmitted", "--schema", folder / "schema.json")
    return (*table, "--test", folder / "more.csv", "--records", "900", *BUDGET)


def test_a_run_on_a_table_keeps_what_it_needs(place: Path) -> None:
    config = runs.load_config(place / "run")
    assert json.loads(str(config.schema)) == SCHEMA
    assert (config.model, config.label, config.batch) == ("head", "readmitted", 300)
    assert config.seed is None  # private data: no seed unless asked for
    statement = (place / "run" / "privacy-statement.md").read_text()
    assert "visits" in statement


def test_predict_writes_a_label_for_each_record(place: Path, tmp_path: Path) -> None:
    assert run("predict", place / "more.csv", "--run", place / "run", "--out", tmp_path / "p.csv").code == 0
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert set(rows[0]) == {"label", "p(no)", "p(yes)"}
    for row in rows:
        assert row["label"] == ("yes" if float(row["p(yes)"]) > 0.5 else "no")
        assert float(row["p(yes)"]) + float(row["p(no)"]) == pytest.approx(1, abs=1e-5)
    answer = run("predict", place / "more.csv", "--run", place / "run", "--json").json
    assert [one["label"] for one in answer["predictions"]] == [row["label"] for row in rows]


def test_evaluate_agrees_with_training(place: Path) -> None:
    found = run("evaluate", place / "more.csv", "--run", place / "run", "--json").json
    assert found["accuracy"] == pytest.approx(runs.load_result(place / "run").test_accuracy)
    assert found["auc"] > 0.8
    assert 0 <= found["calibration"] <= 1
    shown = run("evaluate", place / "more.csv", "--run", place / "run")
    assert "which no epsilon protects" in " ".join(shown.out.split())
    assert "calibration error" in shown.out


@pytest.mark.parametrize("part", [("--test",), ("--hold-out",)])
def test_a_noisy_count_is_about_all_rows_of_the_named_table(place: Path, tmp_path: Path, part: tuple[str]) -> None:
    words_of_run = list(words(place))
    if part == ("--hold-out",):
        at = words_of_run.index("--test")
        words_of_run[at : at + 2] = ["--hold-out", "0.2"]
    run("train", *words_of_run, "--out", tmp_path / "run")
    swapped = (place / "more.csv").read_text().replace("yes", "no?").replace("no\n", "yes\n").replace("no?", "no")
    (tmp_path / "swapped.csv").write_text(swapped)
    budget = ("--epsilon", "50", "--delta", "1e-4", "--records", "300", "--json")
    shown = run("evaluate", tmp_path / "run", "--data", tmp_path / "swapped.csv", *budget).json
    exact = run("evaluate", "--run", tmp_path / "run", tmp_path / "swapped.csv", "--json").json
    assert exact["accuracy"] < 0.25  # every label of these records is swapped
    assert shown["accuracy"] == pytest.approx(exact["accuracy"], abs=6 * shown["error"])


def test_a_schema_is_drafted_from_public_data_only(place: Path) -> None:
    refused(run("schema", place / "visits.csv"), "--public", "from public knowledge")
    assert set(run("schema", place / "visits.csv", "--public", "--json").json["schema"]) == set(SCHEMA)


def test_what_a_table_lacks_is_named_at_once(place: Path, tmp_path: Path) -> None:
    table = ("--data", place / "visits.csv", "--records", "900", *BUDGET, "--out", tmp_path / "run")
    refused(run("train", *table), "--label, --schema and --hold-out, got none of them", "--schema schema.json")
    described = (*table, "--label", "readmitted", "--schema", place / "schema.json")
    refused(run("train", *described), "a test file or a share to hold out, got neither", "not protected")
    refused(run("train", *described, "--hold-out", "0.2", "--classes", "2"), "no classes with a table")
    refused(run("train", *described[2:], "--data", "digits"), "with digits")
    assert not (tmp_path / "run").exists()


def test_a_cell_that_is_no_number_is_refused_in_plain_words(place: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs Parquet")
    from pyarrow import parquet

    ages = [[30], [41]] * 50
    parquet.write_table(
        pyarrow.table({"age": ages, "ward": ["A"] * 100, "readmitted": ["no"] * 100}), tmp_path / "t.parquet"
    )
    table = ("--data", tmp_path / "t.parquet", "--label", "readmitted", "--schema", place / "schema.json")
    told = ("a cell of another kind, such as a list or a date", "write a number into every cell")
    refused(run("train", *table, "--hold-out", "0.2", "--records", "90", *BUDGET, "--out", tmp_path / "run"), *told)
    assert not (tmp_path / "run").exists()


def test_the_records_of_a_table_count_as_private(place: Path) -> None:
    assert default_seeds("visits.csv", 3) is None
    assert default_seeds("visits.parquet", 3) is None
    refused(run("audit", "--run", place / "run"), "a run on public records", "not declared public")
    refused(run("compare", *words(place), "--tune-on", place / "visits.csv", "--out", place / "all"), "visits.csv")


def test_a_run_that_is_not_finished_predicts_nothing(place: Path, tmp_path: Path) -> None:
    refused(run("predict", place / "more.csv", "--run", tmp_path), "a run")
    refused(run("evaluate", place / "more.csv"), "the directory of a run", "--run and a file")
    charged = ("--run", place / "run", "--epsilon", "1")
    refused(run("evaluate", place / "more.csv", *charged), "--run and a file alone, got --epsilon")
