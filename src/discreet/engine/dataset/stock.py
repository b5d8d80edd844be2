"""What exists before the first record is read: tensors that count as public, unless they may hold records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, final

from discreet.engine.dataset.held_tensors import KnownMemory, changed_tensors, tensors_held_by
from discreet.engine.proof.lineage import live_tensors
from discreet.engine.proof.lineage_table import LineageTable


@final
class Stock:
    """Tells the table of a watch which tensors of old are public."""

    def __init__(self, table: LineageTable) -> None:
        self._table, self._memory = table, KnownMemory()

    def take(self, private: Any) -> None:
        """Tensors that exist now are public from here on, except those that `private` holds. The first time counts."""
        if not self._table.has_begun:
            self._table.begin(live := live_tensors(), tensors_held_by(private, live, self._table.model))
            self._memory = KnownMemory(live)

    def note(self, record: Any) -> None:
        """Tensors whose memory this record lies in, before it is copied, do not count as public."""
        for tensor in (self._memory or KnownMemory(live_tensors())).taken_by(record):
            self._table.withhold(tensor)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Tensors that are made or written to inside the block do not count as public: they may hold records."""
        with nullcontext(None) if self._table.has_begun else changed_tensors(self._table.withhold) as before:
            self._memory, kept = self._memory if before is None else KnownMemory(before), self._memory
            try:
                yield
            finally:
                self._memory = kept  # looked for anew, as tensors come and go
