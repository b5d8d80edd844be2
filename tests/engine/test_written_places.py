"""Public values that are written into a tensor beside values of the records: they may not tell the places apart.

The attacks were accepted once. Signs by the place turn all later gradients around when one record is left out.

And writes that torch does not count for all tensors of a memory: what they left there was not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from threading import Thread
from typing import Any

import pytest
import torch
from steps import each, train
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack, to_dlpack

from discreet.core.check import Refused
from discreet.engine.record_watch import RecordWatch
from discreet.engine.trace.capture import RecordAxis

Make = Callable[[Tensor], Tensor]


def signs(x: Tensor) -> Tensor:
    return 1.0 - 2.0 * (torch.arange(len(x)) % 2)


def column_of_new_memory(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 2)
    made[:, 0], made[:, 1] = signs(x), x[:, 0]
    return made[:, 0]


def every_other_row(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 2)
    made[::2, 0], made[1::2, 0], made[:, 1] = 1.0, -1.0, x[:, 0]
    return made[:, 0]


def views_of_zeros(x: Tensor) -> Tensor:
    made = torch.zeros(len(x), 2)
    one, other = made.unbind(1)
    one.copy_(signs(x))
    other.copy_(x[:, 0])
    return made.sum(1)


def views_of_zeros_the_other_way_round(x: Tensor) -> Tensor:
    made = torch.zeros(len(x), 2)
    one, other = made[:, 0], made[:, 1]
    other.copy_(x[:, 0])
    one.copy_(signs(x))
    return made.sum(1)


def rows_that_overlap(x: Tensor) -> Tensor:
    made = torch.empty(2 * len(x)).unfold(0, 2, 1)[: len(x)]
    made.copy_(x[:, :2])
    return made.sum(1)


ATTACKS = (
    *(column_of_new_memory, every_other_row, views_of_zeros, views_of_zeros_the_other_way_round),
    rows_that_overlap,
)


def weighted_by(make: Make) -> Any:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) * make(x))

    return body


@pytest.mark.parametrize("make", ATTACKS, ids=lambda make: make.__name__)
def test_writes_by_place_are_refused(make: Make) -> None:
    with pytest.raises(Refused, match="each record stands alone"):
        train(body=weighted_by(make), steps=2)


def constant_column(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 2)
    made[:, 0], made[:, 1] = 1.0, x[:, 0]
    return made.sum(1)


def constant_row(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 3)
    made[:, :2], made[:, 2] = torch.tensor([1.0, 2.0]), x[:, 0]
    return made.sum(1)


def constant_view_of_zeros(x: Tensor) -> Tensor:
    made = torch.zeros(len(x), 2)
    made[:, 1].copy_(x[:, 0])
    made[:, 0].fill_(2.0)
    return made.sum(1)


def drawn_column(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 2)
    made[:, 0], made[:, 1] = torch.rand(len(x)), x[:, 0]
    return made.sum(1)


INNOCENT = constant_column, constant_row, constant_view_of_zeros, drawn_column


@pytest.mark.parametrize("make", INNOCENT, ids=lambda make: make.__name__)
def test_writes_that_are_alike_for_all_records_are_accepted(make: Make) -> None:
    assert train(body=weighted_by(make), steps=2).updates == 2


def out_of_sight(write: Callable[[], object]) -> None:
    """Threads are not watched."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()


