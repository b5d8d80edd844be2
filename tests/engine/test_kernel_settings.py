"""Settings that choose kernels, and round in another way: no value of a record may decide about them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import classifier, each, train
from torch import Tensor, nn

from discreet import Private
from discreet.core.check import Refused

KERNEL = torch.linspace(-1, 1, 8 * 8 * 9).view(8, 8, 3, 3)


def rounded(x: Tensor, *, is_other: bool) -> Tensor:
    """For each record, a convolution; by other kernels, its last digits differ."""
    images = (x[:, :1] * 0 + torch.linspace(0.1, 1, 8 * 64)).view(-1, 8, 8, 8)
    torch._C._set_mkldnn_enabled(not is_other)
    try:
        return F.conv2d(images, KERNEL).flatten(1).sum(1)
    finally:
        torch._C._set_mkldnn_enabled(True)


def test_kernels_that_a_record_chooses_are_refused() -> None:
    """With the difference times 1e6 as a factor, one record moved the gradients of all others."""

    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        factor = rounded(x, is_other=False) - rounded(x, is_other=bool((x > 2).any()))
        private.step(each(model(x), y) * (1 + 1e6 * factor))

    with pytest.raises(Refused, match="losses that every batch makes by the same calls"):
        train(classifier(), body, steps=4, fixed=False)


def test_kernels_that_all_batches_choose_are_accepted() -> None:
    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) * rounded(x, is_other=True))

    assert train(classifier(), body, steps=2, fixed=False).updates == 2


A, B, C = (torch.randn(*sizes, generator=torch.Generator().manual_seed(1)) for sizes in ((40, 30), (30, 50), (50, 3)))


def by_einsum(*, is_other: bool) -> Tensor:
    with torch.backends.opt_einsum.flags(enabled=not is_other):
        return torch.einsum("ab,bc,cd->ad", A, B, C)


@pytest.mark.skipif(not torch.backends.opt_einsum.is_available(), reason="opt_einsum is not installed")
@pytest.mark.parametrize("chooses", [True, False])
def test_the_order_of_products_in_einsum_that_a_record_chooses_is_refused(chooses: bool) -> None:
    """It moved the sum by 5.7 clips. If all batches take one order, it is accepted."""

    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        is_other = not chooses or (not private.is_rehearsal and bool((x > 2).any()))
        factor = (by_einsum(is_other=is_other) - by_einsum(is_other=False)).abs().amax()
        private.step(each(model(x), y) * (1 + 1e6 * factor))

    if chooses:
        with pytest.raises(Refused, match="losses that every batch makes by the same calls"):
            train(classifier(), body, steps=4, fixed=False)
    else:
        assert train(classifier(), body, steps=4, fixed=False).updates == 4


def by_the_precision_of_a_backend() -> None:
    torch.backends.mkldnn.conv.fp32_precision = "bf16"  # type: ignore[attr-defined]


def by_the_attribute() -> None:
    torch.backends.opt_einsum.enabled = False  # type: ignore[misc]


@pytest.mark.parametrize("change", [by_the_precision_of_a_backend, by_the_attribute])
def test_settings_that_change_between_two_steps_are_refused(change: Any) -> None:
    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        if private.step(each(model(x), y)):
            change()

    try:
        with pytest.raises(Refused, match=r"other settings at private\.step"):
            train(classifier(), body, steps=2, fixed=False)
    finally:
        torch.backends.mkldnn.conv.fp32_precision = "none"  # type: ignore[attr-defined]
        vars(torch.backends.opt_einsum).pop("enabled", None)


def test_kernels_of_the_backward_pass() -> None:
    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        before: Any = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            private.step(losses)
        finally:
            torch.set_float32_matmul_precision(before)

    with pytest.raises(Refused, match=r"other settings at private\.step"):
        train(classifier(), body, steps=1, fixed=False)
