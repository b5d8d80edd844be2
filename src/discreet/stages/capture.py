"""Watching a forward pass: every call that involves a trainable parameter, whoever makes it.

A `Watch` is a torch function mode. While it is on, a call with a tracked tensor (a parameter, or a tensor
derived from parameters alone) goes to its `Follower`: the probe, which learns the pass on random inputs, or
the recorder, which follows what the probe learned. Calls are seen at the level of functions, so it does not
matter which module, or no module, made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from discreet.core.check import refuse


@dataclass(frozen=True)
class RecordAxis:
    """Where the record lies in a tensor: an axis of size N * F, the F entries of a record side by side,
    or F blocks of all records (`minor`)."""

    axis: int
    minor: bool = False

    def split(self, tensor: Tensor, records: int) -> Tensor:
        """Shape [N, ...]: the record first, the axis reduced to the F entries of one record.

        >>> RecordAxis(1).split(torch.zeros(5, 6, 4), records=3).shape
        torch.Size([3, 5, 2, 4])
        """
        if self.minor:
            return tensor.unflatten(self.axis, (-1, records)).movedim(self.axis + 1, 0)
        return tensor.unflatten(self.axis, (records, -1)).movedim(self.axis, 0)


@dataclass(frozen=True, eq=False)
class Tracked:
    """A parameter, or a tensor computed from parameters alone (`made_by` says how)."""

    name: str
    tensor: Tensor
    parents: tuple[Tracked, ...] = ()
    made_by: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()

    @property
    def roots(self) -> tuple[Tracked, ...]:
        """The parameters below, each once."""
        if not self.parents:
            return (self,)
        return tuple(dict.fromkeys(root for parent in self.parents for root in parent.roots))


@dataclass(frozen=True)
class Call:
    """What the probe learned about one call: what it involves, and where the record lies."""

    func: Callable[..., Any]
    names: tuple[str, ...]
    derives: bool
    axes: tuple[RecordAxis | None, ...] = ()
    output: RecordAxis | None = None


class Follower(Protocol):
    """What a `Watch` hands its calls to."""

    tracked: dict[int, Tracked]

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        """A call with tracked tensors among its arguments."""

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call without."""


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested arguments, in order.

    >>> len(list(tensors_in((torch.zeros(1), [torch.zeros(1), 3], {"a": torch.zeros(1)}))))
    3
    """
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for branch in tree:
            yield from tensors_in(branch)
    elif isinstance(tree, dict):
        for branch in tree.values():
            yield from tensors_in(branch)


def replace(tree: Any, swap: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor swapped."""
    if isinstance(tree, Tensor):
        return swap(tree)
    if isinstance(tree, tuple) and type(tree) is not tuple:
        return type(tree)(*(replace(branch, swap) for branch in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(replace(branch, swap) for branch in tree)
    if isinstance(tree, dict):
        return {key: replace(branch, swap) for key, branch in tree.items()}
    return tree


IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.add_: torch.add,
    Tensor.__iadd__: torch.add,
    Tensor.mul_: torch.mul,
    Tensor.__imul__: torch.mul,
    Tensor.sub_: torch.sub,
    Tensor.__isub__: torch.sub,
    Tensor.div_: torch.div,
    Tensor.__itruediv__: torch.div,
}


class Watch(TorchFunctionMode):
    """Sees every torch call of a forward pass; composite calls are taken apart before they are followed."""

    def __init__(
        self,
        follower: Follower,
        decompositions: dict[Callable[..., Any], Callable[..., Any]],
        forbidden: dict[Callable[..., Any], Callable[..., None]],
    ) -> None:
        super().__init__()
        self._follower, self._decompositions, self._forbidden = follower, decompositions, forbidden

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._forbidden:
            self._forbidden[func](*args, **kwargs)
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        known = self._follower.tracked
        found = [known[id(t)] for t in tensors_in((args, kwargs)) if id(t) in known]
        if not found:
            return self._follower.other(func, args, kwargs)
        if func in self._decompositions:
            with self:
                return self._decompositions[func](*args, **kwargs)
        if func in IN_PLACE:
            return self._in_place(func, args, kwargs, found)
        _refuse_other_in_place(func, args, found)
        return self._follower.call(func, args, kwargs, found)

    def _in_place(self, func: Any, args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        """x += p as x.copy_(x + p): the use is recorded on the copy, aliases of x still see the change."""
        target, *rest = args
        if id(target) in self._follower.tracked:
            refuse(
                "no in-place change of a parameter in the forward pass",
                f"{name_of(func)} on {found[0].name}",
                "compute a new tensor instead",
            )
        result = self._follower.call(IN_PLACE[func], (target.clone(), *rest), kwargs, found)
        return target.copy_(result)


def name_of(func: Callable[..., Any]) -> str:
    """A readable name of a torch function."""
    name = getattr(func, "__name__", repr(func))
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return str(name)


def _refuse_other_in_place(func: Callable[..., Any], args: Any, found: list[Tracked]) -> None:
    name = name_of(func)
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
        if name in ("__index__", "__int__", "__invert__", "requires_grad_", "retain_grad_"):
            return
        refuse(
            "a call that makes a new tensor",
            f"the in-place call {name} with parameter {found[0].name}",
            "use torch.where, torch.cat or an ordinary expression instead of writing into a tensor",
        )
