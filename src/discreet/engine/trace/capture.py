"""Watching a forward pass: every call that involves a trainable parameter, whoever makes it.

A `CallWatch` is a torch function mode. While it is on, a call with a tracked tensor (a parameter, or a tensor
derived from parameters alone) goes to its `Follower`: the probe, which learns the pass on random inputs, or
the recorder, which follows what the probe learned. Calls are seen at the level of functions, so it does not
matter which module, or no module, made them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from discreet.core.check import refuse, require
from discreet.engine.trace.containers import attributes_of, rebuilt
from discreet.engine.trace.library_questions import public_answer


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
        if self.axis == 0 and tensor.shape[0] == records:  # nearly always
            return tensor.unsqueeze(1)
        sizes = (-1, records) if self.minor else (records, -1)
        split: Tensor = tensor.unflatten(self.axis, sizes).movedim(self.axis + int(self.minor), 0)
        return split


@dataclass(frozen=True, eq=False)
class Tracked:
    """A parameter, or a tensor computed from parameters alone (`made_by` says how)."""

    name: str
    tensor: Tensor
    parents: tuple[Tracked, ...] = ()
    made_by: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def roots(self) -> tuple[Tracked, ...]:
        """The parameters below, each once."""
        if not self.parents:
            return (self,)
        return tuple(dict.fromkeys(root for parent in self.parents for root in parent.roots))


@dataclass(frozen=True)
class TracedStep:
    """A call that makes something of the records without a parameter, and its settings (settings.py)."""

    func: Callable[..., Any]
    settings: tuple[Any, ...]

    @property
    def where(self) -> str:
        return f"{name_of(self.func)} on the records"


@dataclass(frozen=True)
class Call:
    """What the probe learned about one call: what it involves, its settings, and where the record lies."""

    func: Callable[..., Any]
    names: tuple[str, ...]
    settings: tuple[Any, ...]
    derives: bool
    axes: tuple[RecordAxis | None, ...] = ()
    output: RecordAxis | None = None

    @property
    def where(self) -> str:
        return f"{name_of(self.func)} with {', '.join(self.names)}"


@dataclass
class ForwardTrace:
    """What a forward pass does on every batch of one shape.

    batched  for each input tensor, whether its first axis is the record
    calls    the calls that involve parameters, in order
    path     the other calls that make something of the records, in order
    outputs  the record axis of each differentiable output
    saved_bytes, kept_bytes  what autograd saves, and what the engine keeps, for each record
    largest                  elements of the largest gradient of one parameter that is kept for each record
    """

    batched: tuple[bool, ...]
    calls: list[Call]
    path: list[TracedStep]
    outputs: list[RecordAxis | None]
    saved_bytes: float = 0.0
    kept_bytes: float = 0.0
    largest: int = 0

    def records_in(self, inputs: Any) -> list[Tensor]:
        """The input tensors that carry records."""
        return [tensor for tensor, own in zip(tensors_in(inputs), self.batched, strict=True) if own]


def track_derived(
    tracked: dict[int, Tracked], func: Callable[..., Any], args: Any, kwargs: Any, result: Any, found: Sequence[Tracked]
) -> None:
    """Remember the differentiable outputs of a call on parameters alone."""
    for tensor in tensors_in(result):
        if tensor.requires_grad and id(tensor) not in tracked:
            name = f"{name_of(func)}#{len(tracked)}({', '.join(parent.name for parent in found)})"
            tracked[id(tensor)] = Tracked(name, tensor, tuple(found), func, tuple(args), dict(kwargs))


class FollowedCall(Protocol):
    """A call that comes again, and where it last stood: the script, and the place on its path, or among its calls with
    parameters; None for nowhere."""

    followed: tuple[ForwardTrace, int] | None
    used: tuple[ForwardTrace, int] | None


class Follower(Protocol):
    """What a `CallWatch` hands its calls to."""

    tracked: dict[int, Tracked]

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        """A call with tracked tensors among its arguments."""

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """A call without, or one that keeps no gradient."""

    def has_records(self, tensor: Tensor) -> bool:
        """Whether a tensor of the pass carries records."""


class Marks:
    """Which tensors of a pass carry records: its inputs and whatever was computed from them."""

    def __init__(self, tracked: dict[int, Tracked], inputs: Iterable[Tensor]) -> None:
        self._tracked = tracked
        self.marked: dict[int, weakref.ref[Tensor]] = {}
        self.add(inputs)

    def add(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if not tensor.requires_grad:  # what needs a gradient shows it by itself
                self.marked[id(tensor)] = weakref.ref(tensor)

    def on(self, tensors: Iterable[Tensor]) -> bool:
        """Whether any of the tensors carries records."""
        for tensor in tensors:
            if id(tensor) not in self._tracked if tensor.requires_grad else self._is_marked(tensor):
                return True
        return False

    def follow(self, func: Callable[..., Any], args: Any, tensors: list[Tensor], result: Any) -> bool:
        """Mark what a call on records made; True if it made something, False for shapes and the like."""
        if not self.on(tensors):
            return False
        made = [result] if type(result) is Tensor else tensors_in(result)
        self.add(made)
        if func is Tensor.__setitem__:
            self.add(args[:1])
            return True
        return bool(made)

    def _is_marked(self, tensor: Tensor) -> bool:
        reference = self.marked.get(id(tensor))
        return reference is not None and reference() is tensor


DATA_GET: Final = Tensor.data.__get__  # type: ignore[attr-defined]
SAME: Final[dict[Any, Any]] = {
    DATA_GET: Tensor.detach,  # writes are counted
    getattr(Tensor, "requires_grad").__set__: Tensor.requires_grad_,  # noqa: B009, it gives the tensor back
}
"""Functions that are called in place of others, since they show what they do."""
_BRANCHES = (Tensor, tuple, list, dict)


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors of nested arguments, in order.

    >>> len(tensors_in((torch.zeros(1), [torch.zeros(1), 3], {"a": torch.zeros(1)})))
    3
    """
    if isinstance(tree, Tensor):
        return [tree]
    found: list[Tensor] = []
    if isinstance(tree, (tuple, list, dict)):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            if isinstance(branch, Tensor):
                found.append(branch)
            elif isinstance(branch, _BRANCHES):
                found += tensors_in(branch)
    return found


