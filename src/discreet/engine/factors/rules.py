"""From one recorded call to the per-sample parts of the parameters in it.

A rule has the signature of its torch function with the `RecordedCall` in front and yields (argument, part) for each
parameter argument that is wanted. Any op without a rule is handled by `vmap` of its own `vjp`.
Index legend: N records, P positions, A rows, B columns.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import Refused, refuse
from discreet.engine.factors.convolution import Geometry
from discreet.engine.factors.lengths import widen
from discreet.engine.factors.linear import OneHot, Outer, convolution
from discreet.engine.factors.parts import FormedGradients, Leaf
from discreet.engine.factors.recorded_call import Parts, RecordedCall, Rule, UnfitError, names_in, summed_to
from discreet.engine.trace.capture import RecordAxis, Tracked, name_of, replace, tensors_in


def _affine(
    use: RecordedCall, plain: Callable[[], Tensor], weight: Tensor | None, bias: Tensor | None, axis: int | None
) -> Parts:
    """weight * plain() + bias along the channels (`axis`) or over the trailing shape (None)."""
    for argument, is_scale in ((weight, True), (bias, False)):  # which may be one tensor
        if argument is None or not use.wants(argument):
            continue
        gradient = widen(use.gradient_by_record)
        if is_scale:
            gradient = gradient * use.output_axis.split(plain(), use.records)
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
        return _affine(use, partial(function, **given), weight, bias, axis)

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
        yield from _affine(use, partial(F.group_norm, input, num_groups, eps=eps), weight, bias, 1)
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


def _linear(use: RecordedCall, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Parts:
    if weight.dim() != 2 or (bias is not None and bias.dim() > 1):
        raise UnfitError
    rows_NPA, lengths_N = widen(use.gradient_rows), None
    is_one_row = rows_NPA.shape[1] == 1
    if use.wants(weight):
        outer = Outer(rows_NPA, use.rows(input), weight.shape)
        lengths_N = outer.lengths[0] if is_one_row else None  # a single row is the bias's gradient itself
        yield weight, outer
    if bias is not None and use.wants(bias):
        summed = rows_NPA.squeeze(1) if is_one_row else rows_NPA.sum(1)
        reduced = summed_to(summed, bias.shape)
        yield bias, FormedGradients(reduced, lengths_N if reduced is summed else None)


def _matmul(use: RecordedCall, input: Tensor, weight: Tensor) -> Parts:
    if weight.dim() != 2 or input.dim() < 2 or not use.wants(weight) or use.wants(input):
        raise UnfitError
    axis = use.axes.get(id(input))
    if axis is None or axis.axis == input.dim() - 1:
        raise UnfitError
    yield weight, Outer(use.rows(input), use.gradient_rows, weight.shape)


def _addmm(use: RecordedCall, bias: Tensor, input: Tensor, weight: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Parts:
    if beta != 1 or alpha != 1 or use.wants(input):
        raise UnfitError
    if use.wants(weight):
        yield weight, Outer(use.rows(input), use.gradient_rows, weight.shape)
    if use.wants(bias):
        yield bias, _summed(use, bias)


def _embedding(
    use: RecordedCall,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Parts:
    index_NP = use.by_record(input).reshape(use.records, -1)
    right_NPB = use.gradient_rows
    if padding_idx is not None:
        padded = index_NP == padding_idx % weight.shape[0]
        right_NPB = right_NPB.masked_fill(padded.unsqueeze(-1), 0)
    yield weight, OneHot(index_NP, right_NPB, weight.shape)


def _getitem(use: RecordedCall, weight: Tensor, index: Any) -> Parts:
    """weight[ids], the hand-written embedding."""
    if weight.dim() != 2 or not isinstance(index, Tensor) or index.dtype != torch.int64:
        raise UnfitError
    index_NP = use.by_record(index).reshape(use.records, -1) % weight.shape[0]
    yield weight, OneHot(index_NP, use.gradient_rows, weight.shape)


def _tuple(value: Any, dimensions: int) -> tuple[int, ...]:
    return (value,) * dimensions if isinstance(value, int) else tuple(value)


def _conv(
    use: RecordedCall,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Parts:
    dimensions = weight.dim() - 2
    images, gradient = input, _gradient_of_images(use, input)
    if use.wants(weight):
        steps = _tuple(dilation, dimensions)
        if isinstance(padding, str):
            totals = [(k - 1) * d for k, d in zip(weight.shape[2:], steps, strict=True)]
            if padding == "same":  # an odd total pads one more at the end
                images = F.pad(input, [p for t in reversed(totals) for p in (t // 2, t - t // 2)])
            padding = 0
        geometry = Geometry(_tuple(stride, dimensions), _tuple(padding, dimensions), steps, groups)
        yield weight, convolution(images, gradient, weight.shape, geometry, use.records)
    yield from _channel_bias(use, bias, gradient)


def _conv_transpose(
    use: RecordedCall,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Parts:
    """A transposed convolution is a convolution's input gradient: swap the input and the output gradient."""
    gradient = _gradient_of_images(use, input)
    if use.wants(weight):
        steps, pads, spread = (_tuple(v, weight.dim() - 2) for v in (stride, padding, dilation))
        geometry = Geometry(steps, pads, spread, groups)
        yield weight, convolution(gradient, input, weight.shape, geometry, use.records)
    yield from _channel_bias(use, bias, gradient)


