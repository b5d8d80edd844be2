"""Tables of the user's own: CSV, Parquet or named columns of an npz file, read with a public schema.

Only the schema says what a column holds. Nothing is learned from the records: no bounds, no categories, no classes.
"""

import csv
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import TensorDataset

from discreet.core.check import count, fraction, refuse, require
from discreet.core.own_files import CLASSIFICATION
from discreet.data.datasets import PRIVATE_CHECKSUM, Task
from discreet.data.labels import Columns, label_reader
from discreet.data.schema import OTHERS, Schema, number, text

MISSING: Final = ("", "na", "nan", "null", "none", "?")


def read(path: str | Path) -> Columns:
    """The columns of a file by name; cells of a CSV file are text."""
    file = Path(path).expanduser()
    require(file.is_file(), "a table (.csv, .parquet, .npz)", f"no file {file}", "check the path")
    readers = {".csv": _csv, ".parquet": _parquet, ".npz": _npz}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        refuse("a table that ends in .csv, .parquet or .npz", file.name, "convert it to one of these")
    columns = reader(file)
    sizes = {len(values) for values in columns.values()}
    require(len(sizes) == 1, f"columns of one length in {file.name}", "several lengths", "write it again")
    return columns


def _csv(file: Path) -> Columns:
    remedy = "write it again as UTF-8, with every quote inside a quoted cell doubled"
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.reader(lines, strict=True))  # else a stray quote takes all rows after it for one cell
    except (UnicodeDecodeError, csv.Error) as error:  # without the message, which may quote a record
        refuse(f"a CSV file in {file.name}", f"a {type(error).__name__}", remedy)
    require(len(rows) > 1, f"a line of names and at least one record in {file.name}", "none", "check the file")
    names, records = rows[0], [row for row in rows[1:] if row]
    distinct, remedy = len(set(names)) == len(names), "name each column once, in the first line"
    require(distinct, f"distinct names in the first line of {file.name}", ", ".join(names[:8]), remedy)
    whole = all(len(row) == len(names) for row in records)
    require(whole, f"{len(names)} cells in each line of {file.name}", "another number", "check quotes and separators")
    return {name: np.array([row[place] for row in records], object) for place, name in enumerate(names)}


