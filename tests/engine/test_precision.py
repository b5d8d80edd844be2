"""Sums are made in full precision, whatever the step around them computes in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from discreet.engine.precision import full_precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _precision_comes_back() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("cast", [False, True])
def test_no_product_is_rounded_inside(precision: str, cast: bool) -> None:
    torch.set_float32_matmul_precision(precision)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        with full_precision(CPU):
            assert torch.get_float32_matmul_precision() == "highest"
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
        assert torch.get_float32_matmul_precision() == precision
        assert torch.is_autocast_enabled("cpu") is cast


def test_an_error_inside_leaves_the_settings_of_the_user() -> None:
    torch.set_float32_matmul_precision("medium")
    with pytest.raises(KeyError), full_precision(CPU):
        raise KeyError
    assert torch.get_float32_matmul_precision() == "medium"
