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
