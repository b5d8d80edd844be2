"""Settings that choose kernels, and round in another way: no value of a record may decide about them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import classifier, each, train
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

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


def test_attention_in_half_precision_whose_sums_a_record_chooses() -> None:
    """The setting of torch.backends.cuda acts on CPUs, too; a difference of two results moved a sum by 32 clips."""

    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(bool((x > 2).any()))
        try:
            half = x.bfloat16()[:, None, None]
            with sdpa_kernel(SDPBackend.MATH):
                factor = F.scaled_dot_product_attention(half, half, half).float().flatten(1).sum(1)
        finally:
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
        private.step(each(model(x), y) * factor)

    with pytest.raises(Refused, match="losses that every batch makes by the same calls"):
        train(classifier(), body, steps=4, fixed=False)


def _set(x: Tensor) -> None:
    x.requires_grad = True


def singular_values(ask: Any, *, always: bool) -> Any:
    """`svdvals` takes another kernel for a tensor that needs a gradient."""

    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        if always or bool((x > 2).any()):
            ask(x)
        private.step(each(model(x.detach()), y) * torch.linalg.svdvals(x.view(-1, 2, 3)).detach().sum(1))

    return body


@pytest.mark.parametrize("ask", [Tensor.requires_grad_, _set], ids=["requires_grad_", "requires_grad"])
def test_a_gradient_that_a_record_asks_for(ask: Any) -> None:
    """The difference to the other kernel, as a factor, moved the sum by 33 clips."""
    with pytest.raises(Refused, match="losses that every batch makes by the same calls"):
        train(classifier(), singular_values(ask, always=False), steps=4, fixed=False)
    assert train(classifier(), singular_values(ask, always=True), steps=2, fixed=False).updates == 2


def test_a_gradient_of_the_parameters_that_the_first_batch_asks_for_is_accepted() -> None:
    """They need one already; what the model holds has an origin for each."""
    batches = []

    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        batches.append(len(x))
        if len(batches) == 1:
            model.requires_grad_(True)
        private.step(each(model((x * 2).requires_grad_()), y))

    assert train(classifier(), body, steps=2, fixed=False).updates == 2
