"""The gradient of a `torch.autograd.Function` of the user's own: its backward pass is watched while it runs.

Its forward pass consists of watched calls already. In the backward pass of the losses, what it gives back to one record
must come from that record alone, and go to a tensor that has its records in the same places, by the same calls in every
batch. Other code of the user's does not run there: hooks on nodes are refused, and so are calls of torch outside of
backward().
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol, final

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from discreet.core.check import refuse, require
from discreet.engine.proof.blame import TAMPERED, here, user_line
from discreet.engine.proof.draws.read_draws import given_as_rows
from discreet.engine.proof.forms.provable_call import tensors_of_result
from discreet.engine.proof.lineage import CUSTOM_GRAPH, MIXED, PUBLIC, Blame, Lineage, Origin, values_of
from discreet.engine.trace.capture import RecordAxis

Resume = Callable[[], AbstractContextManager[None]]


class Table(Protocol):
    """Which tensor has which lineage."""

    is_in_backward: bool

    def find(self, tensor: Tensor) -> Origin:
        """Where a tensor comes from."""

    def put(self, tensor: Tensor, origin: Origin) -> Origin:
        """Note where a tensor comes from."""

    def is_memory_unchanged(self) -> bool:
        """Whether memory that others can write to holds what it held."""


@final
class _Node:
    """One call of a function in the graph of the losses, and the origins of its outputs and of what it saved."""

    def __init__(self, node: Any, number: int) -> None:
        self.number = number  # in the order of the forward pass
        self.node, self.function = node, type(node)._forward_cls
        self.outputs: dict[int, Origin] = {}
        self.saved: list[Origin] = []


@dataclass(frozen=True)
class _Given:
    """A tensor that a function took: where it comes from, and how many axes it has."""

    origin: Origin
    axes: int

    def places(self, result: Tensor) -> set[RecordAxis | Lineage]:
        """Where the gradient of this tensor has its records; autograd sums over axes that are in front of them."""
        place = self.origin.lineage
        if isinstance(place, RecordAxis):
            return {RecordAxis(place.axis + result.dim() - self.axes, place.minor)}
        return set() if place is MIXED else {place}


class Watch(Protocol):
    """What has to know when a function of the user's is applied."""

    def applied(self, function: type, args: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        """What `run` gives, which applies a function to these arguments."""


@final
class CustomBackwards:
    """The functions of one batch."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._given: dict[int, tuple[Any, list[_Given | None]]] = {}  # by the id of a node, which is kept
        self._resume: Resume | None = None
        self._table: Table | None = None
        self._made: list[Origin] = []
        self.is_running = False  # whether a backward pass of the user's own is under way

    @property
    def has_any(self) -> bool:
        """Whether code of the user's runs in the backward pass."""
        return bool(self._nodes)

    def note(self, tensor: Tensor, origin: Origin, find: Callable[[Tensor], Origin]) -> Origin:
        """Watch the backward pass of a tensor if a function of the user's made it; the origin with that function."""
        node: Any = tensor.grad_fn
        if not issubclass(type(node), BackwardCFunction) or origin.lineage is MIXED:
            return origin
        function = type(node)._forward_cls
        if _is_own(function):
            return origin
        if function is torch.utils.checkpoint.CheckpointFunction:
            refuse(
                "checkpointed regions whose second run is watched",
                "torch.utils.checkpoint with use_reentrant=True, which runs the region again inside a backward pass of "
                "its own",
                "pass use_reentrant=False to torch.utils.checkpoint (gradient_checkpointing_kwargs of transformers)",
            )
        if function.__module__ == "torch.nn.modules._functions":
            refuse(
                "a step whose gradients autograd computes: a hook changes gradients out of sight",
                "a backward hook on a module",
                "remove register_full_backward_hook and the like; private.step bounds every record's gradient",
            )
        if origin.lineage is PUBLIC:
            return Origin(MIXED, origin.digest, function, blame=here(_on_weights(function)))
        known = self._nodes.get(id(node))
        if known is None:
            known = self._nodes[id(node)] = _Node(node, len(self._nodes))
            node.apply = partial(self._run, known)  # what autograd calls, on this node alone
            known.saved = [values_of(find(one)) for one in node.saved_tensors]
        known.outputs[tensor.output_nr] = origin
        made_by = hash((origin.digest, function.backward)), function.backward, None, (origin,)
        return Origin(origin.lineage, *made_by, where=origin.where, output=CUSTOM_GRAPH)

    def applied(
        self, function: type, args: tuple[Any, ...], run: Callable[[], Any], find: Callable[[Tensor], Origin]
    ) -> Any:
        """Apply a function, and remember what it took, by the node that it has put on its results."""
        if _is_own(function):
            return run()
        with torch._C.DisableTorchFunction():
            given = [_Given(find(one), one.dim()) if isinstance(one, Tensor) else None for one in args]
        result = run()
        with torch._C.DisableTorchFunction():
            for one in tensors_of_result(result):
                node: Any = one.grad_fn
                if node is not None and getattr(type(node), "_forward_cls", None) is not function:
                    _refuse_view(function)
                self._given[id(node)] = node, given
        return result

    def begin(self, resume: Resume, table: Table) -> None:
        """The backward pass of the losses starts; `resume` watches calls inside its block."""
        self._resume, self._table, self._made = resume, table, []

    def end(self) -> None:
        self._resume = None

    def forget(self) -> None:
        for known in self._nodes.values():
            vars(known.node).pop("apply", None)
        self._nodes, self._given, self._made, self._resume = {}, {}, [], None

    def made(self) -> Origin:
        """All that functions gave back."""
        digest = hash(tuple(one.digest for one in self._made))
        return Origin(PUBLIC, digest, func=torch.autograd.backward, parents=tuple(self._made))

    def _run(self, known: _Node, *gradients: Tensor | None) -> Any:
        """The backward pass of one function."""
        run = type(known.node).apply
        if self._resume is None or self._table is None:
            return run(known.node, *gradients)  # a backward pass of the user's own
        first = next(iter(known.outputs.values()))
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                place = known.outputs.get(index, first).lineage
                self._table.put(gradient, Origin(place, hash(name := ("gradient", known.number, index)), settings=name))
        saved = known.node.saved_tensors  # unpacked again inside: those are found by the memory of these
        for one, origin in zip(saved, known.saved, strict=True):
            self._table.put(one, origin)
        self.is_running = self._table.is_in_backward = True
        try:
            with self._resume():
                results = run(known.node, *gradients)
        finally:
            self.is_running = self._table.is_in_backward = False
        require(self._table.is_memory_unchanged(), *TAMPERED)  # before other nodes read it, and it is restored
        del saved
        places = {origin.lineage for origin in known.outputs.values()}
        _, given = self._given.get(id(known.node), (None, []))
        for i, result in enumerate(results if isinstance(results, tuple) else (results,)):
            came = _NOTHING if result is None else self._table.find(result)
            self._made.append(given_as_rows(came, places))
            taken = given[i] if i < len(given) and known.node.needs_input_grad[i] else None
            if result is None or taken is None or taken.origin.lineage is PUBLIC:
                self._check(known, came, places)
            else:
                self._check(known, came, taken.places(result), taken.origin.blame)
        return results

    def _check(self, known: _Node, came: Origin, places: set[RecordAxis | Lineage], blame: Blame | None = None) -> None:
        """Refuse a gradient that has its records in other places; no place is right for a tensor that mixes them."""
        is_public = came.lineage is PUBLIC and bool(places) and _is_harmless(came, places)
        if not is_public and (came.lineage in (MIXED, PUBLIC) or came.lineage not in places):
            _refuse(known.function, came.blame or blame)


def _is_own(function: type) -> bool:
    """Whether a function is this library's: these keep a gradient and change nothing."""
    return function.__module__.startswith("discreet.engine.")


_NOTHING = Origin(PUBLIC, 0)
_watches: list[Watch] = []


def watch_nodes(watch: Watch) -> None:
    """Refuse hooks on nodes of the graph, and ways from one node to others, until `unwatch_nodes`.

    The watch is told of functions that are applied.

    A function of the user's gets its own node as `ctx`. No call shows what is done with it.
    """
    _install()
    _watches.append(watch)


def unwatch_nodes(watch: Watch) -> None:
    """Undo `watch_nodes`, if it was done: Ctrl-C may come between."""
    if watch in _watches:
        _watches.remove(watch)


@cache
def _install() -> None:
    """Look at hooks on nodes and at functions, once and for all: torch's classes are slow after each change."""
    apply: Any = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

    def applied(function: Any, *args: Any, **kwargs: Any) -> Any:
        run = partial(apply, function, *args, **kwargs)
        return _watches[-1].applied(function, args, run) if _watches else run()

    torch.autograd.Function.apply = classmethod(applied)  # type: ignore[method-assign, assignment]
    register: Any = torch.autograd.Function._register_hook  # what torch calls for a hook on any node

    def checked(*args: Any) -> Any:
        _refuse_hooks()
        return register(*args)

    torch.autograd.Function._register_hook = staticmethod(checked)  # type: ignore[method-assign]
    for name in ("next_functions", "_register_hook_dict"):
        setattr(BackwardCFunction, name, property(partial(_looked_up, getattr(torch._C._FunctionBase, name))))


def _looked_up(plain: Any, node: Any) -> Any:
    _refuse_hooks()
    return plain.__get__(node, type(node))


def _refuse_hooks() -> None:
    if _watches:
        refuse(
            "a step whose gradients autograd computes: a hook on the graph changes gradients out of sight",
            f"a hook on a node of the graph, or a look at its neighbours, at {user_line()}",
            "compute the gradient in the function's backward()",
        )


def run_backward(losses: Tensor, *, comes_again: bool) -> None:
    """`losses.sum().backward()`, but as no call of torch: the watch would be off inside of it.

    comes_again  whether the graph is kept for another backward pass
    """
    given = (losses,), (torch.ones_like(losses),), comes_again, False, ()
    torch.autograd.graph._engine_run_backward(*given, allow_unreachable=True, accumulate_grad=True)


def check_caller() -> None:
    """Refuse a call in a backward pass that neither a function's backward() nor this library makes."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not _RUN_BACKWARD:
        if frame.f_code.co_filename.startswith(_OURS):
            return
        frame = frame.f_back
    refuse(
        "a backward pass that runs autograd's own code, and backward() of functions",
        f"another call of torch in it, at {user_line()}",
        "leave callbacks of the autograd engine out",
    )


_RUN_BACKWARD: Final = torch.autograd.graph._engine_run_backward.__code__
_OURS: Final = (str(Path(__file__).parents[1]) + os.sep, str(torch.utils.checkpoint.__file__))


def _on_weights(function: type) -> Blame:
    """A function on parameters alone: its backward pass runs after that of the losses, where no call is watched."""
    return Blame(
        f"{function.__name__}, an autograd.Function on parameters alone",
        "",
        "its backward pass may depend on values of the records that Python kept",
        "write it with torch functions, such as weight + (rounded - weight).detach() for a rounded weight whose "
        "gradient passes straight through",
    )


def _refuse_view(function: type) -> None:
    refuse(
        "functions whose backward pass can be watched",
        f"{function.__name__}, an autograd.Function that writes to a view of another tensor, at {user_line()}",
        "give it a tensor that is no view (h.clone()), or return a new one in place of ctx.mark_dirty",
    )


def _is_harmless(came: Origin, places: set[RecordAxis | Lineage]) -> bool:
    """Whether a public gradient gives every record the same."""
    return came.rows is None or any(isinstance(place, RecordAxis) and place in came.rows.equal for place in places)


def _refuse(function: type, inner: Blame | None) -> None:
    where = f" at {inner.where}" if inner is not None and inner.where else ""
    call = f" ({inner.call})" if inner is not None else ""
    refuse(
        "losses in which each record stands alone, call by call",
        f"the backward pass of {function.__name__}{where}: the gradient of one record depends on others{call}",
        "compute each record's gradient from that record's values alone, or leave the gradient to autograd",
    )