def tensors_of_call(args: Any, kwargs: Any) -> list[Tensor]:
    """`tensors_in((args, kwargs))`, faster."""
    found = tensors_in(args)
    return found + tensors_in(kwargs) if kwargs else found


def replace(tree: Any, swap: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor swapped."""
    if isinstance(tree, Tensor):
        return swap(tree)
    if isinstance(tree, dict):
        return {key: replace(branch, swap) for key, branch in tree.items()}
    if not isinstance(tree, (tuple, list)) or isinstance(tree, torch.Size):
        return tree
    branches = [replace(branch, swap) if isinstance(branch, _BRANCHES) else branch for branch in tree]
    return type(tree)(branches) if type(tree) in (tuple, list) else rebuilt(tree, branches, attributes_of(tree))


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


class CallWatch(TorchFunctionMode):
    """Sees every torch call of a forward pass; composite calls are taken apart before they are followed."""

    def __init__(
        self,
        follower: Follower,
        decompositions: dict[Callable[..., Any], Callable[..., Any]],
        forbidden: dict[Callable[..., Any], Callable[..., None]],
        around: TorchFunctionMode | None = None,
    ) -> None:
        """`around` is the mode that hands its calls to `handle`, if this one is not on the stack itself."""
        super().__init__()
        self._follower, self._decompositions, self._forbidden = follower, decompositions, forbidden
        self._around = around  # a mode that refers to itself would hold all that it saw until garbage is collected

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.handle(func, args, kwargs or {})

    def handle(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one call of the pass."""
        func = SAME.get(func, func)
        answer = public_answer(func)
        if answer is not None and any(map(self._follower.has_records, tensors_in(args))):
            return answer  # public tensors have an answer of their own
        if func in self._forbidden:
            self._forbidden[func](self._follower.has_records, *args, **kwargs)
        tensors = tensors_of_call(args, kwargs)
        known = self._follower.tracked if torch.is_grad_enabled() else {}
        found = [known[id(tensor)] for tensor in tensors if id(tensor) in known]
        if not found:
            return self._follower.other(func, args, kwargs, tensors)
        if func in self._decompositions:
            with self._around or self:
                result = self._decompositions[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        if not _is_in_place(func):
            return self._follower.call(func, args, kwargs, found)
        if args and id(args[0]) in known:
            return self._in_derived(func, args, kwargs, found)
        require(
            func in IN_PLACE,
            "a call that makes a new tensor",
            f"the in-place call {name_of(func)} with parameter {found[0].name}",
            "use torch.where, torch.cat or an ordinary expression instead of writing into a tensor; for speech models "
            "of transformers, apply_spec_augment=False",
        )
        return self._in_place(func, args, kwargs, found)

    def _in_derived(self, func: Any, args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        """Write into what was derived from parameters alone: autograd changes its graph, and that of its views.

        Calls on it that came before are refused when their gradients are taken, as an input of theirs has changed.
        """
        target, tracked = args[0], self._follower.tracked
        if not tracked[id(target)].parents or any(map(self._follower.has_records, tensors_of_call(args, kwargs))):
            refuse(
                "no in-place change of a parameter, and of what is computed from parameters none by records",
                f"{name_of(func)} on {found[0].name}",
                "compute a new tensor instead",
            )
        result = self._follower.call(func, args, kwargs, found)
        with torch._C.DisableTorchFunction():
            memory = target.untyped_storage()._cdata
            views = [one for one in tracked.values() if one.tensor.untyped_storage()._cdata == memory]
        for one in views:
            tracked[id(one.tensor)] = Tracked(one.name, one.tensor, (one, *found), func, tuple(args), dict(kwargs))
        return result

    def _in_place(self, func: Any, args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        """x += p as x.copy_(x + p): the use is recorded on the copy, aliases of x still see the change."""
        target, *rest = args
        result = self._follower.call(IN_PLACE[func], (target.clone(), *rest), kwargs, found)
        return target.copy_(result)


def name_of(func: Callable[..., Any]) -> str:
    """A readable name of a torch function."""
    name = getattr(func, "__name__", repr(func))
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return str(name)


def bare_name(func: Callable[..., Any]) -> str:
    """The name of a torch function without the marks of its forms: `roll` for torch.ops.aten.roll.default and roll_.

    >>> bare_name(torch.ops.aten.roll.default), bare_name(Tensor.add_)
    ('roll', 'add')
    """
    return name_of(func).partition(".")[0].strip("_")


def _is_in_place(func: Callable[..., Any]) -> bool:
    """Whether a function writes to its first argument, by its name."""
    name = name_of(func)
    if name in ("__index__", "__int__", "__invert__", "requires_grad_", "retain_grad_"):
        return False
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
