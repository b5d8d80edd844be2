"""Recording a forward pass along the calls that the probe learned, and pulling factors back to parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import refuse
from discreet.stages.capture import Call, Tracked, name_of, replace, tensors_in
from discreet.stages.factors import Dense, Factors, OneHot, Outer
from discreet.stages.ops import Use


class _Source(torch.autograd.Function):
    """A call none of whose inputs needs a gradient: run it, and keep the gradient of its output."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, use: Use) -> Tensor:
        ctx.use = use
        result: Tensor = use.func(*use.args, **use.kwargs)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.use.keep_gradient(gradients[0])
        return None, None


class Recorder:
    """Follows one forward pass: derived parameters keep their graph, every other call leaves a `Use`."""

    def __init__(self, parameters: Sequence[Tracked], script: Sequence[Call], records: int) -> None:
        self.tracked = {id(root.tensor): root for root in parameters}
        self.uses: list[Use] = []
        self._script, self._records, self._position = script, records, 0
        self._anchor = torch.zeros((), requires_grad=True)

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        names = tuple(tracked.name for tracked in found)
        if self._position < len(self._script):
            expected = self._script[self._position]
            if expected.func == func and expected.names == names:
                self._position += 1
                step = self._derive if expected.derives else self._use
                return step(expected, args, kwargs, found)
        result = func(*args, **kwargs)
        if any(tensor.requires_grad for tensor in tensors_in(result)):
            self._another_path(f"{name_of(func)} with {', '.join(names)}")
        return result  # a shape, a dtype, a detached copy: no gradient flows through it

    def finish(self) -> None:
        """Refuse a pass that left out calls of the probe."""
        if self._position < len(self._script):
            left_out = self._script[self._position]
            self._another_path(f"no {name_of(left_out.func)} with {', '.join(left_out.names)}")

    def _another_path(self, came: str) -> NoReturn:
        refuse(
            "the forward pass to make the same calls on every batch of one shape",
            came,
            "remove control flow that depends on the data or on the step",
        )

    def _derive(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        result = call.func(*args, **kwargs)
        track_derived(self.tracked, call.func, args, result, found)
        return result

    def _use(self, call: Call, args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        plain = {id(tracked.tensor): tracked.tensor.detach() for tracked in found}
        tensors = list(tensors_in((args, kwargs)))
        args, kwargs = replace((args, kwargs), lambda tensor: plain.get(id(tensor), tensor))
        swapped = [plain.get(id(tensor), tensor) for tensor in tensors]
        assert call.output is not None
        use = Use(
            func=call.func,
            args=args,
            kwargs=kwargs,
            targets={id(plain[id(tracked.tensor)]): tracked for tracked in found},
            axes={id(t): axis for t, axis in zip(swapped, call.axes, strict=True) if axis is not None},
            output_axis=call.output,
            records=self._records,
            versions=tuple(tensor._version for tensor in swapped),
        )
        if any(tensor.requires_grad for tensor in swapped):
            result: Tensor = call.func(*args, **kwargs)
            if result.requires_grad:
                result.register_hook(use.keep_gradient)
        else:
            result = _Source.apply(self._anchor, use)  # type: ignore[no-untyped-call]
        self.uses.append(use)
        return result


def track_derived(
    tracked: dict[int, Tracked], func: Callable[..., Any], args: Any, result: Any, found: Sequence[Tracked]
) -> None:
    """Remember the differentiable outputs of a call on parameters alone."""
    for tensor in tensors_in(result):
        if tensor.requires_grad and id(tensor) not in tracked:
            name = f"{name_of(func)}#{len(tracked)}({', '.join(parent.name for parent in found)})"
            tracked[id(tensor)] = Tracked(name, tensor, tuple(found), func, tuple(args))


_TRANSPOSES = {Tensor.t, torch.t, Tensor.transpose, torch.transpose, Tensor.T.__get__, Tensor.mT.__get__}  # type: ignore[attr-defined]


def pull_back(target: Tracked, factors: Factors) -> Iterator[tuple[Tracked, Factors]]:
    """The factors of a derived tensor as factors of the parameters that it came from."""
    if not target.parents:
        yield target, factors
        return
    parent = target.parents[0]
    simple = len(target.parents) == 1 and not parent.parents
    if simple and target.made_by in _TRANSPOSES and target.tensor.dim() == 2 and isinstance(factors, Outer):
        yield parent, Outer(factors.right_NPB, factors.left_NPA, parent.tensor.shape)
        return
    grads_N = factors.instantiate(0, factors.records)
    if simple and target.made_by == F.embedding and len(target.args) == 2:
        index = target.args[0].flatten().expand(factors.records, -1)
        yield parent, OneHot(index, grads_N.reshape(*index.shape, -1), parent.tensor.shape)
        return
    roots = [root.tensor for root in target.roots]
    for root, pulled in zip(target.roots, _batched_vjp(target.tensor, roots, grads_N), strict=True):
        if pulled is not None:
            yield root, Dense(pulled)


def _batched_vjp(output: Tensor, inputs: Sequence[Tensor], grads_N: Tensor) -> Sequence[Tensor | None]:
    grads_N = grads_N.to(output.dtype)
    per_record = [
        torch.autograd.grad(output, inputs, gradient, retain_graph=True, allow_unused=True)
        for gradient in grads_N
    ]
    return [
        None if pieces[0] is None else torch.stack([piece for piece in pieces if piece is not None])
        for pieces in zip(*per_record, strict=True)
    ]
