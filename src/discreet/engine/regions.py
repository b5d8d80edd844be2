"""Checkpointed regions (`torch.utils.checkpoint`), whose calls are made again in the backward pass.

What a region reads may change until then. So its second run is watched too, and must make the same calls on the same
tensors with the same numbers as the first.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, final

from torch import Tensor

from discreet.core.check import refuse
from discreet.engine.checkpointed import checkpoint_frame
from discreet.engine.proof.blame import user_line
from discreet.engine.proof.lineage import Origin
from discreet.engine.proof.lineage_table import LineageTable
from discreet.engine.proof.watched_functions import saved_tensors_hooks
from discreet.engine.shards.sharding import Sharding
from discreet.engine.trace.capture import name_of, tensors_in


class _Region(NamedTuple):
    """Where the inputs of a region come from, and since when; and digests of its calls on records, in order."""

    inputs: list[Origin]
    clock: int
    calls: list[int]


@final
class Regions:
    """The regions of one batch."""

    def __init__(self, table: LineageTable, resume: Callable[[], AbstractContextManager[None]]) -> None:
        self._table, self._resume = table, resume
        self._known: dict[Any, _Region] = {}
        self._repeated: list[int] | None = None  # calls of the second run that is under way

    def forget(self) -> None:
        self._known, self._repeated = {}, None

    def is_outside(self) -> bool:
        """Whether a call is in no region, nor under another hook on saved tensors."""
        return self._repeated is None and saved_tensors_hooks(False) is None

    def calls_at(self, func: Callable[..., Any]) -> list[int] | None:
        """The calls of the region that a call on records is in; any other hook on saved tensors is refused."""
        if self._repeated is not None:
            return self._repeated
        hooks = saved_tensors_hooks(False)
        if hooks is None or Sharding.is_own(hooks):
            return None
        frame = checkpoint_frame()
        if frame is None:
            refuse(
                "saved tensors that come back as they were",
                f"saved_tensors_hooks around {name_of(func)} at {user_line()}",
                "remove them, and use a smaller micro_batch, which saves memory too",
            )
        if frame not in self._known:
            inputs = [self._table.find(one) for one in tensors_in(frame.get_inputs())]
            self._known[frame] = _Region(inputs, self._table.clock, [])
            frame.recompute_fn = partial(self._run_again, weakref.ref(frame), frame.recompute_fn)
            frame.early_stop = False  # all calls are compared
        return self._known[frame].calls

    def _run_again(self, frame: weakref.ref[Any], plain: Callable[..., None], *inputs: Any) -> None:
        """What torch calls for the second run; the recorder watches regions of the model, which it takes apart."""
        with nullcontext() if self._repeated is not None else self.repeating(frame(), inputs, self._resume()):
            plain(*inputs)

    @contextmanager
    def repeating(self, frame: Any, inputs: Any, resumed: AbstractContextManager[None]) -> Iterator[None]:
        """The block runs a region again, under the watch that `resumed` puts on."""
        first = self._known.get(frame, _Region([], 0, []))
        held: list[Tensor] = tensors_in(inputs)
        for tensor, origin in zip(held, first.inputs, strict=False):
            self._table.put(tensor, origin, first.clock)
        outer, self._repeated = self._repeated, []
        try:
            with resumed:
                yield
            if self._repeated != first.calls:
                refuse(
                    "a checkpointed region that makes the same calls when it runs again",
                    "other calls, numbers or tensors than in forward()",
                    "do not nest checkpoints, nor change what the region reads between forward() and private.step",
                )
        finally:
            self._repeated = outer
