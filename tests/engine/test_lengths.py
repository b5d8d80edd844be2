"""Norms of rows and ranges of short vectors, by compiled code and by torch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discreet.engine.factors import lengths
from discreet.engine.factors.lengths import are_finite, are_products_above, is_within, root_of_squares, row_norms

SINGLE, DOUBLE = torch.float32, torch.float64
ROUNDING = 2**-17  # what the guarantee allows a contribution to exceed its norm by


@pytest.fixture(params=["compiled", "torch"])
def measured_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are measured by compiled code, or by torch as where no compiler is."""
    if request.param == "torch":
        monkeypatch.setattr(lengths, "compiled", None)
    elif lengths.compiled is None:
        pytest.skip("the installation found no compiler")


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("columns", [3, 300])
def test_row_norms_neither_overflow_nor_vanish(measured_by: None, columns: int, dtype: torch.dtype) -> None:
    sizes = [1e-44, 1e-38, 1e-30, 1e-20, 1.0, 1e20, 1e30, 3e38]
    if dtype == DOUBLE:
        sizes += [1e-320, 1e-300, 1e-170, 1e170, 1e300]
    rows = torch.tensor(sizes, dtype=dtype).unsqueeze(1) * torch.ones(columns, dtype=dtype)
    expected = rows[:, 0].double() * math.sqrt(columns)
    found = row_norms(rows)
    assert bool(((found - expected).abs() <= expected * ROUNDING + 1e-320).all())


ODD = [0.0, -0.0, 5e-324, 1e-308, 0.5, 1.0, 3.4e38, 1e300, math.inf, math.nan, -1.0]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("odd", ODD)
def test_ranges_of_short_vectors(measured_by: None, odd: float, dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, odd, 2.0], dtype=dtype)
    assert is_within(values, 1e-30, 1e30) == bool(1e-30 <= float(values[1]) <= 1e30)
    assert are_finite(values) == (math.isfinite(values[1]) and float(values[1]) >= 0)
    assert is_within(values[:0], 1.0, 2.0)
    assert is_within(torch.stack([values, values])[:, 0], 1.0, 1.0)  # not side by side in memory


@given(st.lists(st.tuples(*[st.sampled_from([*ODD, 2.0**-60, 2.0**-61, 2.0**-30, 1e-12])] * 3), min_size=1))
def test_whether_products_are_large_enough(triples: list[tuple[float, float, float]]) -> None:
    weights, left, right = torch.tensor(triples, dtype=DOUBLE).abs().unbind(1)
    found = are_products_above(weights, left, right, 2.0**-60)
    scaled = torch.minimum(left, right) * weights.clamp(max=1)
    assert found == bool((scaled >= 2.0**-60).all())
    if bool((single := weights.to(SINGLE)).eq(weights).all()):
        assert are_products_above(single, left, right, 2.0**-60) == found


@given(st.lists(st.lists(st.sampled_from([abs(one) for one in ODD]), min_size=4, max_size=4), min_size=1, max_size=5))
def test_roots_of_squares_of_several_vectors(rows: list[list[float]]) -> None:
    vectors = [torch.tensor(row, dtype=DOUBLE) for row in rows]
    found = root_of_squares(vectors)
    for n, root in enumerate(found.tolist()):
        squares = [float(vector[n]) for vector in vectors]
        truth = math.hypot(*squares)
        if math.isfinite(truth):
            assert root == pytest.approx(truth, rel=1e-14, abs=1e-307)
        else:
            assert not math.isfinite(root)


def test_rows_that_are_not_finite_have_norms_that_are_not(measured_by: None) -> None:
    rows = torch.zeros(4, 200)
    rows[0, 5], rows[1, 199], rows[2, 0] = math.nan, math.inf, -math.inf
    assert row_norms(rows).isfinite().tolist() == [False, False, False, True]


def test_rows_that_are_measured_again_keep_their_places(measured_by: None) -> None:
    huge, tiny = 1e30, 1e-40
    rows = torch.zeros(7, 300)
    rows[1], rows[2, 5], rows[4], rows[5, 7], rows[6, 0] = 3.0, huge, -tiny, math.nan, -math.inf
    norms = row_norms(rows)
    expected = [0.0, 3.0 * 300**0.5, huge, 0.0, float(rows[4, 0].abs()) * 300**0.5]
    torch.testing.assert_close(norms[:5], torch.tensor(expected, dtype=DOUBLE), rtol=1e-6, atol=0.0)
    assert not norms[5:].isfinite().any()


def test_small_squares_are_not_lost_beside_large_ones(measured_by: None) -> None:
    """A million entries of 2^-13 behind some of 1: a running float32 sum never sees them."""
    row = torch.full((1, 1 << 20), 2.0**-12.6)
    row[0, :512] = 1.0
    truth = float(row.double().norm())
    assert float(row_norms(row)) == pytest.approx(truth, rel=ROUNDING)
    plain = float(torch.linalg.vector_norm(row, dim=1))
    assert plain < truth * (1 - 1e-5)  # the plain norm is too small by more than the guarantee allows


def test_vectors_that_compiled_code_cannot_read_are_left_to_torch() -> None:
    """It gets addresses: another type or another length would be read beyond the end."""
    three, single = torch.tensor([3.0, 3.0], dtype=DOUBLE), torch.tensor([4.0, 4.0])
    assert root_of_squares([three, single]).tolist() == [5.0, 5.0]
    with pytest.raises(RuntimeError, match="size"):
        root_of_squares([three, three[:1]])
    assert are_products_above(single, three, three[:1], 1.0)  # spread over the records
    assert not are_products_above(single, three, 0 * three[:1], 1.0)
