"""Load the drawn records as micro-batches of tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from discreet.engine.trace.capture import replace
from discreet.training.collate import CollateEach, OneByOne

if TYPE_CHECKING:
    from discreet.stages.sampling import Indices


@final
@dataclass(frozen=True)
class MicroBatch:
    """Part of a logical batch. An empty draw gives one micro-batch with `batch=None` and 0 records."""

    batch: Any
    records: int
    is_last: bool


@final
class Loader:
    """Splits each drawn batch into micro-batches of at most `micro_batch` records and loads them."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        micro_batch: int,
        collate_fn: Callable[[list[Any]], Any] | None,
        num_workers: int,
        device: torch.device,
        worker_seed: int,
    ) -> None:
        self._dataset, self._micro_batch, self._device = dataset, micro_batch, device
        self._worker_seed = worker_seed
        self._collate_fn = default_collate if collate_fn is None else CollateEach(collate_fn)
        self._num_workers = num_workers
        self._rows = _Rows.of(dataset) if collate_fn is None and num_workers == 0 else None

    def load(self, drawn: Iterator[Indices], wants_two_sizes: Callable[[], bool] = bool) -> Iterator[MicroBatch]:
        """Yield the micro-batches of each draw, in order.

        wants_two_sizes  whether the next draw is to give micro-batches of two sizes. Workers load ahead, and with them
                         a few draws more are cut in this way
        """

        def cut(indices: Indices) -> Iterator[tuple[Indices, bool]]:
            sizes = sizes_of_pieces(len(indices), self._micro_batch, two=wants_two_sizes())
            start = 0
            for number, size in enumerate(sizes, 1):
                yield indices[start : start + size], number == len(sizes)
                start += size

        if self._num_workers == 0:
            for indices in drawn:
                for part, is_last in cut(indices):
                    yield self._micro(self._take(part) if len(part) else None, len(part), is_last)
            return
        # Workers prefetch, so the sizes of micro-batches wait in a queue until their batch arrives.
        cuts: deque[tuple[int, bool]] = deque()
        seeded = torch.Generator().manual_seed(self._worker_seed)  # otherwise it would use torch's global generator

        def loaded() -> Iterator[list[int]]:  # an empty micro-batch has a size, but no worker loads it
            for indices in drawn:
                for part, is_last in cut(indices):
                    cuts.append((len(part), is_last))
                    if len(part):
                        yield part.tolist()

        data, workers = OneByOne(self._dataset), self._num_workers
        for batch in DataLoader(
            data, batch_sampler=loaded(), num_workers=workers, collate_fn=self._collate_fn, generator=seeded
        ):
            while cuts[0][0] == 0:
                yield self._micro(None, *cuts.popleft())
            yield self._micro(batch, *cuts.popleft())
        while cuts:
            yield self._micro(None, *cuts.popleft())

    def _take(self, indices: Indices) -> Any:
        if self._rows is not None:
            return self._rows.take(torch.from_numpy(indices))
        return self._collate_fn([self._dataset[int(index)] for index in indices])

    def _micro(self, batch: Any, records: int, is_last: bool) -> MicroBatch:
        return MicroBatch(to_device(batch, self._device), records, is_last)


@final
@dataclass(frozen=True, eq=False)
class _Rows:
    """Tensors with a row for each record, which are taken together; `chosen`: the records are some of the rows."""

    tensors: tuple[Tensor, ...]
    chosen: Tensor | None = None

    @classmethod
    def of(cls, dataset: Dataset[Any]) -> _Rows | None:
        """The tensors behind a dataset whose records are rows of them; None for any other dataset."""
        if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
            chosen = torch.as_tensor(dataset.indices, dtype=torch.long)
            return cls(dataset.dataset.tensors, chosen % max(len(dataset.dataset), 1))  # -1 is the last record
        return cls(dataset.tensors) if type(dataset) is TensorDataset else None

    def take(self, rows: Tensor) -> tuple[Tensor, ...]:
        rows = rows if self.chosen is None else self.chosen.index_select(0, rows)
        return tuple(tensor.index_select(0, rows) for tensor in self.tensors)  # three times as fast as tensor[rows]


def to_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors of a nested structure to a device."""
    return replace(batch, lambda tensor: tensor.to(device))


def sizes_of_pieces(records: int, largest: int, *, two: bool) -> list[int]:
    """The sizes of the micro-batches of a draw; with `two`, of two sizes, each of them twice where that is possible.

    Losses that depend on the number of records show it by a second number of records, before anything is released.

    >>> sizes_of_pieces(12, 5, two=False), sizes_of_pieces(12, 12, two=True), sizes_of_pieces(12, 3, two=True)
    ([5, 5, 2], [3, 2, 2, 3, 2], [3, 2, 2, 3, 2])
    >>> [sizes_of_pieces(records, 9, two=True) for records in range(7)]
    [[0], [1], [2], [2, 1], [2, 1, 1], [2, 1, 2], [2, 1, 1, 2]]
    """
    sizes: list[int] = []
    if two and records >= 3 and largest >= 2:
        less = min((records - 2) // 4, largest - 1)  # neighbours have no common factor
        sizes = [less + 1, less, less, less + 1] if less > 0 else [2, 1]
    left = records - sum(sizes)
    if left or not sizes:
        sizes += [min(largest, left - start) for start in range(0, max(left, 1), largest)]
    return sizes


def pieces_of(batch: Any, records: int) -> list[tuple[Any, int]]:
    """A batch in pieces of two sizes; whole if it holds anything but tensors with one row for each record."""
    if not is_cuttable(batch, records):
        return [(batch, records)]
    sizes = sizes_of_pieces(records, records, two=True)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        (replace(batch, lambda tensor, start=start, size=size: tensor.narrow(0, start, size).clone()), size)  # type: ignore[misc]
        for start, size in zip(starts, sizes, strict=True)
    ]


def is_cuttable(batch: Any, records: int) -> bool:
    """Whether a batch can be given in pieces of two sizes."""
    return len(sizes_of_pieces(records, records, two=True)) > 1 and _is_rows(batch, records)


def _is_rows(batch: Any, records: int) -> bool:
    if isinstance(batch, Tensor):
        return batch.dim() > 0 and batch.shape[0] == records
    if isinstance(batch, (dict, tuple, list)):
        return all(_is_rows(part, records) for part in (batch.values() if isinstance(batch, dict) else batch))
    return batch is None
