"""One recorded call with parameters: what went in, where the records lie, the gradient of what came out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from discreet.core.check import refuse
from discreet.engine.factors.parts import Leaf
from discreet.engine.trace.capture import RecordAxis, Tracked, name_of

Parts = Iterator[tuple[Tensor, Leaf]]
Rule = Callable[..., Parts]

_WIDENED: Final = 1 << 18  # numbers that are widened at a time: they stay in the cache


class UnfitError(Exception):
    """A rule does not cover this form of its op; the general way does."""


@dataclass(eq=False)
class RecordedCall:
    """One call that mixed parameters with records, and the gradient of its output."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: dict[int, Tracked]  # by the identity of the argument tensor
    axes: dict[int, RecordAxis]
    output_axis: RecordAxis
    records: int
    tensors: list[Tensor]  # among the arguments, in order
    versions: list[int]  # theirs, at the call
    gradient: Tensor | None = None
    receiver: Callable[[RecordedCall], None] | None = None  # told of the gradient
    statistics: tuple[Tensor, Tensor] | None = None  # mean and 1/deviation of each group, of group_norm
    is_repeated: bool = False  # the inputs are computed again in the backward pass (checkpointed.py)
    is_empty: bool = False  # they are not there
    sums: list[str] = field(default_factory=list)  # of the inputs that were let go of
    roots: frozenset[str] = frozenset()  # the names of the parameters below

    def __post_init__(self) -> None:
        self.roots = frozenset(root.name for target in self.targets.values() for root in target.roots)

    def keep_gradient(self, gradient: Tensor) -> None:
        """The hook on the call's output."""
        self.gradient = gradient.detach()
        if self.receiver is not None and not self.is_empty:
            self.receiver(self)

    def empty(self) -> None:
        """Let go of the inputs until `fill`."""
        self.sums = self._sums()
        self.args, self.kwargs, self.axes, self.targets, self.tensors, self.versions = (), {}, {}, {}, [], []
        self.is_repeated = self.is_empty = True

    def fill(self, again: RecordedCall) -> None:
        """Take the inputs of the same call, made again; they must be the same."""
        if again._sums() != self.sums:
            expected = "a checkpointed region that computes the same values when it runs again"
            got = f"other inputs of {name_of(self.func)} with {names_in(again)}"
            refuse(expected, got, "do not change what the region reads between forward() and private.step")
        self.args, self.kwargs, self.axes, self.targets = again.args, again.kwargs, again.axes, again.targets
        self.tensors, self.versions, self.is_empty = again.tensors, again.versions, False
        if self.gradient is not None and self.receiver is not None:
            self.receiver(self)

    def _sums(self) -> list[str]:
        """The sum and the length of every input but parameters: they are the same if the same call is made again.

        NaN equals NaN here. Parameters are compared by themselves (model/state.py).
        """
        inputs = [t.detach() for t in self.tensors if id(t) not in self.targets and not t.is_complex()]
        return [str(_sum_and_length(t)) for t in inputs]

    def forget(self, *, comes_again: bool = False) -> None:
        """Let go of all tensors but the parameters: the parts have what they need.

        If another backward pass comes, the inputs stay, unless they are computed again in it.
        """
        self.gradient = None
        if not comes_again or self.is_repeated:
            self.args, self.kwargs, self.axes, self.statistics = (), {}, {}, None
            self.tensors, self.versions, self.is_empty = [], [], self.is_repeated

    def record_tensors(self) -> list[Tensor]:
        """The arguments that carry records."""
        return [tensor for tensor in self.tensors if id(tensor) in self.axes]

    def wants(self, argument: Tensor | None) -> bool:
        return argument is not None and id(argument) in self.targets

    def by_record(self, tensor: Tensor) -> Tensor:
        """Shape [N, ...], the record axis in front."""
        axis = self.axes.get(id(tensor))
        if axis is None:
            raise UnfitError
        return axis.split(tensor, self.records)

    @property
    def gradient_by_record(self) -> Tensor:
        assert self.gradient is not None
        return self.output_axis.split(self.gradient, self.records)

    def rows(self, tensor: Tensor) -> Tensor:
        """Shape [N, P, features], in the order of `gradient_rows`."""
        if self.axes.get(id(tensor)) != self.output_axis:
            raise UnfitError
        return rows_of(self.by_record(tensor))

    @property
    def gradient_rows(self) -> Tensor:
        return rows_of(self.gradient_by_record)

    def unchanged(self) -> None:
        """Refuse if an argument was written to after the call: its record would be of another value."""
        if [tensor._version for tensor in self.tensors] != self.versions:
            expected = "inputs of a parametrised call to stay as they were until the backward pass"
            got = f"an input of {name_of(self.func)} with {names_in(self)} changed in place"
            refuse(expected, got, "replace the in-place operation (for example ReLU(inplace=True) on a reused tensor)")


def _sum_and_length(tensor: Tensor) -> tuple[float, float]:
    """In float64, some numbers at a time: a wide copy of all would take twice the memory of the tensor."""
    sums, lengths = [], []
    for some in tensor.reshape(-1).split(_WIDENED):
        wide = some.double()
        sums.append(float(wide.sum()))
        lengths.append(float(torch.linalg.vector_norm(wide)))
    return sum(sums), math.hypot(*lengths)


def names_in(use: RecordedCall) -> str:
    return ", ".join(target.name for target in use.targets.values())


def rows_of(by_record: Tensor) -> Tensor:
    if by_record.dim() == 3:
        return by_record
    return by_record.reshape(by_record.shape[0], -1, by_record.shape[-1])


def summed_to(by_record: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum [N, ...] over all that was broadcast from `shape`."""
    missing = by_record.dim() - 1 - len(shape)
    summed = by_record.sum(tuple(range(1, 1 + missing))) if missing else by_record
    spread = [1 + i for i, size in enumerate(shape) if size == 1 and summed.shape[1 + i] != 1]
    return summed.sum(spread, keepdim=True) if spread else summed
