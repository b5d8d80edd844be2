"""The rules of normalisations: what scales and shifts a value that is normal already (rules.py says what a rule is)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
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


def _again(function: Callable[..., Tensor], axis: int | None) -> Rule:
    """The rule of a normalisation: it is computed once more, without weight and bias."""
    signature = inspect.signature(function)

    def rule(use: RecordedCall, *args: Any, **kwargs: Any) -> Parts:
        given = signature.bind(*args, **kwargs).arguments
        weight, bias = given.pop("weight", None), given.pop("bias", None)
        if function is F.batch_norm:
            given["training"] = False  # statistics of the batch are refused
        return _affine(use, function(**given), weight, bias, axis)

    return rule


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
    channels, size, groups = input.shape[1], math.prod(input.shape[2:]), mean.numel()
    every = input.shape[0] * channels
    values = gradient.contiguous().view(1, every, -1), input.view(1, every, -1)
    statistics = mean.view(1, -1), deviation.view(1, -1), input.new_ones(every)
    _, by_weight, by_bias = torch.ops.aten.native_group_norm_backward(
        *values, *statistics, 1, every, size, groups, [False, True, True]
    )
    for argument, grads in ((weight, by_weight), (bias, by_bias)):
        if argument is not None and use.wants(argument):
            yield argument, FormedGradients(grads.view(use.records, -1, channels).sum(1))


NORMALISATIONS: Final[dict[Callable[..., Any], Rule]] = {
    F.layer_norm: _again(F.layer_norm, None),
    F.rms_norm: _again(F.rms_norm, None),
    F.group_norm: _group_norm,
    F.instance_norm: _again(F.instance_norm, 1),
    F.batch_norm: _again(F.batch_norm, 1),
}
