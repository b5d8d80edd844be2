"""Masks that are drawn from a public stream, or ranked by released gradients."""

import functools
import math

import torch
from torch import Tensor

from discreet.core.streams import Stream
from discreet.engine.active import Active, from_indices
from discreet.engine.layout import Layout, Mask
from discreet.methods.random_freeze.selection import MaskKey
from discreet.stages.values import Released, StepContext

EPOCH, ACTIVE, TOTAL, VARIANCE = "ranked.epoch", "ranked.active", "ranked.total", "ranked.variance"


def regenerate(key: MaskKey, layout: Layout, device: torch.device | str = "cpu") -> Mask:
    """Regenerate the mask of a key."""
    stream = Stream(key.stream, name="mask", replayable=True)
    active = torch.from_numpy(stream.subset(key.active, of=key.granularity.total_units(layout)))
    return Mask(tuple(key.granularity.pieces(active.to(device), layout)), key)


# Caches the current mask, so that it is generated once per epoch and not at every step.
cached_mask = functools.lru_cache(maxsize=1)(regenerate)


def rank(context: StepContext, count: int) -> Mask:
    """The mask of this epoch: the `count` coordinates with the largest released sums in the previous epoch.

    It depends on `context.memory` and the public stream only.
    """
    memory = context.memory
    if ACTIVE not in memory or int(memory[EPOCH]) != context.epoch:
        scores = _scores(context).abs()
        memory[ACTIVE] = scores.topk(count).indices.sort().values
        memory[EPOCH] = torch.tensor(context.epoch)
        for name in (TOTAL, VARIANCE):
            memory.pop(name, None)
    return _ranked(memory[ACTIVE].to(context.device), context.layout)


# Caches the mask object of the current epoch, which is keyed by its tensor of indices.
_ranked = functools.lru_cache(maxsize=1)(from_indices)


def _scores(context: StepContext) -> Tensor:
    """The released sums; on frozen coordinates, noise with the variance that releases would have had.

    The noise of all steps of an epoch is drawn as one normal variable with their total variance.
    """
    memory, size = context.memory, context.layout.size
    public = context.streams.mask.at(context.epoch)
    if TOTAL not in memory:  # a resumed run without releases of the previous epoch
        return public.normal(size, device=context.device)
    scores = memory[TOTAL].clone()
    if ACTIVE in memory:
        frozen = torch.ones(size, dtype=torch.bool, device=scores.device)
        frozen[memory[ACTIVE].to(scores.device)] = False
        noise = public.normal(int(frozen.sum()), dtype=scores.dtype, device=scores.device)
        scores[frozen] = noise * math.sqrt(float(memory[VARIANCE]))
    return scores


def remember(released: Released, std: float, context: StepContext) -> None:
    """Add a release to the sums of the next ranking; `std` is the standard deviation of the noise per coordinate."""
    memory, values = context.memory, released.active
    if TOTAL not in memory:
        memory[TOTAL] = values.new_zeros(released.layout.size)
        memory[VARIANCE] = torch.zeros((), dtype=torch.float64)
    total = memory[TOTAL].to(values.device)
    if released.mask is None:
        total += values
    else:
        total.index_add_(0, Active.of(released.mask, released.layout, values.device).whole, values)
    memory[TOTAL] = total
    memory[VARIANCE] = memory[VARIANCE] + std**2
