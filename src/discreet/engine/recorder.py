"""Recording a forward pass along the calls that the probe learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import refuse
from discreet.core.peak_memory import give_back
from discreet.engine.checkpointed import CheckpointedRegion, Repeating, checkpoint_frame, hooks_on_saved_tensors
from discreet.engine.factors.recorded_call import RecordedCall
from discreet.engine.trace.capture import (
    Call,
    FollowedCall,
    ForwardTrace,
    Marks,
    RecordAxis,
    TracedStep,
    Tracked,
    name_of,
    replace,
    tensors_in,
    tensors_of_call,
    track_derived,
)
from discreet.engine.trace.settings import first_mismatch, settings_of


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` as one product of all positions, in memory of its own.

    Without the weight's gradient torch multiplies position by position where these lie apart, and what it gives is
    a view or not by the shape of the batch: a hook on a view does not survive an in-place operation on it.
    """
    if input.dim() <= 2 or weight.dim() != 2:
        return F.linear(input, weight, bias)
    rows = F.linear(input.flatten(0, -2), weight, bias)
    result: Tensor = torch.ops.aten._unsafe_view(rows, [*input.shape[:-1], rows.shape[-1]])
    return result


def _matmul(input: Tensor, other: Tensor) -> Tensor:
    """The same for `input @ other`; what it gives is never a view."""
    return torch.matmul(input.contiguous() if input.dim() > 2 >= other.dim() else input, other)


def _einsum(*args: Any) -> Tensor:
    """`torch.einsum`, whose product is often a view of memory that nobody else has: then not as a view."""
    result: Tensor = torch.einsum(*args)
    own = result.untyped_storage().data_ptr()
    if not result._is_view() or any(own == one.untyped_storage().data_ptr() for one in tensors_in(args)):
        return result
    product: Tensor = torch.ops.aten._unsafe_view(result, result.shape)
    return product


_PRODUCTS: Final[dict[Callable[..., Any], Callable[..., Tensor]]] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    torch.einsum: _einsum,
}


def _computed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    own: Callable[..., Tensor] = _PRODUCTS.get(func, func)
    return own(*args, **kwargs)


REDUCED: Final = (torch.bfloat16, torch.float16)


# As torch has it: functions of the user's are watched (custom_backward.py), and this one keeps a gradient, no more.
_MUCH: Final = 1 << 30  # bytes of activations, beside which the milliseconds that it takes do not count
_APPLY: Final = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]


