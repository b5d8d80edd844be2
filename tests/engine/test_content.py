"""Digests of tensors that processes compare: every bit and the order count, the layout does not."""

from __future__ import annotations

import pytest
import torch

from discreet.engine.model.content import content_of


@pytest.mark.parametrize("size", [(3,), (400, 251), (401, 502)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64])
def test_values_and_their_order_count(size: tuple[int, ...], dtype: torch.dtype) -> None:
    values = (torch.randn(size, generator=torch.Generator().manual_seed(1)) * 100).to(dtype)
    one, middle = values.clone(), values.numel() // 2
    one.view(-1)[middle] += 1
    rows = values.roll(1, 0)
    assert len({content_of(other) for other in (values, one, rows, -values, values.flip(-1))}) == 5


def test_the_layout_and_the_place_in_memory_do_not_count() -> None:
    values = torch.randn(5, 901)
    memory = torch.cat([torch.zeros(1), values.reshape(-1)])
    copies = values.clone(), values.t().contiguous().t(), memory[1:].view(5, 901)
    assert {content_of(copy) for copy in copies} == {content_of(values)}
    turned = torch.randn(5000, dtype=torch.complex64).conj()
    assert content_of(turned) == content_of(turned.resolve_conj())


def test_empty_repeated_and_sparse_tensors_have_a_digest() -> None:
    assert content_of(torch.ones(0)) == content_of(torch.zeros(0))
    assert content_of(torch.ones(3, 1).expand(3, 900)) == content_of(torch.ones(3, 900))
    assert content_of(torch.eye(3).to_sparse()) == 0