def _gradient_of_images(use: RecordedCall, input: Tensor) -> Tensor:
    """The gradient of the output of a convolution, whose records must lie along the first axis."""
    if use.output_axis != RecordAxis(0) or use.axes.get(id(input)) != RecordAxis(0):
        raise UnfitError
    assert use.gradient is not None
    return use.gradient


def _channel_bias(use: RecordedCall, bias: Tensor | None, gradient: Tensor) -> Parts:
    if bias is not None and use.wants(bias):
        channels = gradient.unflatten(0, (use.records, -1)).transpose(1, 2).flatten(2)
        yield bias, FormedGradients(widen(channels).sum(2))


def _add(use: RecordedCall, first: Any, second: Any, *, alpha: Any = 1) -> Parts:
    if alpha != 1:
        raise UnfitError
    for argument in (first, second):
        if use.wants(argument):
            yield argument, _summed(use, argument)


def _mul(use: RecordedCall, first: Any, second: Any) -> Parts:
    argument, other = (first, second) if use.wants(first) else (second, first)
    if use.wants(other) or not isinstance(other, Tensor) or use.gradient is None or other.shape != use.gradient.shape:
        raise UnfitError
    yield (argument, FormedGradients(summed_to(widen(use.gradient_by_record) * use.by_record(other), argument.shape)))


def _expand(use: RecordedCall, input: Tensor, *sizes: Any, **named: Any) -> Parts:
    yield input, _summed(use, input)


def _summed(use: RecordedCall, argument: Tensor) -> FormedGradients:
    """The gradient of an argument that the call broadcast."""
    return FormedGradients(summed_to(widen(use.gradient_by_record), argument.shape))


def _repeat(use: RecordedCall, input: Tensor, *sizes: Any) -> Parts:
    counts = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    shape = (1,) * (len(counts) - input.dim()) + tuple(input.shape)
    if any(count != 1 and size != 1 for count, size in zip(counts, shape, strict=True)):
        raise UnfitError
    yield input, _summed(use, input)


