"""Load the drawn records as micro-batches of tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from discreet.core.secret_draws import KeyedWorker, SecretDraws
from discreet.engine.factors.groups import UnitRows
from discreet.engine.proof.lineage import places_in
from discreet.engine.trace.containers import holds_attributes_only, is_container, with_parts
from discreet.training.collate import CollateAlike, CollateEach, OneByOne, kept

if TYPE_CHECKING:
    from discreet.stages.sampling import Indices
    from discreet.training.draws import Draw
    from discreet.training.rehearsal import VacantRows


@final
@dataclass(frozen=True)
class MicroBatch:
    """Part of a logical batch. An empty draw gives one micro-batch with `batch=None` and 0 records."""

    batch: Any
    records: int
    is_last: bool
    units: UnitRows | None = None  # which records belong to one user, if users were drawn
    vacant: Tensor | None = None  # which rows hold no record, if the run has fixed rows: made-up ones, of weight 0
    stands_in: bool = False  # made-up records, where none were drawn, or none are left while other processes have more


@final
class Loader:
    """Splits each drawn batch into micro-batches of at most `micro_batch` records and loads them.

    Guarantee: what `dataset[i]` and `collate_fn` draw from the global generators is secret (core/secret_draws.py).

    note  called for each record that the main process loads, before it is copied
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        draws: SecretDraws,
        vacant_rows: VacantRows,
        note: Callable[[Any], None] | None = None,
        *,
        micro_batch: int,
        collate_fn: Callable[[list[Any]], Any] | None,
        num_workers: int,
        device: torch.device,
    ) -> None:
        self._dataset, self._micro_batch, self._device = dataset, micro_batch, device
        self._draws, self._vacant_rows, self._note = draws, vacant_rows, note
        self._collate_fn = CollateAlike() if collate_fn is None else CollateEach(collate_fn)
        self._num_workers = num_workers
        self._rows = _Rows.of(dataset) if collate_fn is None and num_workers == 0 else None

    def load(self, drawn: Iterator[Draw]) -> Iterator[MicroBatch]:
        """Yield the micro-batches of each draw, in order."""

        def cut(draw: Draw) -> Iterator[tuple[Draw, bool]]:
            parts = list(draw.cut(self._micro_batch))
            yield from ((part, place == len(parts)) for place, part in enumerate(parts, 1))

        if self._num_workers == 0:
            for draw in drawn:
                for part, is_last in cut(draw):
                    yield self._micro(self._take(part.records) if len(part.records) else None, part, is_last)
            return
        # Workers prefetch, so the sizes of micro-batches wait in a queue until their batch arrives.
        cuts: deque[tuple[Draw, bool]] = deque()
        keyed = KeyedWorker(self._draws.key_for_workers())
        seeds = torch.Generator().manual_seed(self._draws.seed())  # otherwise it would use torch's global generator

        def loaded() -> Iterator[list[int]]:  # an empty micro-batch has a size, but no worker loads it
            for draw in drawn:
                for part, is_last in cut(draw):
                    cuts.append((part, is_last))
                    if len(part.records):
                        yield part.records.tolist()

        data, workers = OneByOne(self._dataset), self._num_workers
        for batch in DataLoader(
            data,
            batch_sampler=loaded(),
            num_workers=workers,
            collate_fn=self._collate_fn,
            worker_init_fn=keyed,
            generator=seeds,
        ):
            while len(cuts[0][0].records) == 0:
                yield self._micro(None, *cuts.popleft())
            yield self._micro(batch, *cuts.popleft())
        while cuts:
            yield self._micro(None, *cuts.popleft())

    def _take(self, indices: Indices) -> Any:
        if self._rows is not None:
            return self._rows.take(torch.from_numpy(indices))
        with self._draws.keyed():
            return self._collate_fn([self._record(int(index)) for index in indices])

    def _record(self, index: int) -> Any:
        record = self._dataset[index]
        if self._note is not None:
            self._note(record)
        return kept(record)

    def _micro(self, batch: Any, part: Draw, is_last: bool) -> MicroBatch:
        units = UnitRows(part.sizes) if part.sizes else None
        if part.vacant is None:
            return MicroBatch(to_device(batch, self._device), len(part.records), is_last, units)
        vacant = torch.from_numpy(part.vacant)
        batch = to_device(self._vacant_rows.filled(batch, vacant), self._device)
        return MicroBatch(batch, len(part.records), is_last, units, vacant.to(self._device))


@final
@dataclass(frozen=True, eq=False)
class _Rows:
    """Tensors with a row for each record, which are taken together; `chosen`: the records are some of the rows."""

    tensors: tuple[Tensor, ...]
    chosen: Tensor | None = None

    @classmethod
    def of(cls, dataset: Dataset[Any]) -> _Rows | None:
        """The tensors behind a dataset whose records are rows of them; None for any other dataset."""
        if type(dataset) is TensorDataset:
            return cls(dataset.tensors)
        if type(dataset) is not Subset or (below := cls.of(dataset.dataset)) is None:
            return None
        chosen, size = torch.as_tensor(dataset.indices), len(below)
        if chosen.is_floating_point() or chosen.dim() != 1 or bool(((chosen < -size) | (chosen >= size)).any()):
            return None  # the dataset itself refuses them
        chosen = chosen.long() % max(size, 1)  # -1 is the last
        return cls(below.tensors, chosen if below.chosen is None else below.chosen.index_select(0, chosen))

    def __len__(self) -> int:
        return len(self.tensors[0] if self.chosen is None else self.chosen)

    def take(self, rows: Tensor) -> tuple[Tensor, ...]:
        rows = rows if self.chosen is None else self.chosen.index_select(0, rows)
        return tuple(tensor.index_select(0, rows) for tensor in self.tensors)  # three times as fast as tensor[rows]


def to_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors of a nested structure to a device."""
    return with_tensors(batch, lambda tensor: tensor.to(device))


def settled(tensor: Tensor) -> Tensor:
    """A tensor of a batch in a form that no record chooses: without a gradient, entries in memory in the order of axes.

    Kernels go by both, so that one record that differs would decide how the whole batch is rounded.
    """
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor
    tensor = tensor.resolve_conj().resolve_neg()
    is_in_order = tensor.stride() == torch.empty(tensor.shape, device="meta").stride()
    return tensor if is_in_order else tensor.clone(memory_format=torch.contiguous_format)


def with_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A batch with every tensor changed, also in dataclasses and in attributes."""
    if isinstance(batch, Tensor):
        return change(batch)
    if is_container(batch) or (holds_attributes_only(batch) and places_in(batch, 0)):
        return with_parts(batch, lambda part: with_tensors(part, change))
    return batch
