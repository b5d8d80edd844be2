"""A public description of the columns of a table, and the features that follow from it.

    {"age": {"bounds": [17, 90]}, "city": {"categories": ["Delft", "Leiden"]}, "*": {"bounds": [0, 1]}}
    {"income": {"bounds": [0, 1e6], "log": true, "bins": 12}, "note": {"text": "words"}}

Nothing is fitted to the records: bounds, categories and bins come from the description. A column that is named `*`
describes every column that has no description of its own.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from discreet.core.check import Refused, refuse, require

ENCODERS: Final = MappingProxyType({"words": 4096, "minilm": 384})  # of text, with the width of their features
BINS: Final = 16  # of a column of numbers, unless its description says more
OTHERS: Final = "*"
_WIDE: Final = 1000.0  # bounds from 0 to more than this get bins by order of magnitude, such as amounts of money
_FORM: Final = (
    'describe it as {"bounds": [18, 90]}, {"categories": ["a", "b"]} or {"text": "words"}, from public knowledge'
)

_TRUTH: Final = MappingProxyType({"true": 1.0, "false": 0.0})  # texts that readers of tables take for booleans
_EXACT: Final = 2.0**53  # a float holds every whole number below

Features = npt.NDArray[np.float32]


class NoNumber(Refused, TypeError):
    """A cell that cannot be read as a number. scikit-learn expects a `TypeError` of that."""


def number(cell: Any, missing: float) -> float:
    """A cell as a number. A text counts as what a reader of tables would take it for.

    >>> number("3.5", 0.0), number("?", 1.0), number(None, 2.0), number("inf", 3.0), number("TRUE", 4.0)
    (3.5, 1.0, 2.0, inf, 1.0)
    """
    if cell is None:
        return missing
    try:
        value = float(cell)
    except ValueError:
        return _TRUTH.get(str(cell).strip().lower(), missing)
    except OverflowError:  # a whole number beyond all floats
        return math.inf if cell > 0 else -math.inf
    except TypeError:  # without the cell, which is private
        got, remedy = "a cell of another kind, such as a list or a date", "write a number into every cell of the column"
        message = f"Expected numbers: an argument must be a string or a real number, got {got}. Remedy: {remedy}."
        raise NoNumber(message) from None
    return missing if math.isnan(value) else value


def measured(cell: Any, missing: float) -> float:
    """A cell of a column of numbers. A text that holds digits and is no number is refused.

    A reader that was told of decimal commas gives numbers, and texts such as "1,5" if one cell of the column is no
    number: they would all be missing.

    >>> measured("3.5", 0.0), measured("?", 1.0)
    (3.5, 1.0)
    """
    value = number(cell, math.nan)
    if math.isnan(value) and isinstance(cell, str) and any(sign.isdigit() for sign in cell):
        remedy = 'write numbers as in "1234.5" before reading the table: no decimal commas, thousands marks or units'
        refuse("numbers, or texts without digits where one is missing", "a text with digits that is no number", remedy)
    return missing if math.isnan(value) else value


def text(cell: Any) -> str:
    """A cell as text, such as the name of a category.

    >>> text(1.0), text(" Delft "), text(True)
    ('1', 'Delft', 'True')
    """
    if isinstance(cell, float) and math.isfinite(cell) and cell == int(cell):
        return str(int(cell))
    return str(cell).strip()


def key(cell: Any) -> str:
    """What tells a cell from others: one form for a number or a boolean, whether it came as a text, an int or a float.

    Readers of tables give all cells of a column one type: beside one text, all numbers become texts, and beside one
    fraction, all whole numbers floats. Parsers of fractions differ in the last digit, so that 15 digits count. A float
    above 2^53 is refused: it may have been another whole number.

    >>> key(2139), key("02139"), key(1.5), key("1.50"), key(True), key("TRUE"), key(" Delft "), key(None)
    ('2139', '2139', '1.5', '1.5', '1', '1', 'Delft', 'nan')
    """
    if cell is None:
        return "nan"
    if isinstance(cell, (datetime.date, np.datetime64)):  # beside a wrong date, readers of tables give texts
        got, remedy = "a date", "read dates as text, and write each part that matters into a column of its own"
        refuse("texts, numbers or booleans in categories and texts", got, remedy)
    try:
        value = number(cell, math.nan)
    except NoNumber:
        return text(cell)
    if math.isnan(value):
        return text(cell)
    if abs(value) < _EXACT:
        return str(int(value)) if value == int(value) else f"{value:.15g}"
    got, remedy = "a float above it", "read the column as text, such as read_csv(path, dtype={'column': str})"
    require(math.isinf(value) or not isinstance(cell, float), "categories and texts below 2^53", got, remedy)
    try:
        return str(int(cell))
    except (ValueError, OverflowError):
        return f"{value:.15g}"


def words(cell: Any) -> str:
    """A cell of free text; numbers and booleans in one form, and nothing where nothing is written.

    >>> words("A red fox"), words("1.50"), words(2.0), words("TRUE"), words(None)
    ('A red fox', '1.5', '2', 'True', '')
    """
    written = str(cell).strip().lower()
    if cell is None or written == "nan":
        return ""
    if written in _TRUTH:
        return written.capitalize()
    found = key(cell)
    return str(cell) if found == str(cell).strip() else found


def cells(values: Any) -> npt.NDArray[Any]:
    """The cells of a column or a table, each as it is: in a list, one text would turn all numbers into texts.

    >>> cells([True, "?"]).tolist(), cells(np.array([1, 2])).dtype.kind
    ([True, '?'], 'i')
    """
    return np.asarray(values, object) if isinstance(values, (list, tuple)) else np.asarray(values)


@final
@dataclass(frozen=True)
class Numbers:
    """A column of numbers. Values outside the bounds are clamped to them.

    The features are the value on [0, 1] and the bin that it falls into, one-hot. So a linear model can follow any
    course of a number, and a bin without records costs nothing.

    log  the scale is log(1 + value - low), for amounts that span orders of magnitude
    """

    low: float
    high: float
    edges: tuple[float, ...]
    log: bool = False

    @classmethod
    def of(cls, low: float, high: float, bins: int | Sequence[float] = BINS, log: bool = False) -> Self:
        """Bins of equal width, or by order of magnitude if the bounds are far apart; or with the given edges."""
        if not isinstance(bins, int):
            return cls(low, high, tuple(map(float, bins)), log)
        inner = np.linspace(0, 1, bins + 1)[1:-1]
        if log or (low >= 0 and high - low > _WIDE):
            inner = (np.power(high - low + 1, inner) - 1) / (high - low)
        return cls(low, high, tuple((low + (high - low) * inner).tolist()), log)

    @property
    def width(self) -> int:
        return 2 + len(self.edges)

    def scaled(self, values: Any) -> npt.NDArray[np.float64]:
        """The values on [0, 1]."""
        numbers = np.clip(self._numbers(values), self.low, self.high)
        if self.log:
            return np.log1p(numbers - self.low) / math.log1p(self.high - self.low)
        return (numbers - self.low) / (self.high - self.low)

    def unscaled(self, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The values that `scaled` takes to these numbers of [0, 1]."""
        if self.log:
            return self.low + np.expm1(shares * math.log1p(self.high - self.low))
        return self.low + shares * (self.high - self.low)

    def _numbers(self, values: Any) -> npt.NDArray[np.float64]:
        """A cell that is missing or no number counts as the middle of the bounds: an error would name a record."""
        found, middle = cells(values), (self.low + self.high) / 2
        if found.dtype.kind in "fiub":
            return np.where(np.isnan(found), middle, found).astype(np.float64)
        return np.array([measured(cell, middle) for cell in found.tolist()], np.float64)

    def encode(self, values: Any) -> Features:
        clamped = np.clip(self._numbers(values), self.low, self.high)
        encoded = np.zeros((len(clamped), self.width), np.float32)
        encoded[:, 0] = self.scaled(clamped)
        encoded[np.arange(len(clamped)), 1 + np.searchsorted(self.edges, clamped, side="right")] = 1.0
        return encoded