def _parquet(file: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError:
        refuse("pyarrow, to read Parquet files", "none", "pip install pyarrow, or pass a CSV file")
    table = parquet.read_table(file)
    return {name: np.array(table.column(name).to_pylist(), object) for name in table.column_names}


def _npz(file: Path) -> Columns:
    try:
        with np.load(file, allow_pickle=False) as held:
            columns = {name: held[name] for name in held.files}
    except (OSError, EOFError, ValueError) as error:
        refuse("an npz file without pickled objects", error, "write it with numpy.savez(path, age=..., city=...)")
    flat, remedy = all(values.ndim == 1 for values in columns.values()), "store one array of numbers or text per column"
    require(flat, f"one axis in each column of {file.name}", "more axes", remedy)
    return columns


def read_schema(written: str) -> dict[str, Any]:
    """A schema from JSON."""
    remedy = 'write {"age": {"bounds": [18, 90]}, "city": {"categories": ["a", "b"]}}'
    try:
        found = json.loads(written)
    except ValueError as error:
        refuse("a schema in JSON", error, remedy)
    require(isinstance(found, dict) and bool(found), "a schema with columns", type(found).__name__, remedy)
    return dict(found)


class TableReader:
    """Turns the columns of a file into features and labels, as a public schema describes them.

    label  the column to predict, or several a,b,c; its categories in the schema are the classes, in this order
    task   what the label is: a class, a number or several labels
    """

    def __init__(self, description: Mapping[str, Any], label: str, task: str = CLASSIFICATION) -> None:
        self.labels = label_reader(task, label, description)
        predicted, remedy = self.labels.columns, "describe each column that is to be used by its name"
        require(OTHERS not in description, "every column of a table by its name", repr(OTHERS), remedy)
        self.schema = Schema.of({name: one for name, one in description.items() if name not in predicted})

    @property
    def width(self) -> int:
        return self.schema.width

    def features(self, columns: Columns) -> torch.Tensor:
        """One row of numbers for each record, [n, width]; columns that the schema does not describe are ignored."""
        missing = [name for name in self.schema.columns if name not in columns]
        remedy = "describe the columns that the table has"
        require(not missing, "every column of the schema in the table", f"no {', '.join(missing[:4])}", remedy)
        return torch.from_numpy(self.schema.encode(columns))


def load_table(
    path: str | Path,
    *,
    label: str,
    schema: Mapping[str, Any],
    task: str = CLASSIFICATION,
    test: str | Path | None = None,
    hold_out: float | None = None,
    records: int | None = None,
    public: bool = False,
    unit: str | None = None,
) -> Task:
    """A table as a task. Test records come from another file, or are a share of the rows that is held out.

    unit  the column that names the owner of each record; records are then held out by owner

    Guarantee: shape, classes and constants come from the schema alone. No epsilon protects the test records, also
    those that are held out.
    """
    if records is not None:
        count("records is a public number, about the size of the training set", records=records)
    given = "both" if test is not None else "neither"
    remedy = "give --test FILE, or --hold-out 0.2: these records are not protected, because their accuracy is shown"
    require((test is None) != (hold_out is None), "a test file or a share to hold out", given, remedy)
    reader, columns = TableReader(schema, label, task), read(path)
    x, y = reader.features(columns), reader.labels.read(columns)
    owners, test_owners = None if unit is None else _owners(columns, unit, schema), None
    if hold_out is None:
        assert test is not None
        other = read(test)
        train, held = TensorDataset(x, y), TensorDataset(reader.features(other), reader.labels.read(other))
        test_owners = _owners(other, unit, schema) if unit in other else None
    else:
        out = _held_out(columns if unit is None else {unit: columns[unit]}, hold_out)
        if owners is not None:
            owners, test_owners = (tuple(compress(owners, part.tolist())) for part in (~out, out))
        train, held = TensorDataset(x[~out], y[~out]), TensorDataset(x[out], y[out])
    digest = hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest() if public else PRIVATE_CHECKSUM
    constants = f"the public schema of {len(reader.schema.columns)} columns"
    target = reader.labels.target
    return Task(
        name=Path(path).stem,
        train=train,
        test=held,
        classes=target.outputs,
        shape=(reader.width,),
        checksum=digest,
        public=public,
        records=records,
        constants=constants,
        target=target,
        owners=owners,
        test_owners=test_owners,
    )


def _owners(columns: Columns, unit: str, schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The owner of each record, as text. A record without one is refused, without saying which."""
    require(unit in columns, f"the column {unit!r}", ", ".join(list(columns)[:8]), "check --unit")
    remedy = "leave it out of the schema: a model that knows owners cannot be used for others"
    require(unit not in schema, f"no features from the column {unit!r} of owners", "a description of it", remedy)
    names = tuple("" if cell is None else text(cell) for cell in columns[unit].tolist())
    missing = any(name.lower() in MISSING for name in names)
    remedy = "leave out records without an owner, or give each a name of its own"
    require(not missing, f"an owner in every row of {unit!r}", "a row without one", remedy)
    return names


def _held_out(columns: Columns, share: float) -> torch.Tensor:
    """Which rows are held out: by a hash of the row's own cells, so that one record never moves another."""
    fraction("the share of rows that are not protected, e.g. 0.2", hold_out=share)
    rows = zip(*(values.tolist() for _, values in sorted(columns.items())), strict=True)
    hashes = (hashlib.sha256("\x1f".join(map(text, row)).encode()).digest() for row in rows)
    return torch.tensor([int.from_bytes(one[:8]) < share * 2**64 for one in hashes])


def draft_schema(columns: Columns, most: int = 50) -> dict[str, dict[str, Sequence[Any]]]:
    """A schema from PUBLIC data: bounds of numbers, rounded outwards; categories of text and of few whole numbers.

    >>> draft_schema({"age": np.array(["18", "67.5"]), "city": np.array(["b", "a", "?"])})
    {'age': {'bounds': [10.0, 70.0]}, 'city': {'categories': ['a', 'b']}}
    """
    return {name: _draft(name, values, most) for name, values in columns.items()}


def _draft(name: str, cells: npt.NDArray[Any], most: int) -> dict[str, Sequence[Any]]:
    held = [cell for cell in cells.tolist() if cell is not None and text(cell).lower() not in MISSING]
    numbers = [number(cell, math.nan) for cell in held]
    if not held or any(not math.isfinite(number) for number in numbers) or set(numbers) <= {0.0, 1.0}:
        categories = sorted({text(cell) for cell in held})
        remedy = "leave it out of the schema: names, keys and free text are no categories"
        require(0 < len(categories) <= most, f"at most {most} values in column {name!r}", len(categories), remedy)
        return {"categories": categories}
    low, high = min(numbers), max(numbers)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)))
    return {"bounds": [math.floor(low / step) * step, math.ceil(high / step) * step if high > low else low + step]}