class _Source(torch.autograd.Function):
    """A call none of whose inputs needs a gradient: run it, and keep the gradient of its output."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, use: RecordedCall) -> Tensor:
        ctx.use = use
        return _computed(use.func, use.args, use.kwargs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.use.keep_gradient(gradients[0])
        return None, None


_SOURCE: Final[Any] = _Source._backward_cls


def spread_axis(tensor: Tensor) -> RecordAxis | None:
    """Where the engine takes the records to lie in what a call without records made, or in what that was copied to."""
    node: Any = tensor.grad_fn
    nodes = [node]
    if type(node).__name__ == "CopyBackwards":  # x += p, as a copy
        nodes += [before for before, _ in node.next_functions]
    return next((one.use.output_axis for one in nodes if type(one) is _SOURCE), None)


class Recorder:
    """Follows one forward pass: derived parameters keep their graph, every other call leaves a `RecordedCall`."""

    def __init__(self, parameters: Sequence[Tracked], script: ForwardTrace, records: int, inputs: Any) -> None:
        self.tracked = {id(root.tensor): root for root in parameters}
        self.uses: list[RecordedCall] = []
        self.anchor = torch.zeros((), requires_grad=True)
        self._marks = Marks(self.tracked, script.records_in(inputs))
        self.marked = self._marks.marked
        self.script, self._records = script, records
        self._position = self.place = 0
        self._regions: dict[Any, CheckpointedRegion] = {}
        self.dtypes: set[torch.dtype] = set()  # of the results of calls with parameters (autocast)
        self.repeating: Repeating | None = None  # watches checkpointed regions that run again
        self._noted: tuple[ForwardTrace, int] | None = None  # the place on the path of the newest call, if it has one
        self._noted_use: tuple[int, Any] | None = None  # the place of the newest use, and its arguments

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if hooks_on_saved_tensors(False) is not None:
            self._region(self._position)
        result = func(*args, **kwargs)
        if self._marks.follow(func, args, tensors, result):
            path = self.script.path
            if self.place >= len(path) or path[self.place].func != func:
                self._another_path(f"a call of {name_of(func)} on the records")
            expected = path[self.place]
            self._same_settings(expected, args, kwargs)
            self._noted = self.script, self.place
            self.place += 1
        return result

    def run_again(
        self, known: FollowedCall, run: Callable[..., Any], func: Any, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Any:
        """Make a call that the watch knows: an earlier one had its function and settings, and tensors made alike.

        If that one came at the same place of the script, its settings were compared there. Whether tensors are tracked
        or carry records is looked at each time, by the names of parameters. Other calls go to `run`.
        """
        at, used, tracked = known.followed, known.used, self.tracked
        if used is not None and used[0] is self.script and used[1] == self._position and torch.is_grad_enabled():
            expected = self.script.calls[self._position]
            found = [tracked[id(tensor)] for tensor in tensors if id(tensor) in tracked]
            if tuple(one.name for one in found) == expected.names:
                self._position += 1
                return self._use(expected, args, kwargs, found)
        if at is None or at[0] is not self.script or at[1] != self.place:
            self._noted = self._noted_use = None
            result = run(func, args, kwargs)
            at, use = self._noted, self._noted_use  # of a call that is taken apart: the place of its last part
            known.followed = at if at is not None and at[0].path[at[1]].func == func else None
            known.used = (self.script, use[0]) if use is not None and use[1] is args else None
            self._noted_use = None
            return result
        for tensor in tensors:
            if id(tensor) in tracked:
                return run(func, args, kwargs)
        if not self._marks.on(tensors):
            return run(func, args, kwargs)
        result = func(*args, **kwargs)
        self.mark(result)
        self.place += 1
        return result

    def mark(self, result: Any) -> None:
        """What a call made carries records."""
        self._marks.add((result,) if type(result) is Tensor else tensors_in(result))

    def has_records(self, tensor: Tensor) -> bool:
        return self._marks.on([tensor])

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        names = tuple(tracked.name for tracked in found)
        if self._position < len(self.script.calls):
            expected = self.script.calls[self._position]
            if expected.func == func and expected.names == names:
                self._same_settings(expected, args, kwargs)
                self._position += 1
                if expected.derives:
                    return self.derive(expected, args, kwargs, found)
                result = self._use(expected, args, kwargs, found)
                self._noted_use = self._position - 1, args
                return result
        result = self.other(func, args, kwargs, tensors_in((args, kwargs)))
        if any(tensor.requires_grad for tensor in tensors_in(result)):
            self._another_path(f"{name_of(func)} with {', '.join(names)}")
        return result  # a shape, a dtype, a detached copy: no gradient flows through it

    def finish(self) -> None:
        """The pass has ended: refuse one that left out calls of the probe."""
        if self._position < len(self.script.calls):
            left_out = self.script.calls[self._position]
            self._another_path(f"no {left_out.where}")
        if self.place < len(self.script.path):
            self._another_path(f"no {self.script.path[self.place].where}")
        if self._records * self.script.saved_bytes >= _MUCH:
            give_back()  # what was freed: the backward pass takes memory in pieces of other sizes

    def _same_settings(self, expected: Call | TracedStep, args: Any, kwargs: Any) -> None:
        settings = settings_of(expected.func, args, kwargs)
        if settings == expected.settings:  # nearly always
            return
        found = first_mismatch(settings, expected.settings, self._records)
        if found is not None:
            came, known = found
            refuse(
                "the forward pass to make the same calls with the same axes, sizes and options",
                f"{expected.where} with {came!r} where it had {known!r} on random inputs",
                "give forward() what changes as an argument of its own, or build a new Private",
            )

    def _another_path(self, came: str) -> NoReturn:
        refuse(
            "the forward pass to make the same calls on every batch of one shape",
            came,
            "remove control flow that depends on the data or on the step",
        )

    def call_at(self, position: int) -> Call:
        """The call that the probe learned at this position."""
        return self.script.calls[min(position, len(self.script.calls) - 1)]

    def derive(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        """Run a call on parameters alone, and track what it makes."""
        result = call.func(*args, **kwargs)
        track_derived(self.tracked, call.func, args, kwargs, result, found)
        return result

    def recorded(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> RecordedCall:
        """A call that involves records, with detached parameters."""
        plain = {id(tracked.tensor): tracked.tensor.detach() for tracked in found}
        swapped = [plain.get(id(tensor), tensor) for tensor in tensors_of_call(args, kwargs)]
        args = replace(args, lambda tensor: plain.get(id(tensor), tensor))
        kwargs = replace(kwargs, lambda tensor: plain.get(id(tensor), tensor)) if kwargs else kwargs
        assert call.output is not None
        return RecordedCall(
            func=call.func,
            args=args,
            kwargs=kwargs,
            targets={id(plain[id(tracked.tensor)]): tracked for tracked in found},
            axes={id(t): axis for t, axis in zip(swapped, call.axes, strict=True) if axis is not None},
            output_axis=call.output,
            records=self._records,
            tensors=swapped,
            versions=[tensor._version for tensor in swapped],
        )

    def run(self, use: RecordedCall) -> Tensor:
        """The result of a recorded call; its gradient goes to the record, never to a parameter."""
        if any(tensor.requires_grad for tensor in use.tensors):
            result = _computed(use.func, use.args, use.kwargs)
            if result.requires_grad:
                return result
        sourced: Tensor = _APPLY(_Source, self.anchor, use)
        return sourced

    def _use(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> Tensor:
        use = self.recorded(call, args, kwargs, found)
        frame = self._region(self._position - 1)
        result = self.run(use)
        self.uses.append(use)
        self.dtypes.add(result.dtype)
        if type(result.grad_fn).__name__ != "_SourceBackward":
            if frame is None and type(result.grad_fn).__name__ == "NativeGroupNormBackward0":
                use.statistics = result.grad_fn._saved_result1, result.grad_fn._saved_result2  # type: ignore[union-attr]
            result.register_hook(use.keep_gradient)
        if frame is not None:
            self._regions[frame].uses.append(use)
            use.empty()
        return result

    def _region(self, position: int) -> Any | None:
        """The frame of the checkpointed region that a call is in, which starts at this position, if it is new."""
        frame = checkpoint_frame()
        if frame is not None and frame not in self._regions:
            self._regions[frame] = CheckpointedRegion(frame, self, position)
        return frame

    @property
    def regions(self) -> int:
        """How many checkpointed regions have calls with parameters."""
        return sum(bool(region.uses) for region in self._regions.values())

    def fill(self) -> None:
        """Run checkpointed regions again that the backward pass left out."""
        for region in self._regions.values():
            if any(use.gradient is not None and use.is_empty for use in region.uses):
                region.fill()

    def forget(self) -> None:
        """Let go of all tensors: no backward pass comes any more."""
        for use in self.uses:
            use.forget()
        self._regions, self._noted_use = {}, None  # torch's frames hold graphs, which no garbage collector looks into
