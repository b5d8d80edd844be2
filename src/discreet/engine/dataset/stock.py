"""What exists before the first record is read: tensors that count as public, unless they may hold records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, final

from torch import Tensor

from discreet.core.check import refuse
from discreet.engine.dataset.held_tensors import KnownMemory, changed_tensors, tensors_held_by
from discreet.engine.proof.declared import DECLARED
from discreet.engine.proof.lineage import has_memory, live_tensors, storage_of
from discreet.engine.proof.lineage_table import LineageTable


@final
class Stock:
    """Tells the table of a watch which tensors of old are public."""

    def __init__(self, table: LineageTable) -> None:
        self._table, self._memory = table, KnownMemory()

    def take(self, private: Any) -> None:
        """Tensors that exist now are public from here on, except those that `private` holds. The first time counts."""
        if not self._table.has_begun:
            held = tensors_held_by(private, live := live_tensors(), self._table.model)
            self._check_model(held)
            self._table.begin(live, held)
            self._memory = KnownMemory(live)

    def note(self, record: Any) -> None:
        """Tensors whose memory this record lies in, before it is copied, do not count as public."""
        taken = (self._memory or KnownMemory(live_tensors())).taken_by(record)
        self._check_model(taken)
        for tensor in taken:
            self._table.withhold(tensor)

    def _check_model(self, private: Sequence[Tensor]) -> None:
        """Refuse parameters and buffers in the memory of tensors that may hold records: those of a model are public."""
        places = {id(one) for one in private} | {storage_of(one) for one in private if has_memory(one)}
        model = self._table.model
        for name, tensor in (*model.named_parameters(), *model.named_buffers()) if places else ():
            storage = storage_of(tensor) if has_memory(tensor) else 0
            if places.isdisjoint((id(tensor), storage)) or DECLARED.number_of(tensor) is not None:
                continue
            if not DECLARED.owns_memory(storage):
                refuse(
                    "a model that holds no records, as its parameters and buffers count as public",
                    f"{name} in the memory of a tensor that the dataset holds, or that its code names",
                    "keep records out of the model, also copies of them; give it what it needs of them as part of each "
                    "record, or from public data. If the tensor does not come from records (vectors of a vocabulary, "
                    "say), write discreet.public(tensor) before the loop",
                )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Tensors that are made or written to inside the block do not count as public: they may hold records."""
        with nullcontext(None) if self._table.has_begun else changed_tensors(self._table.withhold) as before:
            self._memory, kept = self._memory if before is None else KnownMemory(before), self._memory
            try:
                yield
            finally:
                self._memory = kept  # looked for anew, as tensors come and go
