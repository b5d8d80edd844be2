"""The gradient of a `torch.autograd.Function` of the user's own: its backward pass is watched like the rest.

Its forward pass consists of watched calls already. Its backward pass is run once, on gradients of our own, before the
losses are taken: what goes back to one record must come from that record alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from discreet.core.check import refuse
from discreet.engine.proof.lineage import MIXED, PUBLIC, Blame, Lineage, Origin
from discreet.engine.trace.capture import RecordAxis


class BackwardWatch(Protocol):
    """What runs a function under the watch."""

    def watched(
        self, place: RecordAxis | Lineage, tensors: list[Tensor]
    ) -> AbstractContextManager[Callable[[Tensor], Origin]]:
        """Inside the block, `tensors` are records along `place` and calls are watched; reading values is refused."""


def backward_of(tensor: Tensor, origin: Origin, watch: BackwardWatch) -> Origin:
    """The lineage of a tensor, with its backward pass taken into account."""
    node: Any = tensor.grad_fn
    kind: Any = type(node)
    if not issubclass(kind, BackwardCFunction) or origin.lineage in (PUBLIC, MIXED):
        return origin
    function = kind._forward_cls
    if function.__module__.startswith(("discreet.engine.", "torch.utils.checkpoint")):
        return origin  # ours keep a gradient and change nothing; the engine refuses checkpoints by name
    if function.__module__ == "torch.nn.modules._functions":
        refuse(
            "a step whose gradients autograd computes: a hook changes gradients out of sight",
            "a backward hook on a module",
            "remove register_full_backward_hook and the like; private.step bounds every record's gradient",
        )
    gradients = [_gradient(meta, tensor) for meta in node._input_metadata]
    try:
        with torch.no_grad(), watch.watched(origin.lineage, gradients) as find:
            results = function.backward(node, *gradients)
    except ValueError:
        raise
    except Exception as error:
        return _blamed(origin, function, f"its backward pass fails on other gradients ({type(error).__name__})")
    given_back = []
    for result in results if isinstance(results, tuple) else (results,):
        if isinstance(result, Tensor):
            came = find(result)
            given_back.append(came)
            is_public = came.lineage is PUBLIC and _is_harmless(came, origin)
            if not is_public and (came.lineage in (MIXED, PUBLIC) or came.lineage != origin.lineage):
                why = "the gradient that goes back to one record depends on others"
                return _blamed(origin, function, why, came.blame)
    # The calls of the backward pass are compared from batch to batch, like all others.
    parents = (origin, *given_back)
    digest = hash(tuple(parent.digest for parent in parents))
    return Origin(origin.lineage, digest, origin.clock, function.backward, None, parents, where=origin.where)


def _is_harmless(came: Origin, origin: Origin) -> bool:
    """Whether a public gradient gives every record the same."""
    return came.rows is None or (isinstance(origin.lineage, RecordAxis) and origin.lineage in came.rows.equal)


def _gradient(meta: Any, tensor: Tensor) -> Tensor:
    return torch.randn(tuple(meta.shape)).to(device=tensor.device, dtype=meta.dtype)


def _blamed(origin: Origin, function: type, why: str, inner: Blame | None = None) -> Origin:
    where = inner.where if inner is not None else ""
    blame = Blame(
        f"the backward pass of {function.__name__}",
        where,
        why if inner is None else f"{why} ({inner.call})",
        "compute each record's gradient from that record's values alone, or leave the gradient to autograd",
    )
    return Origin(MIXED, origin.digest, origin.clock, origin.func, origin.settings, origin.parents, blame)