def after_a_view(x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    hidden[:, :3].mul_(1.0)
    if late:
        out_of_sight(lambda: hidden.copy_(hidden.flip(0)))
    return hidden.relu()


def between_views(x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    left, right = hidden[:, :3], hidden[:, 3:]
    left.mul_(1.0)
    if late:
        out_of_sight(lambda: hidden.copy_(hidden.flip(0)))
    right.mul_(1.0)
    return hidden.relu()


def in_new_memory(x: Tensor, late: bool) -> Tensor:
    made = torch.empty(len(x), 6)
    made[:] = x
    if late:
        out_of_sight(lambda: made.copy_(x.flip(0)))
    return made.relu()


def between_slices_of_new_memory(x: Tensor, late: bool) -> Tensor:
    made = torch.empty(len(x), 6)
    made[:, :3] = x[:, :3]
    if late:
        out_of_sight(lambda: made.copy_(x.flip(0)))
    made[:, 3:] = x[:, :3]
    return made.relu()


@pytest.mark.parametrize("make", [after_a_view, between_views, in_new_memory, between_slices_of_new_memory])
def test_a_write_out_of_sight_beside_one_that_is_seen(make: Callable[[Tensor, bool], Tensor]) -> None:
    """All but the second of these were accepted once: a seen write accounted for those that were not seen."""
    for late in (False, True):
        with closing(RecordWatch(nn.Linear(6, 6))) as watch:
            x = torch.randn(7, 6)
            watch.open([(x, RecordAxis(0))], 7)
            with pytest.raises(Refused) if late else nullcontext():
                watch.finish(make(x, late).sum(1))


def column_added(x: Tensor) -> Tensor:
    hidden = x * 2
    hidden[:, :2] += 1
    hidden[:, 2:4] *= hidden[:, :2]
    return hidden


def views_added(x: Tensor) -> Tensor:
    hidden = x * 2
    left, right = hidden.chunk(2, 1)
    right += left
    left.copy_(right)
    return hidden + left.repeat(1, 2)


def turned(x: Tensor) -> Tensor:
    hidden = (x * 2)[:, : len(x)]
    hidden += hidden.t()
    return hidden


def shifted(x: Tensor) -> Tensor:
    hidden = x * 2
    hidden[1:] += hidden[:-1].clone()
    return hidden


def flat(x: Tensor) -> Tensor:
    hidden = x * 2
    entries = hidden.view(-1)
    entries += entries.flip(0)
    return hidden


@pytest.mark.parametrize("make", [column_added, views_added, turned, shifted, flat])
def test_views_of_one_memory_in_one_call(make: Make) -> None:
    """A write through one view is none to another argument in the same memory; records still may not meet there."""
    with closing(RecordWatch(nn.Linear(6, 6))) as watch:
        for records in (6, 4, 6):
            x = torch.randn(records, 6)
            watch.open([(x, RecordAxis(0))], records)
            with nullcontext() if make in (column_added, views_added) else pytest.raises((Refused, RuntimeError)):
                watch.finish(make(x).sum(1))


# Writes that torch counts apart -------------------------------------------------------------------------------


def through_a_sparse_tensor(x: Tensor) -> Tensor:
    largest = torch.zeros(6)
    whole = torch.sparse_coo_tensor(torch.arange(6)[None], largest, (6,), is_coalesced=True)
    whole.values().copy_(x.abs().amax(0))
    return x / (1 + largest)


def through_compressed_rows(x: Tensor) -> Tensor:
    largest = torch.zeros(6)
    whole = torch.sparse_csr_tensor(torch.tensor([0, 6]), torch.arange(6), largest, (1, 6))
    whole.values().copy_(x.abs().amax(0))
    return x / (1 + largest)


def through_a_capsule(x: Tensor) -> Tensor:
    whole = from_dlpack(to_dlpack(x))
    whole.div_(whole.abs().max())
    return x


def through_a_capsule_of_a_part(x: Tensor) -> Tensor:
    part = from_dlpack(to_dlpack(x[:, 2:]))
    part.div_(part.abs().max())
    return x


def behind_a_watched_write(x: Tensor) -> Tensor:
    x.view(-1).mul_(1.0)
    unwatched = Thread(target=lambda: x.div_(x.abs().max()))
    unwatched.start()
    unwatched.join()
    return x


APART = (through_a_sparse_tensor, through_compressed_rows, through_a_capsule, through_a_capsule_of_a_part)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("make", [*APART, behind_a_watched_write], ids=lambda make: make.__name__)
def test_writes_that_torch_counts_apart_are_refused(make: Make) -> None:
    """One record moved the sum by 2 clips."""

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(make(x)), y))

    with pytest.raises(Refused, match="a tensor that no watched call made"):
        train(body=body, steps=2)


def scaled_later(x: Tensor) -> None:
    whole = from_dlpack(to_dlpack(x))
    whole.div_(whole.abs().max())


def scaled_later_through_a_sparse_tensor(x: Tensor) -> None:
    flat = torch.Tensor(x).view(-1)
    ends, columns = torch.tensor([0, flat.numel()]), torch.arange(flat.numel())
    whole = torch.sparse_csr_tensor(ends, columns, flat, (1, flat.numel()))
    whole.values().mul_(1e-3)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("write", [scaled_later, scaled_later_through_a_sparse_tensor])
def test_writes_behind_the_forward_pass(write: Callable[[Tensor], None]) -> None:
    """The gradient of a weight reads its inputs again, and autograd has not counted the write."""

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        write(x)
        private.step(losses)

    with pytest.raises(Refused, match="memory that was written to"):
        train(body=body, steps=2)


def test_a_capsule_that_nobody_writes_to_is_accepted() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        x = x * 2
        from_dlpack(to_dlpack(x)).sum()
        x.add_(1.0)
        private.step(each(model(x), y))

    assert train(body=body, steps=2).progress.step == 2
