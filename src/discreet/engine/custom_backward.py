"""The gradient of a `torch.autograd.Function` of the user's own: its backward pass is watched while it runs.

Its forward pass consists of watched calls already. In the backward pass of the losses, what it gives back to one record
must come from that record alone, by the same calls in every batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from discreet.core.check import refuse
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


@final
class _Node:
    """One call of a function in the graph of the losses, and the origins of its outputs and of what it saved."""

    def __init__(self, node: Any, number: int) -> None:
        self.number = number  # in the order of the forward pass
        self.node, self.function = node, type(node)._forward_cls
        self.outputs: dict[int, Origin] = {}
        self.saved: list[Origin] = []


@final
class CustomBackwards:
    """The functions of one batch."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._resume: Resume | None = None
        self._table: Table | None = None
        self._made: list[Origin] = []
        self.is_running = False  # whether a backward pass of the user's own is under way

    def note(self, tensor: Tensor, origin: Origin, find: Callable[[Tensor], Origin]) -> Origin:
        """Watch the backward pass of a tensor if a function of the user's made it; the origin with that function."""
        node: Any = tensor.grad_fn
        if not issubclass(type(node), BackwardCFunction) or origin.lineage in (PUBLIC, MIXED):
            return origin
        function = type(node)._forward_cls
        if function.__module__.startswith(("discreet.engine.", "torch.utils.checkpoint")):
            return origin  # ours keep a gradient and change nothing; the engine refuses checkpoints by name
        if function.__module__ == "torch.nn.modules._functions":
            refuse(
                "a step whose gradients autograd computes: a hook changes gradients out of sight",
                "a backward hook on a module",
                "remove register_full_backward_hook and the like; private.step bounds every record's gradient",
            )
        known = self._nodes.get(id(node))
        if known is None:
            known = self._nodes[id(node)] = _Node(node, len(self._nodes))
            node.apply = partial(self._run, known)  # what autograd calls, on this node alone
            known.saved = [values_of(find(one)) for one in node.saved_tensors]
        known.outputs[tensor.output_nr] = origin
        made_by = hash((origin.digest, function.__qualname__)), origin.clock, function.backward, None, (origin,)
        return Origin(origin.lineage, *made_by, where=origin.where, output=CUSTOM_GRAPH)

    def begin(self, resume: Resume, table: Table) -> None:
        """The backward pass of the losses starts; `resume` watches calls inside its block."""
        self._resume, self._table, self._made = resume, table, []

    def end(self) -> None:
        self._resume = None

    def forget(self) -> None:
        for known in self._nodes.values():
            vars(known.node).pop("apply", None)
        self._nodes, self._made, self._resume = {}, [], None

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
                self._table.put(gradient, Origin(place, hash(("gradient", known.number, index))))
        saved = known.node.saved_tensors  # unpacked again inside: those are found by the memory of these
        for one, origin in zip(saved, known.saved, strict=True):
            self._table.put(one, origin)
        self.is_running = self._table.is_in_backward = True
        try:
            with self._resume():
                results = run(known.node, *gradients)
        finally:
            self.is_running = self._table.is_in_backward = False
        del saved
        places = {origin.lineage for origin in known.outputs.values()}
        for result in results if isinstance(results, tuple) else (results,):
            came = _NOTHING if result is None else self._table.find(result)
            self._made.append(came)
            is_public = came.lineage is PUBLIC and _is_harmless(came, places)
            if not is_public and (came.lineage in (MIXED, PUBLIC) or came.lineage not in places):
                _refuse(known.function, came.blame)
        return results


_NOTHING = Origin(PUBLIC, 0)


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
