"""The rules of normalisations: what scales and shifts a value that is normal already (rules.py says what a rule is)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.engine.factors.parts import FormedGradients, widen
from discreet.engine.factors.recorded_call import Parts, RecordedCall, Rule, summed_to
from discreet.engine.trace.capture import RecordAxis


def _affine(use: RecordedCall, plain: Tensor, weight: Tensor | None, bias: Tensor | None, axis: int | None) -> Parts:
    """weight * plain + bias along the channels (`axis`) or over the trailing shape (None)."""
    for argument, product in ((weight, plain), (bias, None)):
        if argument is None or not use.wants(argument):
            continue
        gradient = widen(use.gradient_by_record)
        if product is not None:
            gradient = gradient * use.output_axis.split(product, use.records)
        if axis is not None:  # [N, F, C, ...] -> [N, ..., C], the channels last
            gradient = gradient.movedim(1 + axis, -1)
        yield argument, FormedGradients(summed_to(gradient, argument.shape))


def _layer_norm(
    use: RecordedCall,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Parts:
    return _affine(use, F.layer_norm(input, normalized_shape, eps=eps), weight, bias, None)


def _rms_norm(
    use: RecordedCall,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Parts:
    return _affine(use, F.rms_norm(input, list(normalized_shape), eps=eps), weight, None, None)


def _group_norm(
    use: RecordedCall,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Parts:
    gradient = use.gradient
    fits = use.output_axis == RecordAxis(0) == use.axes.get(id(input)) and input.is_contiguous()
    full = input.dtype in (torch.float32, torch.float64)
    if gradient is None or use.statistics is None or not fits or not full or gradient.dtype != input.dtype:
        yield from _affine(use, F.group_norm(input, num_groups, eps=eps), weight, bias, 1)
        return
    yield from _group_norm_in_one_pass(use, input, gradient, weight, bias)


def _group_norm_in_one_pass(
    use: RecordedCall, input: Tensor, gradient: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Parts:
    """All channels of all records as the channels of one record: torch's own gradient is then per sample."""
    mean, deviation = use.statistics or (gradient, gradient)
    rows, channels = input.shape[:2]
    _, by_weight, by_bias = torch.ops.aten.native_group_norm_backward(
        gradient.contiguous().view(1, rows * channels, -1),
        input.view(1, rows * channels, -1),
        mean.view(1, -1),
        deviation.view(1, -1),
        input.new_ones(rows * channels),
        1,
        rows * channels,
        math.prod(input.shape[2:]),
        mean.numel(),
        [False, True, True],
    )
    for argument, grads in ((weight, by_weight), (bias, by_bias)):
        if argument is not None and use.wants(argument):
            yield argument, FormedGradients(grads.view(use.records, -1, channels).sum(1))


def _instance_norm(
    use: RecordedCall,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Parts:
    plain = F.instance_norm(input, running_mean, running_var, None, None, use_input_stats, momentum, eps)
    return _affine(use, plain, weight, bias, 1)


def _batch_norm(
    use: RecordedCall,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Parts:
    plain = F.batch_norm(input, running_mean, running_var, None, None, False, momentum, eps)
    return _affine(use, plain, weight, bias, 1)


NORMALISATIONS: Final[dict[Callable[..., Any], Rule]] = {
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.batch_norm: _batch_norm,
}
