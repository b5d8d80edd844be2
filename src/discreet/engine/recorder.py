"""Recording a forward pass along the calls that the probe learned, and pulling factors back to parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import refuse
from discreet.engine.checkpointed import CheckpointedRegion, Repeating, checkpoint_frame
from discreet.engine.factors import parts as limits
from discreet.engine.factors.groups import Joined, UnitRows
from discreet.engine.factors.linear import OneHot, Outer, merge
from discreet.engine.factors.parts import Factors, FormedGradients, GradientBuffer, Leaf
from discreet.engine.factors.recorded_call import RecordedCall
from discreet.engine.factors.rules import parts_of, simple_parts
from discreet.engine.layout import Layout
from discreet.engine.trace.capture import (
    Call,
    ForwardTrace,
    Marks,
    TracedStep,
    Tracked,
    name_of,
    replace,
    tensors_in,
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


_PRODUCTS: Final[dict[Callable[..., Any], Callable[..., Tensor]]] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
}


def _computed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    own: Callable[..., Tensor] = _PRODUCTS.get(func, func)
    return own(*args, **kwargs)


REDUCED: Final = (torch.bfloat16, torch.float16)


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


class Recorder:
    """Follows one forward pass: derived parameters keep their graph, every other call leaves a `RecordedCall`."""

    def __init__(self, parameters: Sequence[Tracked], script: ForwardTrace, records: int, inputs: Any) -> None:
        self.tracked = {id(root.tensor): root for root in parameters}
        self.uses: list[RecordedCall] = []
        self.anchor = torch.zeros((), requires_grad=True)
        self._marks = Marks(self.tracked, script.records_in(inputs))
        self._script, self._records = script, records
        self._position = self._place = 0
        self._regions: dict[Any, CheckpointedRegion] = {}
        self.dtypes: set[torch.dtype] = set()  # of the results of calls with parameters (autocast)
        self.repeating: Repeating | None = None  # watches checkpointed regions that run again

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        result = func(*args, **kwargs)
        if self._marks.follow(func, args, tensors, result):
            path = self._script.path
            if self._place >= len(path) or path[self._place].func != func:
                self._another_path(f"a call of {name_of(func)} on the records")
            expected = path[self._place]
            self._same_settings(expected, args, kwargs)
            self._place += 1
        return result

    def has_records(self, tensor: Tensor) -> bool:
        return self._marks.on([tensor])

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        names = tuple(tracked.name for tracked in found)
        if self._position < len(self._script.calls):
            expected = self._script.calls[self._position]
            if expected.func == func and expected.names == names:
                self._same_settings(expected, args, kwargs)
                self._position += 1
                step = self.derive if expected.derives else self._use
                return step(expected, args, kwargs, found)
        result = self.other(func, args, kwargs, tensors_in((args, kwargs)))
        if any(tensor.requires_grad for tensor in tensors_in(result)):
            self._another_path(f"{name_of(func)} with {', '.join(names)}")
        return result  # a shape, a dtype, a detached copy: no gradient flows through it

    def finish(self) -> None:
        """Refuse a pass that left out calls of the probe."""
        if self._position < len(self._script.calls):
            left_out = self._script.calls[self._position]
            self._another_path(f"no {left_out.where}")
        if self._place < len(self._script.path):
            self._another_path(f"no {self._script.path[self._place].where}")

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
        return self._script.calls[min(position, len(self._script.calls) - 1)]

    def derive(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        """Run a call on parameters alone, and track what it makes."""
        result = call.func(*args, **kwargs)
        track_derived(self.tracked, call.func, args, kwargs, result, found)
        return result

    def recorded(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> RecordedCall:
        """A call that involves records, with detached parameters."""
        plain = {id(tracked.tensor): tracked.tensor.detach() for tracked in found}
        tensors = tensors_in((args, kwargs))
        args, kwargs = replace((args, kwargs), lambda tensor: plain.get(id(tensor), tensor))
        swapped = [plain.get(id(tensor), tensor) for tensor in tensors]
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
        sourced: Tensor = _Source.apply(self.anchor, use)  # type: ignore[no-untyped-call]
        return sourced

    def _use(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> Tensor:
        use = self.recorded(call, args, kwargs, found)
        frame = checkpoint_frame()
        if frame is not None and frame not in self._regions:
            self._regions[frame] = CheckpointedRegion(frame, self, self._position - 1)
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

    def fill(self) -> None:
        """Run checkpointed regions again that the backward pass left out."""
        for region in self._regions.values():
            if any(use.gradient is not None and use.is_empty for use in region.uses):
                region.fill()


class Collector:
    """Turns uses into factors: simple ones as the backward pass reaches them, the rest at its end.

    What a use held is let go of as soon as its parts are made, and a parameter's factors are settled when its last
    use is there: per-sample gradients take the place of activations, instead of standing beside them.
    """

    def __init__(
        self,
        uses: Iterable[RecordedCall],
        layout: Layout,
        room: GradientBuffer | None = None,
        units: UnitRows | None = None,
    ) -> None:
        self._uses, self._layout, self._room = list(uses), layout, room or GradientBuffer()
        self._buckets = [] if units is None else list(units.buckets())
        self._shapes = dict(zip(layout.names, layout.shapes, strict=True))
        self._parts: dict[str, list[Leaf]] = {name: [] for name in layout.names}
        self._awaited = Counter(name for use in self._uses for name in use.roots)
        self._found: dict[str, Factors] = {}
        self._left = limits.KEEP_IN_ALL

    def watch(self) -> None:
        """Take each use at the moment when its gradient comes."""
        for use in self._uses:
            use.receiver = self._take

    def finish(self) -> list[Factors | None]:
        """The factors of every parameter; None where no gradient came."""
        for use in self._uses:
            use.receiver = None
            if use.gradient is not None:
                for target, part in parts_of(use):
                    for root, pulled in pull_back(target, part):
                        self._parts[root.name].append(pulled)
                use.forget()
        for name, parts in self._parts.items():
            if parts:
                self._settle(name)
        return [self._found.get(name) for name in self._layout.names]

    @torch.no_grad()
    def _take(self, use: RecordedCall) -> None:
        if any(target.parents for target in use.targets.values()):
            return  # pulled back through autograd, which is busy now
        parts = simple_parts(use)
        if parts is None:
            return
        use.forget()
        for target, part in parts:
            self._parts[target.name].append(part)
        del parts
        for name in use.roots:
            self._awaited[name] -= 1
            if self._awaited[name] == 0:
                self._settle(name)

    def _settle(self, name: str) -> None:
        parts, self._parts[name] = self._parts[name], []
        if not self._buckets:
            self._found[name] = self._merged(name, name, parts)
            return
        members = []
        for size, start, stop in self._buckets:
            some = parts
            if len(self._buckets) > 1:
                some = [part.take(torch.arange(start, stop)) for part in parts]
            members.append(self._merged(name, f"{name}/{size}", [part.summed(size) for part in some]))
        self._found[name] = members[0] if len(members) == 1 else Joined(members)

    def _merged(self, name: str, place: str, parts: Sequence[Leaf]) -> Factors:
        found = merge(parts, self._shapes[name], self._left, partial(self._room.fill, place))
        if isinstance(found, FormedGradients):
            self._left -= found.grads_N.numel()
        return found


def pull_back(target: Tracked, part: Leaf) -> Iterator[tuple[Tracked, Leaf]]:
    """The part of a derived tensor as parts of the parameters that it came from."""
    if not target.parents:
        yield target, part
        return
    parent = target.parents[0]
    simple = len(target.parents) == 1 and not parent.parents
    if simple and isinstance(part, Outer) and _is_transpose(target.tensor, parent.tensor):
        yield parent, Outer(part.right_NPB, part.left_NPA, parent.tensor.shape)
        return
    grads_N = part.instantiate(0, part.records)
    if simple and target.made_by == F.embedding and _is_plain_lookup(target):
        index = target.args[0].flatten().expand(part.records, -1)
        yield parent, OneHot(index, grads_N.reshape(*index.shape, -1), parent.tensor.shape)
        return
    roots = [root.tensor for root in target.roots]
    for root, pulled in zip(target.roots, _batched_vjp(target.tensor, roots, grads_N), strict=True):
        if pulled is not None:
            yield root, FormedGradients(pulled)


def _is_transpose(view: Tensor, matrix: Tensor) -> bool:
    """Told by the strides: w.t(), w.T, w.mT, w.transpose(0, 1), w.permute(1, 0) all look alike."""
    return (
        view.dim() == 2
        and matrix.dim() == 2
        and view.data_ptr() == matrix.data_ptr()
        and view.shape == matrix.shape[::-1]
        and view.stride() == matrix.stride()[::-1]
    )


def _is_plain_lookup(target: Tracked) -> bool:
    """weight[ids] without a padding index, whose row gets no gradient."""
    return len(target.args) == 2 and target.settings.get("padding_idx") is None


def _batched_vjp(output: Tensor, inputs: Sequence[Tensor], grads_N: Tensor) -> Sequence[Tensor | None]:
    grads_N = grads_N.to(output.dtype)
    try:  # all records in one backward pass, where every op on the way has a batching rule
        return torch.autograd.grad(output, inputs, grads_N, retain_graph=True, allow_unused=True, is_grads_batched=True)
    except RuntimeError:
        per_record = [
            torch.autograd.grad(output, inputs, gradient, retain_graph=True, allow_unused=True) for gradient in grads_N
        ]
    return [
        None if pieces[0] is None else torch.stack([piece for piece in pieces if piece is not None])
        for pieces in zip(*per_record, strict=True)
    ]
