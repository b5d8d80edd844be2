"""A public schema: features that depend on one row and on the description alone."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pytest

from discreet import Refused, Schema
from discreet.data.schema import BINS, Categories, Numbers, column


def test_numbers_are_clamped_and_binned() -> None:
    encoded = Numbers.of(0, 10, 5).encode([-3.0, 0.0, 1.9, 2.0, 9.9, 10.0, 1e300])
    assert encoded[:, 0].tolist() == pytest.approx([0, 0, 0.19, 0.2, 0.99, 1, 1])
    assert encoded[:, 1:].argmax(1).tolist() == [0, 0, 0, 1, 4, 4, 4]
    assert (encoded[:, 1:].sum(1) == 1).all()


def test_wide_bounds_get_bins_by_order_of_magnitude() -> None:
    edges = Numbers.of(0, 99_999, 5).edges
    assert [round(math.log10(edge + 1), 6) for edge in edges] == [1, 2, 3, 4]
    assert Numbers.of(0, 1000).edges == tuple(np.linspace(0, 1000, BINS + 1)[1:-1].tolist())
    assert Numbers.of(-5000, 5000).edges[7] == 0.0  # bounds on both sides of zero: bins of one width


def test_categories_that_are_not_listed_have_no_feature() -> None:
    encoded = Categories(("a", "b")).encode(np.array(["b", "c", "a", None], object))
    assert encoded.tolist() == [[0, 1], [0, 0], [1, 0], [0, 0]]


def test_features_of_a_row_do_not_depend_on_other_rows() -> None:
    schema = Schema.of({"age": {"bounds": [0, 100]}, "city": {"categories": ["a", "b"]}})
    drawn = np.random.default_rng(0)
    table = {"age": drawn.uniform(-50, 500, 40), "city": drawn.choice(["a", "b", "c"], 40).astype(object)}
    whole = schema.encode(table)
    for row in range(40):
        alone = schema.encode({name: values[row : row + 1] for name, values in table.items()})
        assert np.array_equal(whole[row : row + 1], alone)
    assert whole.shape == (40, schema.width)
    assert np.abs(whole).max() <= 1  # whatever the values are


def test_one_cell_does_not_change_how_others_are_read() -> None:
    """NumPy gives a list one type: beside a text, True is the text "True" and the category 1 the text "1"."""
    schema = Schema.of({"smoker": {"bounds": [0, 1], "bins": 2}, "code": {"categories": [1, 2]}})
    columns: dict[str, list[Any]] = {"smoker": [True, False], "code": [1, 2]}
    alone = schema.encode(columns)
    beside = schema.encode({name: [*values, "?"] for name, values in columns.items()})
    assert beside[:2].tolist() == alone.tolist()


@pytest.mark.parametrize("known", [[0, 1], [False, True], ["0", "1"]])
@pytest.mark.parametrize("given", [[0, 1], [0.0, 1.0], ["0", "1"], [False, True], ["False", "True"]])
def test_a_category_is_found_whatever_type_a_reader_gives_it(known: list[Any], given: list[Any]) -> None:
    """pandas.read_csv turns a column of numbers into texts if one record has a text there: all others moved."""
    described = column("code", {"categories": known})
    assert described.encode(np.array([*given, "?"], object)).tolist() == [[1, 0], [0, 1], [0, 0]]


READ: dict[str, tuple[list[Any], list[str]]] = {  # as pandas.read_csv gives a column, and as it does beside a text
    "flags": ([True, False], ["TRUE", "FALSE"]),
    "codes": ([2139, 501], ["02139", "00501"]),
    "ratings": ([1.5, 2.0], ["1.50", "2.00"]),
    "powers": ([1000.0, 2000.0], ["1e3", "2e3"]),
    "signs": ([1, 0], ["+1", "-0"]),
    "ids": ([2.0**53 - 1, 2.0**53 - 2], ["9007199254740991", "9007199254740990"]),
    "long ids": ([2**53, 2**53 + 1], ["9007199254740992", "9007199254740993"]),
    "missing": ([None, 1.0], ["nan", "1"]),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("kind", ["bounds", "categories", "words"])
def test_a_cell_has_one_form_whatever_the_cells_beside_it_are(name: str, kind: str) -> None:
    """One odd cell, and a reader of tables gives all other records another type: 5 to 11 clips."""
    typed, written = READ[name]
    descriptions: dict[str, Any] = {"bounds": {"bounds": [0, 3000]}, "words": {"text": "words"}}
    for known in (typed, written):
        described = column("c", descriptions.get(kind, {"categories": known}))
        alone, beside = described.encode(np.array(typed, object)), described.encode(np.array([*written, "?"], object))
        assert np.array_equal(alone, beside[:2])
        assert kind != "categories" or alone.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("description", [{"categories": [2**53, 2**53 + 1]}, {"text": "words"}])
def test_a_float_that_may_have_been_another_whole_number_is_refused(description: Any) -> None:
    """One fraction in a column of ids, and a reader of tables rounds all others: 7 clips."""
    with pytest.raises(Refused, match=r"below 2\^53, got a float above it.*read the column as text"):
        column("id", description).encode([2.0**53, 1.5])
    assert column("id", {"bounds": [0, 1e20]}).encode([2.0**53, 1.5]).shape[0] == 2


@pytest.mark.parametrize("written", ["1,5", "1.500,0", "12 kg"])
def test_a_text_with_digits_that_is_no_number_is_refused(written: str) -> None:
    """A reader that was told of decimal commas gives such texts if one cell of the column is no number."""
    encode = column("income", {"bounds": [0, 9]}).encode
    assert encode(["?", 3.0]).shape[0] == 2
    with pytest.raises(Refused, match="no decimal commas"):
        encode([written, "k.A."])


@pytest.mark.parametrize("description", [{"categories": ["a"]}, {"text": "words"}])
def test_dates_are_refused(description: Any) -> None:
    """Beside a wrong date, readers of tables give texts."""
    with pytest.raises(Refused, match="read dates as text"):
        column("day", description).encode([datetime.datetime(2024, 1, 2)])


def test_a_whole_number_beyond_all_floats_is_clamped() -> None:
    assert Numbers.of(0, 10, 1).scaled(np.array([10**400, -(10**400)], object)).tolist() == [1, 0]


@pytest.mark.parametrize("known", [[1, "1"], ["1.1", "1.10"]])
def test_categories_that_readers_take_for_one_number_are_refused(known: list[Any]) -> None:
    with pytest.raises(Refused, match=r"distinct categories.*take 1, 1\.0 and 01 for one number"):
        column("code", {"categories": known})


def test_a_star_describes_the_rest() -> None:
    schema = Schema.of({"*": {"bounds": [0, 1]}, "x1": {"categories": [3, 4]}}, ["x0", "x1", "x2"])
    assert [type(one) for one in schema.columns.values()] == [Numbers, Categories, Numbers]


BAD: dict[str, tuple[Any, str]] = {
    "nothing": (None, "a public description of the columns"),
    "empty": ({}, "a public description of the columns"),
    "no form": ({"x": {"mean": 3}}, "a description of column 'x'"),
    "no mapping": ({"x": [0, 1]}, "a description of column 'x'"),
    "one bound": ({"x": {"bounds": [3]}}, "with two bounds"),
    "turned bounds": ({"x": {"bounds": [3, 1]}}, "low < high"),
    "no number": ({"x": {"bounds": [0, math.inf]}}, "low < high"),
    "not a number": ({"x": {"bounds": [math.nan, 1]}}, "low < high"),
    "no category": ({"x": {"categories": []}}, "distinct categories"),
    "twice": ({"x": {"categories": ["a", "a"]}}, "distinct categories"),
    "no bins": ({"x": {"bounds": [0, 1], "bins": 0}}, "with bins"),
    "edges outside": ({"x": {"bounds": [0, 1], "bins": [0.5, 2]}}, "with bins"),
    "turned edges": ({"x": {"bounds": [0, 1], "bins": [0.7, 0.5]}}, "with bins"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_descriptions(name: str) -> None:
    description, message = BAD[name]
    with pytest.raises(Refused, match=message):
        Schema.of(description)


def test_columns_that_are_missing_on_either_side() -> None:
    with pytest.raises(Refused, match="never learned from the records"):
        Schema.of({"x": {"bounds": [0, 1]}}, ["x", "y"])
    with pytest.raises(Refused, match="got no y"):
        Schema.of({"x": {"bounds": [0, 1]}, "y": {"bounds": [0, 1]}}, ["x"])


def test_edges_can_be_given() -> None:
    assert column("x", {"bounds": [0, 10], "bins": [1, 5]}) == Numbers(0, 10, (1.0, 5.0))
