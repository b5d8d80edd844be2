"""From indices to micro-batches, in this process and in workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from discreet.core.secret_draws import SecretDraws
from discreet.core.streams import Streams
from discreet.training.draws import Draw
from discreet.training.loader import Loader, MicroBatch, settled, to_device
from discreet.training.rehearsal import Rehearsals, VacantRows

DRAWS = [[], [4, 1], [0, 1, 2, 3, 5, 7, 8], [], [], [6], [9, 2, 3], []]


class Rows(Dataset[Any]):
    """A map-style dataset that is not made of tensors."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        x = torch.full((2,), float(index))
        return (x, index) if self._kind == "tuple" else {"x": x, "inner": {"y": index}}


def loader(data: Dataset[Any], *, micro_batch: int = 3, workers: int = 0, collate: Any = None) -> Loader:
    return Loader(
        data,
        SecretDraws(Streams.seeded(1).draws),
        VacantRows(Rehearsals((3,))),
        micro_batch=micro_batch,
        collate_fn=collate,
        num_workers=workers,
        device=torch.device("cpu"),
    )


def loaded(which: Loader, draws: Any = DRAWS) -> list[MicroBatch]:
    def indices() -> Iterator[Any]:
        for draw in draws:
            yield np.array(draw, dtype=np.int64)

    return list(which.load(map(Draw, indices())))


def shape_of(micros: list[MicroBatch]) -> list[tuple[int, bool]]:
    return [(micro.records, micro.is_last) for micro in micros]


def test_a_subset_of_tensors_gives_the_rows_that_it_names() -> None:
    x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10)
    part = Subset(TensorDataset(x, y), [7, 0, -1, 7])
    taken = loaded(loader(part, micro_batch=4), [[3, 1, 2]])[0].batch
    expected = default_collate([part[3], part[1], part[2]])
    assert all(torch.equal(one, other) for one, other in zip(taken, expected, strict=True))
    assert taken[1].tolist() == [7, 0, 9]


def test_a_subset_of_a_subset_gives_rows_without_asking_for_single_records(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Subset(TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10)), [9, -2, 4, 0])
    outer = Subset(inner, [2, -1, 1])
    expected = default_collate([outer[0], outer[2], outer[1]])
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda *_: pytest.fail("one record at a time"))
    taken = loaded(loader(outer, micro_batch=4), [[0, 2, 1]])[0].batch
    assert all(torch.equal(one, other) for one, other in zip(taken, expected, strict=True))
    assert taken[1].tolist() == [4, 8, 0]


def test_draws_are_cut_and_empty_ones_are_kept() -> None:
    plain = TensorDataset(torch.arange(10.0))
    cuts = [(0, True), (2, True), (3, False), (3, False), (1, True), (0, True), (0, True), (1, True), (3, True)]
    assert shape_of(loaded(loader(plain))) == [*cuts, (0, True)]
    assert len(loaded(loader(plain, micro_batch=100))) == len(DRAWS)


def test_micro_batches_hold_the_drawn_records_in_order() -> None:
    plain = TensorDataset(torch.arange(10.0), torch.arange(10) * 10)
    micros = loaded(loader(plain))
    drawn = [index for draw in DRAWS for index in draw]
    assert torch.cat([m.batch[0] for m in micros if m.records]).tolist() == drawn
    assert torch.cat([m.batch[1] for m in micros if m.records]).tolist() == [10 * i for i in drawn]
    assert all(m.batch is None for m in micros if not m.records)


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_workers_give_what_this_process_gives(kind: str) -> None:
    here, there = loaded(loader(Rows(kind))), loaded(loader(Rows(kind), workers=2))
    assert shape_of(here) == shape_of(there)
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one.batch, other.batch) if one.batch is not None else None
        assert (one.batch is None) == (other.batch is None)


def test_workers_with_nothing_but_empty_draws() -> None:
    assert shape_of(loaded(loader(Rows("tuple"), workers=1), [[], [], []])) == [(0, True)] * 3


def test_a_collate_function_is_used() -> None:
    def stacked(rows: list[Any]) -> Tensor:
        return torch.stack([x for x, _ in rows])

    assert [m.batch.shape for m in loaded(loader(Rows("tuple"), collate=stacked), [[1, 2]])] == [(2, 2)]


class OneBuffer(Dataset[Any]):
    """A dataset that writes every record to one tensor."""

    def __init__(self) -> None:
        self._row = torch.zeros(2)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Tensor:
        return self._row.fill_(float(index))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_buffer_that_a_dataset_uses_again_holds_no_other_record(workers: int) -> None:
    """All rows were those of the last record, which moved the sum by 15 clips."""
    (micro,) = loaded(loader(OneBuffer(), workers=workers), [[1, 2, 4]])
    assert micro.batch[:, 0].tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_own_generator_is_not_touched(workers: int) -> None:
    before = torch.get_rng_state()
    loaded(loader(Rows("tuple"), workers=workers), [[1], [2, 3]])
    assert torch.equal(torch.get_rng_state(), before)
    # The control: a plain DataLoader does draw from it.
    list(torch.utils.data.DataLoader(Rows("tuple"), collate_fn=default_collate))
    assert not torch.equal(torch.get_rng_state(), before)


def test_structures_move_whole() -> None:
    batch = {"x": torch.zeros(2), "inner": [torch.zeros(1), ("name", 3)]}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"].device.type == moved["inner"][0].device.type == "meta"
    assert moved["inner"][1] == ("name", 3)


def test_a_subclass_of_tensor_dataset_is_asked_for_its_records() -> None:
    class Clamped(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            return tuple(tensor.clamp(max=2) for tensor in super().__getitem__(index))

    micros = loaded(loader(Clamped(torch.arange(10.0))), [[1, 5, 9]])
    assert micros[0].batch[0].tolist() == [1.0, 2.0, 2.0]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["tuple", "dictionary"])
def test_vacant_rows_hold_made_up_records(kind: str, workers: int) -> None:
    """Record 0 stands in for them while a batch is loaded, and nothing of it is left."""
    vacant = np.array([False, True, False, True, True, True])
    laid = Draw(np.array([4, 0, 7, 0, 0, 0]), vacant=vacant)
    first, second = loader(Rows(kind), workers=workers).load(iter([laid]))
    assert [micro.vacant.tolist() for micro in (first, second) if micro.vacant is not None] == [[0, 1, 0], [1, 1, 1]]
    assert (first.records, second.records, first.is_last, second.is_last) == (3, 3, False, True)
    for micro, kept in ((first, [4, None, 7]), (second, [None] * 3)):
        x, y = micro.batch if kind == "tuple" else (micro.batch["x"], micro.batch["inner"]["y"])
        for row, (record, label) in enumerate(zip(kept, y.tolist(), strict=True)):
            assert label == (1 if record is None else record)
            made_up = bool(((x[row] > 0) & (x[row] < 1)).all())
            assert made_up if record is None else bool((x[row] == record).all())


def test_an_axis_of_one_entry_has_the_stride_of_its_place() -> None:
    """`is_contiguous` does not look at it, kernels of convolutions do."""
    grey = torch.arange(50.0).view(2, 1, 5, 5).to(memory_format=torch.channels_last)
    assert grey.is_contiguous()
    assert settled(grey).stride() == (25, 25, 5, 1)
    assert torch.equal(settled(grey), grey)
    conjugate = torch.randn(2, 3, dtype=torch.complex64).conj()
    assert not settled(conjugate).is_conj()
