"""From recorded calls to the parts of each parameter, as the backward pass reaches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.engine.factors.linear import OneHot, Outer
from discreet.engine.factors.parts import FormedGradients, Leaf
from discreet.engine.factors.recorded_call import RecordedCall
from discreet.engine.factors.rules import parts_of, simple_parts
from discreet.engine.trace.capture import Tracked

Settle = Callable[[str, list[Leaf]], None]
"""Takes all parts of one parameter, by its name, as soon as its last use is there."""


def let_go(name: str, parts: list[Leaf]) -> None:
    """A `Settle` for rehearsals: what made-up records leave is never summed."""


Gather = Callable[[Sequence[Tensor]], None]
"""Fills the memory of sharded parameters, which some calls are repeated with."""


class Collector:
    """Turns uses into parts: simple ones as the backward pass reaches them, the rest at its end.

    What a use held is let go of as soon as its parts are made: what `settle` makes of them takes the place of
    activations, instead of standing beside them. If the pass `comes_again`, uses outside of checkpointed regions keep
    their inputs.
    """

    def __init__(
        self, uses: Iterable[RecordedCall], settle: Settle, gather: Gather | None = None, *, comes_again: bool = False
    ) -> None:
        self._uses, self._settle, self._gather, self._comes_again = list(uses), settle, gather, comes_again
        self._parts: dict[str, list[Leaf]] = {name: [] for use in self._uses for name in use.roots}
        self._awaited = Counter(name for use in self._uses for name in use.roots)

    def watch(self) -> None:
        """Take each use at the moment when its gradient comes."""
        for use in self._uses:
            use.gradient = None  # a backward pass of the caller's own may have left one
            use.receiver = self._take

    def finish(self) -> None:
        """Settle what waited for the end of the backward pass; a parameter that no gradient reached is left out."""
        for use in self._uses:
            use.receiver = None
            if use.gradient is not None:
                if self._gather is not None:
                    self._gather(use.tensors)
                for target, part in parts_of(use):
                    for root, pulled in pull_back(target, part):
                        self._parts[root.name].append(pulled)
                use.forget(comes_again=self._comes_again)
        for name, parts in self._parts.items():
            if parts:
                self._parts[name] = []
                self._settle(name, parts)

    def _take(self, use: RecordedCall) -> None:
        if torch.is_grad_enabled():  # a checkpointed region that runs again; elsewhere the backward pass turned it off
            with torch.no_grad():
                self._take(use)
            return
        if any(target.parents for target in use.targets.values()):
            return  # pulled back through autograd, which is busy now
        parts = simple_parts(use)
        if parts is None:
            return
        use.forget(comes_again=self._comes_again)
        for target, part in parts:
            self._parts[target.name].append(part)
        del parts
        for name in use.roots:
            self._awaited[name] -= 1
            if self._awaited[name] == 0:
                whole, self._parts[name] = self._parts[name], []
                self._settle(name, whole)


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