@final
@dataclass(frozen=True)
class Categories:
    """A column with a public list of values, which are compared by `key`. A value that is not listed has no feature."""

    known: tuple[Any, ...]

    @property
    def width(self) -> int:
        return len(self.known)

    def places(self, values: Any) -> npt.NDArray[np.int64]:
        """The place of each value in the list; -1 for a value that is not listed."""
        place = {key(value): number for number, value in enumerate(self.known)}
        return np.array([place.get(key(cell), -1) for cell in cells(values).tolist()], np.int64)

    def encode(self, values: Any) -> Features:
        places = self.places(values)
        encoded = np.zeros((len(places), self.width), np.float32)
        listed = places >= 0
        encoded[np.flatnonzero(listed), places[listed]] = 1.0
        return encoded


@final
@dataclass(frozen=True)
class Words:
    """A column of free text. The features are those of a public encoder, so no vocabulary is learned from the records.

    encoder  words: counts of words by a fixed hash, of length 1; minilm: the sentence encoder all-MiniLM-L6-v2
    """

    encoder: str

    @property
    def width(self) -> int:
        return ENCODERS[self.encoder]

    def encode(self, values: Any) -> Features:
        from discreet.data.features.texts import encoded  # imports torch

        return encoded(self.encoder, [words(cell) for cell in cells(values).tolist()])


