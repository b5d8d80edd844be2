"""Tables: only the schema says what a column holds, and no record moves another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discreet.core.check import Refused
from discreet.data import tables
from discreet.data.tables import TableReader, draft_schema, load_table, read, read_schema

SCHEMA = {
    "age": {"bounds": [0, 100], "bins": 2},
    "ward": {"categories": ["A", "B"]},
    "ill": {"categories": ["no", "yes"]},
}
LINES = ["age,ward,ill", "25,A,no", "75,B,yes", "200,C,yes", "?,A,no"]


def written(folder: Path, lines: list[str] = LINES, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_features_follow_the_schema_alone(tmp_path: Path) -> None:
    reader, columns = TableReader(SCHEMA, "ill"), read(written(tmp_path))
    assert reader.features(columns).tolist() == [
        [0.25, 1.0, 0.0, 1.0, 0.0],
        [0.75, 0.0, 1.0, 0.0, 1.0],
        [1.0, 0.0, 1.0, 0.0, 0.0],  # clamped, and a category that is not listed
        [0.5, 0.0, 1.0, 1.0, 0.0],  # missing: the middle of the bounds
    ]
    assert reader.labels.read(columns).tolist() == [0, 1, 1, 0]
    assert reader.labels.names == ("no", "yes")


def test_leaving_a_record_out_moves_no_other(tmp_path: Path) -> None:
    """Features, labels and what is held out of the others stay as they were: nothing is learned from the records."""
    lines = ["age,ward,ill", *(f"{(7 * i) % 120},{'ABC'[i % 3]},{'yes' if i % 2 else 'no'}" for i in range(60))]

    def rows(lines: list[str], name: str) -> tuple[list[list[float]], list[list[float]]]:
        task = load_table(written(tmp_path, lines, name), label="ill", schema=SCHEMA, hold_out=0.3)
        return tuple(sorted(torch.cat([x, y[:, None]], 1).tolist()) for x, y in (task.train.tensors, task.test.tensors))  # type: ignore[return-value]

    train, test = rows(lines, "whole.csv")
    assert 5 < len(test) < 30
    for left_out in (1, 17, 60):
        fewer = rows(lines[:left_out] + lines[left_out + 1 :], "fewer.csv")
        both = sorted(fewer[0] + fewer[1])
        assert len(both) == 59
        for before, after in ((train, fewer[0]), (test, fewer[1])):
            assert len(before) - len(after) in (0, 1)
            rest = list(before)
            for row in after:
                rest.remove(row)
            assert len(rest) == len(before) - len(after)


def test_public_facts_do_not_depend_on_the_records(tmp_path: Path) -> None:
    one = load_table(written(tmp_path), label="ill", schema=SCHEMA, hold_out=0.5, records=100)
    other = written(tmp_path, ["age,ward,ill", *["1,B,no"] * 30], "other.csv")
    two = load_table(other, label="ill", schema=SCHEMA, test=written(tmp_path), records=100)
    for fact in ("classes", "shape", "records", "constants", "checksum", "public"):
        assert getattr(one, fact) == getattr(two, fact), fact
    assert "not computed" in one.checksum


def test_every_format_gives_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns: dict[str, Any] = {"age": [25.0, 75.0], "ward": ["A", "B"], "ill": ["no", "yes"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", **{name: np.array(values) for name, values in columns.items()})
    reader = TableReader(SCHEMA, "ill")
    wanted = reader.features(read(written(tmp_path, LINES[:3])))
    for name in ("t.parquet", "t.npz"):
        assert torch.equal(reader.features(read(tmp_path / name)), wanted)


@pytest.mark.parametrize(("written_as", "known"), [("1", 1), ("1.0", "1.0"), (" 1", 1)])
def test_a_category_is_found_however_it_is_written(tmp_path: Path, written_as: str, known: Any) -> None:
    schema = {"a": {"bounds": [0, 1], "bins": 1}, "y": {"categories": [0, known]}}
    columns = read(written(tmp_path, ["a,y", f"0,{written_as}", "0,0"]))
    assert TableReader(schema, "y").labels.read(columns).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["age,ward,ill"], "at least one record"),
        (["age,age,ill", "1,2,no"], "distinct names"),
        (["age,ward,ill", "1,A"], "3 cells in each line"),
        (["age,ill", "1,no"], "every column of the schema.*no ward"),
        (["age,ward", "1,A"], "the column 'ill'"),
        (["age,ward,ill", "1,A,perhaps"], "labels of no, yes, got another value"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, lines: list[str], match: str) -> None:
    with pytest.raises(Refused, match=match):
        load_table(written(tmp_path, lines), label="ill", schema=SCHEMA, test=written(tmp_path, LINES, "test.csv"))


@pytest.mark.parametrize(
    "lines",
    [
        ['1,no,"A', "2,yes,B", "3,no,A"],  # would take all rows after it for one cell
        ['1,no,"A', '2,yes,"B"', "3,no,A"],
        ["1,no,A", f"2,yes,{'B' * 200_000}"],
        ["1,no,A", "2,yes,\udce9"],
    ],
)
def test_a_damaged_row_takes_no_other_with_it_and_is_not_quoted(tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes("\n".join(["age,ill,ward", *lines]).encode(errors="surrogateescape"))
    with pytest.raises(Refused, match=r"a CSV file in t\.csv, got a (Error|UnicodeDecodeError)") as refusal:
        read(file)
    assert "0x" not in str(refusal.value)


def test_the_refusal_of_a_label_does_not_say_which(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="another value") as refusal:
        TableReader(SCHEMA, "ill").labels.read(read(written(tmp_path, ["age,ward,ill", "1,A,perhaps"])))
    assert "perhaps" not in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({}, "a test file or a share to hold out, got neither.*not protected"),
        ({"test": "t.csv", "hold_out": 0.2}, "got both"),
        ({"hold_out": 1.5}, "hold_out in"),
        ({"hold_out": 0.5, "label": "pulse"}, "the label 'pulse' in the schema"),
        ({"hold_out": 0.5, "label": "age"}, "categories of the label 'age', got none.*--task regression"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(tmp_path: Path, fields: dict[str, Any], match: str) -> None:
    with pytest.raises(Refused, match=match):
        load_table(written(tmp_path), **{"label": "ill", "schema": SCHEMA, **fields})


@pytest.mark.parametrize("text", ["", "[]", "{}", "{age: 3}"])
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="a schema"):
        read_schema(text)


def test_a_draft_describes_its_table(tmp_path: Path) -> None:
    columns = read(written(tmp_path))
    drafted = draft_schema(columns)
    assert drafted == {
        "age": {"bounds": [0.0, 200.0]},
        "ward": {"categories": ["A", "B", "C"]},
        "ill": {"categories": ["no", "yes"]},
    }
    assert TableReader(json.loads(json.dumps(drafted)), "ill").features(columns).shape[0] == 4
    with pytest.raises(Refused, match="at most 50 values in column 'name'"):
        draft_schema({"name": np.array([f"person {i}" for i in range(51)])})


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no file"):
        read(tmp_path / "none.csv")
    (tmp_path / "t.xlsx").write_text("")
    with pytest.raises(Refused, match=r"\.csv, \.parquet or \.npz"):
        tables.read(tmp_path / "t.xlsx")
