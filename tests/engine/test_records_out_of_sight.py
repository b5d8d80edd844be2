"""Tensors that nothing in the code of a dataset names are private once a record is a view of them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch import Tensor
from torch.utils.data import Dataset

import loop
from discreet.core.check import Refused


class FromOutOfSight(Dataset[tuple[Tensor, Tensor]]):
    """Its records are views of tensors that nothing in its code names."""

    def __len__(self) -> int:
        return loop.RECORDS

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return sys._getframe().f_globals["HIDDEN"][index], loop.data()[index][1]


HIDDEN: Any = None


@pytest.mark.parametrize("by_array", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_record_is_a_view_of_is_not_public(
    by_array: bool, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = loop.data().tensors[0].clone()
    monkeypatch.setattr(f"{__name__}.HIDDEN", table.numpy() if by_array else table)
    with pytest.raises(Refused, match="each record stands alone"):
        loop.train_with(FromOutOfSight(), lambda rows: rows - table.mean(0), num_workers=num_workers)