Column = Numbers | Categories | Words


def column(name: str, description: Any) -> Column:
    """One column from its description.

    >>> column("age", {"bounds": [0, 100], "bins": 4}).edges
    (25.0, 50.0, 75.0)
    """
    expected = f"a description of column {name!r}"
    require(isinstance(description, Mapping), expected, f"{description!r}", _FORM)
    keys = set(description)
    if keys == {"categories"}:
        known = tuple(description["categories"])
        remedy = "list every value once: readers of tables take 1, 1.0 and 01 for one number"
        distinct = bool(known) and len(set(map(key, known))) == len(known)
        require(distinct, f"{expected} with distinct categories", known, remedy)
        return Categories(known)
    if keys == {"text"}:
        encoder, remedy = description["text"], "choose one of these"
        require(encoder in ENCODERS, f"{expected} with text of {', '.join(ENCODERS)}", f"{encoder!r}", remedy)
        return Words(encoder)
    if "bounds" in keys and keys <= {"bounds", "bins", "log"}:
        low, high = _pair(expected, description["bounds"])
        bins, log = description.get("bins", BINS), description.get("log", False)
        require(isinstance(log, bool), f"{expected} with log true or false", f"{log!r}", "give one of the two")
        sizes = isinstance(bins, int) and not isinstance(bins, bool) and bins >= 1
        edges = isinstance(bins, (list, tuple)) and list(bins) == sorted(b for b in bins if low < b < high)
        require(sizes or edges, f"{expected} with bins", bins, "give a number of bins, or their inner edges in order")
        return Numbers.of(low, high, bins, log)
    return refuse(expected, f"{description!r}", _FORM)


def _pair(expected: str, bounds: Any) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        refuse(f"{expected} with two bounds", f"{bounds!r}", _FORM)
    require(-math.inf < low < high < math.inf, f"{expected} with bounds low < high", f"{bounds!r}", _FORM)
    return low, high


@final
@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order.

    >>> schema = Schema.of({"age": {"bounds": [0, 100], "bins": 2}, "sex": {"categories": ["f", "m"]}})
    >>> schema.encode({"age": [25.0], "sex": ["m"]}).tolist()
    [[0.25, 1.0, 0.0, 0.0, 1.0]]
    """

    columns: Mapping[str, Column]

    @staticmethod
    def of(description: Any, names: Sequence[str] | None = None) -> "Schema":
        """From a description; `names` are the columns of the table, by default those that are described."""
        remedy = 'pass schema={"age": {"bounds": [18, 90]}, "city": {"categories": ["a", "b"]}}: it must be public'
        is_given = isinstance(description, Mapping) and bool(description)
        require(is_given, "a public description of the columns", f"{description!r}", remedy)
        described = [name for name in description if name != OTHERS]
        names = described if names is None else names
        missing = [name for name in names if name not in description and OTHERS not in description]
        remedy = f"{_FORM}; scales and categories are never learned from the records"
        require(not missing, "a description of every column", f"none of {', '.join(map(str, missing[:3]))}", remedy)
        absent = [name for name in described if name not in names]
        got, remedy = f"no {', '.join(map(str, absent[:3]))}", "pass the table with these columns, or describe it anew"
        require(not absent, f"the columns {', '.join(map(str, described))}", got, remedy)
        return Schema({name: column(name, description.get(name, description.get(OTHERS))) for name in names})

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(one.width for one in self.columns.values())

    def encode(self, table: Mapping[str, Any]) -> Features:
        """The features of each row, [rows, width]."""
        return np.concatenate([one.encode(table[name]) for name, one in self.columns.items()], axis=1)
