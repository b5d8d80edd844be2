"""Load the drawn records as micro-batches of tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

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
        self._collate_fn, self._num_workers = default_collate, num_workers
        if collate_fn is not None:
            self._collate_fn = CollateEach(collate_fn)
        self._is_plain = isinstance(dataset, TensorDataset) and collate_fn is None and num_workers == 0

    def load(self, drawn: Iterator[Indices]) -> Iterator[MicroBatch]:
        """Yield the micro-batches of each draw, in order."""
        if self._is_plain or self._num_workers == 0:
            for indices in drawn:
                for part, is_last in self._cut(indices):
                    yield self._micro(self._take(part) if len(part) else None, len(part), is_last)
            return
        # Workers prefetch, so the sizes of micro-batches wait in a queue until their batch arrives.
        cuts: deque[tuple[int, bool]] = deque()
        fetched = iter(
            DataLoader(
                OneByOne(self._dataset),
                batch_sampler=self._lists(drawn, cuts),
                num_workers=self._num_workers,
                collate_fn=self._collate_fn,
                generator=torch.Generator().manual_seed(
                    self._worker_seed
                ),  # otherwise it would use torch's global generator
            )
        )
        for batch in fetched:
            while cuts[0][0] == 0:
                yield self._micro(None, *cuts.popleft())
            yield self._micro(batch, *cuts.popleft())
        while cuts:
            yield self._micro(None, *cuts.popleft())

    def _cut(self, indices: Indices) -> Iterator[tuple[Indices, bool]]:
        starts = range(0, max(len(indices), 1), self._micro_batch)
        for start in starts:
            yield indices[start : start + self._micro_batch], start == starts[-1]

    def _take(self, indices: Indices) -> Any:
        if self._is_plain:
            assert isinstance(self._dataset, TensorDataset)
            rows = torch.from_numpy(indices)
            return tuple(tensor[rows] for tensor in self._dataset.tensors)
        return self._collate_fn([self._dataset[int(index)] for index in indices])

    def _lists(self, drawn: Iterator[Indices], cuts: deque[tuple[int, bool]]) -> _Lists:
        return _Lists(drawn, cuts, self._cut)

    def _micro(self, batch: Any, records: int, is_last: bool) -> MicroBatch:
        return MicroBatch(to_device(batch, self._device), records, is_last)


@final
class _Lists:
    """A batch sampler that records the size of every micro-batch, including empty ones, which no worker loads."""

    def __init__(
        self,
        drawn: Iterator[Indices],
        cuts: deque[tuple[int, bool]],
        cut: Callable[[Indices], Iterator[tuple[Indices, bool]]],
    ) -> None:
        self._drawn, self._cuts, self._cut = drawn, cuts, cut

    def __iter__(self) -> Iterator[list[int]]:
        for indices in self._drawn:
            for part, is_last in self._cut(indices):
                self._cuts.append((len(part), is_last))
                if len(part):
                    yield part.tolist()


def to_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors of a nested structure to a device."""

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device)

    return replace(batch, move)
