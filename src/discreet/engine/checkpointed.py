"""Activation checkpointing (`torch.utils.checkpoint`): a region that is computed again in the backward pass.

The recorder keeps no inputs of the calls in such a region. They are filled in when torch runs the region again, and are
let go of as soon as their gradients are pulled back. The second run makes the same calls, so that it saves the same
tensors as the first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from discreet.core.check import refuse
from discreet.core.peak_memory import FreedMemory
from discreet.engine.factors.recorded_call import RecordedCall
from discreet.engine.trace.capture import Call, CallWatch, Tracked
from discreet.engine.trace.decompose import DECOMPOSITIONS

# What a region took goes back to the system before the next one, once so many bytes have come together: new pages of as
# many take about a second.
_FREED: Final = FreedMemory(much=2 << 30)

hooks_on_saved_tensors: Final = torch._C._autograd._top_saved_tensors_default_hooks


def checkpoint_frame() -> Any | None:
    """The frame of the checkpointed region that the current call is in (torch's own object), or None."""
    hooks = hooks_on_saved_tensors(False)
    if hooks is None or hooks[0].__module__ != "torch.utils.checkpoint" or hooks[0].__closure__ is None:
        return None
    held = dict(zip(hooks[0].__code__.co_freevars, (cell.cell_contents for cell in hooks[0].__closure__), strict=True))
    return held.get("frame")


Repeating = Callable[[Any, Any, Callable[[Any, Any, Any], Any]], AbstractContextManager[None]]
"""Watches the second run of a region, given its frame, its inputs and what runs its calls."""


class Repeats(Protocol):
    """What a region needs of the recorder of its pass."""

    tracked: dict[int, Tracked]
    repeating: Repeating | None

    def call_at(self, position: int) -> Call:
        """The call that the probe learned at this position."""

    def derive(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        """Run a call on parameters alone."""

    def recorded(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> RecordedCall:
        """A call with its inputs."""

    def run(self, use: RecordedCall) -> Tensor:
        """The result of a recorded call, connected to the graph."""

    def has_records(self, tensor: Tensor) -> bool:
        """Whether a tensor carries records."""


class CheckpointedRegion:
    """The recorded calls of one region; follows the second run and fills in their inputs."""

    def __init__(self, frame: Any, recorder: Repeats, position: int) -> None:
        self._frame: weakref.ref[Any] = weakref.ref(frame)  # it holds this region, and the graph below it
        self._recorder, self._start = recorder, position
        self._position = self._filled = 0
        self._again: Callable[..., None] = frame.recompute_fn
        self.uses: list[RecordedCall] = []
        self.tracked = recorder.tracked
        frame.recompute_fn = self._run_again
        frame.early_stop = False  # calls after the last saved tensor are needed, too
        _FREED.give_back_if_much()

    def fill(self) -> None:
        """Run the region again where torch did not: nothing in it saved a tensor."""
        frame = self._frame()
        assert frame is not None
        with torch.enable_grad():
            frame.recompute_fn(*frame.get_inputs())

    def _run_again(self, *args: Any) -> None:
        _FREED.give_back_if_much()
        self._position, self._filled = self._start, 0
        calls, repeating = (
            CallWatch(self, DECOMPOSITIONS, forbidden={}),
            self._recorder.repeating,
        )  # the first was checked
        with calls if repeating is None else repeating(self._frame(), args, calls.handle):
            self._again(*args)
        if self._filled != len(self.uses):
            refuse(
                "a checkpointed region that makes the same calls when it runs again",
                f"{self._filled} calls with parameters where the first run made {len(self.uses)}",
                "do not nest checkpoints, and remove state that a pass leaves behind; or turn checkpointing off and "
                "use a smaller micro_batch",
            )

    # -- the second run, as a follower -----------------------------------------------------------------

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        return func(*args, **kwargs)

    def has_records(self, tensor: Tensor) -> bool:
        return self._recorder.has_records(tensor)

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        expected = self._recorder.call_at(self._position)
        if expected.func != func or self._filled >= len(self.uses):
            return func(*args, **kwargs)  # a shape, a dtype, a detached copy: no gradient flows through it
        self._position += 1
        if expected.derives:
            return self._recorder.derive(expected, args, kwargs, found)
        use = self._recorder.recorded(expected, args, kwargs, found)
        result = self._recorder.run(use)
        self.uses[self._filled].fill(use)
        self._filled += 1
        return result
