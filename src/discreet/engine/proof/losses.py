"""Whether each per-sample loss depends on its own record alone, and not on how many there are."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from discreet.core.check import require
from discreet.engine.recorder import Recorder
from discreet.engine.trace.capture import ForwardTrace, RecordAxis


def check_losses(losses: Tensor, script: ForwardTrace, outputs: Sequence[Tensor], recorder: Recorder) -> bool:
    """Refuse losses that mix records; True if the gradients were clear enough to tell.

    Gradients of some of the losses must be exactly zero on the records of the others: once for every bit of
    the record's number, so that every pair of records is told apart, from the losses to the model's outputs;
    and once, even against odd, down to the model's first layer, which finds losses on hidden values.
    Losses that compare records without a gradient (sorting, detached means) do not show here.
    """
    records = losses.shape[0]
    if records < 2:
        return False
    clear = True
    reached = [(output, axis) for output, axis in zip(outputs, script.outputs, strict=True) if axis is not None]
    for chosen in _splits(records, losses.device) if reached else ():
        grads = torch.autograd.grad(
            losses,
            [output for output, _ in reached],
            grad_outputs=chosen.to(losses.dtype),
            retain_graph=True,
            allow_unused=True,
        )
        for grad, (_, axis) in zip(grads, reached, strict=True):
            clear &= grad is None or _silent(grad, axis, ~chosen)
    even = torch.arange(records, device=losses.device) % 2 == 0
    for chosen in (even, ~even):
        for use in recorder.uses:
            use.gradient = None
        torch.autograd.grad(losses, recorder.anchor, chosen.to(losses.dtype), retain_graph=True, allow_unused=True)
        for use in recorder.uses:
            clear &= use.gradient is None or _silent(use.gradient, use.output_axis, ~chosen)
    return clear


_SCALINGS = ("DivBackward0", "DivBackward2", "MulBackward0")
_FARTHEST = 1000  # nodes between losses and outputs; few have ten


def check_scale(losses: Tensor, script: ForwardTrace, ends: set[Any]) -> None:
    """Refuse losses divided by the number of records, which is private: one record more would move all others.

    A factor of the losses that is this number proves nothing, one that follows it from batch to batch does: being
    it for two sizes, or proportional to it for three. `ends` are the nodes of the model's outputs.
    """
    rows = losses.shape[0]
    if rows < 2 or rows in script.factors or len(script.factors) == 3:
        return
    script.factors[rows] = tuple(_factors(losses, ends))
    sizes = list(script.factors)
    require(
        not any(_follows(factors, sizes) for factors in zip(*script.factors.values(), strict=False)),
        "losses that do not know how many records were drawn",
        "losses divided by the size of the batch; if steps were released before this one, their certificate does not "
        "hold",
        "leave the division out: sums are divided by the public `batch`",
    )


def _follows(factors: Sequence[float], sizes: Sequence[int]) -> bool:
    products = [factor * size for factor, size in zip(factors, sizes, strict=True)]
    ratios = [factor / size for factor, size in zip(factors, sizes, strict=True)]
    if len(sizes) == 2:
        return _all_near(products, 1.0) or _all_near(ratios, 1.0)
    return len(sizes) == 3 and (_all_near(products, products[0]) or _all_near(ratios, ratios[0]))


def _all_near(values: Sequence[float], target: float) -> bool:
    return target != 0 and all(math.isclose(value, target, rel_tol=1e-6) for value in values)


def _factors(losses: Tensor, ends: set[Any]) -> Iterator[float]:
    """The numbers by which losses were multiplied or divided on the way from the outputs, in a fixed order."""
    ahead, seen = deque([losses.grad_fn]), set(ends)
    while ahead and len(seen) < _FARTHEST:
        node = ahead.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        ahead.extend(parent for parent, _ in node.next_functions)
        if type(node).__name__ in _SCALINGS:
            for held in (node._saved_self, node._saved_other):  # type: ignore[attr-defined]
                if held is not None and held.numel() == 1 and not held.is_complex():
                    yield float(held)


def _splits(records: int, device: torch.device) -> Iterator[Tensor]:
    """Halves of the records by each bit of their number, and the other halves."""
    numbers = torch.arange(records, device=device)
    for bit in range((records - 1).bit_length()):
        chosen = (numbers >> bit) % 2 == 1
        yield chosen
        yield ~chosen


def _silent(gradient: Tensor, axis: RecordAxis, others_N: Tensor) -> bool:
    """Refuse a gradient on other records; False where 0 * inf hides whether there is one."""
    moved = axis.split(gradient, others_N.shape[0])[others_N]
    require(
        not bool((moved.isfinite() & (moved != 0)).any()),
        "each loss to depend on its own record only",
        "a loss that moves with other records' outputs",
        "do not normalise or compare over the batch; divide by a number of the record itself",
    )
    return bool(moved.isfinite().all())
