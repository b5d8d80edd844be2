"""Validators: what they let through, what they refuse, and the one style of their messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.core import check
from discreet.core.check import Refused

REMEDY = "use another value"
STYLE = r"^Expected .+, got .+\. Remedy: .+[^.]\.$"
Validator = Callable[..., None]

# Each validator with values that it takes and values that it refuses.
TABLE: list[tuple[Validator, list[Any], list[Any]]] = [
    (check.positive, [1, 0.5, 5e-324, 1e308], [0, -0.0, -1, math.inf]),
    (check.not_negative, [0, -0.0, 0.0, 3, 1e308], [-5e-324, -1, math.inf, -math.inf]),
    (check.fraction, [1, 1.0, 0.5, 5e-324], [0, -0.1, 1 + 2**-52, math.inf]),
    (check.inside_unit, [0.5, 5e-324, 1 - 2**-53], [0, 1, 1.0, -0.1, math.inf]),
    (check.count, [1, 7, 10**30, np.int64(3)], [0, -1, 1.0, math.inf, np.float64(2)]),
]
NOT_NUMBERS: list[Any] = [True, False, None, "1", math.nan, [1], 1j, np.array([1.0, 2.0])]


@pytest.mark.parametrize(("validator", "good"), [(v, value) for v, goods, _ in TABLE for value in goods])
def test_good_values_pass(validator: Validator, good: Any) -> None:
    validator(REMEDY, clip=good)


@pytest.mark.parametrize(("validator", "bad"), [(v, value) for v, _, bads in TABLE for value in (*bads, *NOT_NUMBERS)])
def test_bad_values_are_refused_with_name_value_and_remedy(validator: Validator, bad: Any) -> None:
    with pytest.raises(Refused, match=STYLE) as caught:
        validator(REMEDY, clip=bad)
    message = str(caught.value)
    assert message.startswith("Expected clip ")
    assert f"got clip={bad!r}" in message
    assert message.endswith(f"Remedy: {REMEDY}.")


@pytest.mark.parametrize("validator", [row[0] for row in TABLE])
def test_every_named_value_is_checked_and_the_bad_one_is_named(validator: Validator) -> None:
    good = {check.inside_unit: 0.5}.get(validator, 1)
    validator(REMEDY)
    with pytest.raises(Refused, match="Expected second"):
        validator(REMEDY, first=good, second=-1, third=good)


def test_the_name_of_a_value_may_be_any_word() -> None:
    with pytest.raises(Refused, match="Expected remedy > 0"):
        check.positive(REMEDY, remedy=-1)


@given(least=st.integers(-5, 5), value=st.integers(-10, 10))
def test_count_holds_its_lower_bound(least: int, value: int) -> None:
    if value >= least:
        check.count(REMEDY, least=least, steps=value)
    else:
        with pytest.raises(Refused, match=f"whole number >= {least}"):
            check.count(REMEDY, least=least, steps=value)


@given(value=st.floats())
def test_the_intervals_nest(value: float) -> None:
    def takes(validator: Validator) -> bool:
        try:
            validator(REMEDY, value=value)
        except Refused:
            return False
        return True

    assert takes(check.positive) == (0 < value < math.inf)
    assert takes(check.not_negative) == (0 <= value < math.inf)
    assert takes(check.fraction) == (0 < value <= 1)
    assert takes(check.inside_unit) == (0 < value < 1)


def test_refuse_and_require() -> None:
    with pytest.raises(Refused, match=r"^Expected a, got b\. Remedy: c\.$"):
        check.refuse("a", "b", "c")
    with pytest.raises(Refused, match=r"Remedy: c\.$"):
        check.refuse("a", "b", "c.")  # one full stop, whoever wrote it
    check.require(True, "a", "b", "c")
    with pytest.raises(Refused):
        check.require(False, "a", "b", "c")


def test_a_refusal_is_a_value_error() -> None:
    assert issubclass(Refused, ValueError)