def _general(use: RecordedCall, *args: Any, **kwargs: Any) -> Parts:
    """Per-sample gradients of any op: vmap, over the records, of the vjp of the op on one record."""
    leaves = tensors_in((args, kwargs))
    wanted = [leaf for leaf in leaves if use.wants(leaf)]
    batched = [leaf for leaf in leaves if id(leaf) in use.axes and not use.wants(leaf)]
    wide = torch.float64 if any(leaf.dtype == torch.float64 for leaf in leaves) else torch.float32

    def widened(tensor: Tensor) -> Tensor:  # one precision: autocast, if there was any, is over
        return tensor.to(wide) if tensor.is_floating_point() else tensor

    def one(slices: list[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
        swapped = {id(leaf): piece for leaf, piece in zip(batched, slices, strict=True)}

        def run(*parameters: Tensor) -> Tensor:
            here = {**swapped, **{id(leaf): p for leaf, p in zip(wanted, parameters, strict=True)}}
            again, named = replace((args, kwargs), lambda t: widened(here.get(id(t), t)))
            result: Tensor = use.func(*again, **named)
            return result

        pull: Callable[[Tensor], tuple[Tensor, ...]] = torch.func.vjp(run, *map(widened, wanted))[1]
        return pull(gradient)

    try:
        slices = [widened(use.by_record(leaf)) for leaf in batched]
        gradients = use.gradient_by_record if batched else _one_at_a_time(use)
        grads = torch.func.vmap(one, randomness="error")(slices, gradients.to(wide))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if isinstance(error, Refused):
            raise
        expected = "an op that can be differentiated record by record"
        got = f"{name_of(use.func)} with {names_in(use)} ({str(error).splitlines()[0]})"
        refuse(expected, got, "write it with operations that torch.func.vmap supports, or freeze the parameter")
    for leaf, grad in zip(wanted, grads, strict=True):
        yield leaf, FormedGradients(grad)


def _one_at_a_time(use: RecordedCall) -> Tensor:
    """For an op that spreads a parameter over the records: the output's gradient, of one record at a time."""
    assert use.gradient is not None
    whole = use.gradient.new_zeros(use.records, *use.gradient.shape)
    for record, row in enumerate(whole):
        use.output_axis.split(row, use.records)[record] = use.gradient_by_record[record]
    return whole


def _takes(rule: Rule, use: RecordedCall) -> bool:
    """Whether a rule knows the arguments by the names that the call gives them, such as `other=`."""
    if not use.kwargs:  # nearly always
        return True
    try:
        inspect.signature(rule).bind(use, *use.args, **use.kwargs)
    except TypeError:
        return False
    return True


def simple_parts(use: RecordedCall) -> list[tuple[Tracked, Leaf]] | None:
    """The part of every parameter in a recorded call, by the rule of its op; None if no rule covers it."""
    use.unchanged()
    rule = RULES.get(use.func)
    if rule is None or not _takes(rule, use):
        return None
    try:
        found = list(rule(use, *use.args, **use.kwargs))
    except UnfitError:
        return None
    if {id(argument) for argument, _ in found} != set(use.targets):
        return None  # the parameter stands where the rule does not look for one
    return [(use.targets[id(argument)], part) for argument, part in found]


def parts_of(use: RecordedCall) -> list[tuple[Tracked, Leaf]]:
    """The part of every parameter in a recorded call."""
    found = simple_parts(use)
    if found is None:
        found = [(use.targets[id(argument)], part) for argument, part in _general(use, *use.args, **use.kwargs)]
    return found


RULES: dict[Callable[..., Any], Rule] = {
    function: rule
    for rule, functions in (
        (_again(F.layer_norm, None), (F.layer_norm,)),
        (_again(F.rms_norm, None), (F.rms_norm,)),
        (_again(F.instance_norm, 1), (F.instance_norm,)),
        (_again(F.batch_norm, 1), (F.batch_norm,)),
        (_group_norm, (F.group_norm,)),
        (_linear, (F.linear,)),
        (_matmul, (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)),
        (lambda use, weight, input: _matmul(use, input, weight), (Tensor.__rmatmul__,)),
        (_addmm, (torch.addmm, Tensor.addmm)),
        (_embedding, (F.embedding,)),
        (_getitem, (Tensor.__getitem__,)),
        (_conv, (F.conv1d, F.conv2d, F.conv3d)),
        (_conv_transpose, (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)),
        (_add, (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)),
        (_mul, (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)),
        (_expand, (Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.broadcast_to)),
        (_repeat, (Tensor.repeat,)),
    )
    for function in functions
}
