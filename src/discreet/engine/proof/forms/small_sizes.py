"""Smaller sizes for the proof of a call.

Only functions of torch that treat all sizes alike are listed: what they do to a record of 4 channels and 5 pixels they
do to one of 512 channels and 224 pixels, or to one of 2 and 2. So calls that differ by such sizes alone share a proof.
The number of records is never reduced. A call that fails at the smaller sizes is proven at its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.engine.proof.forms.bound_arguments import SHARED, BoundArguments, Sizes, SmallCall, capped, whole
from discreet.engine.proof.forms.provable_call import Numbers
from discreet.engine.proof.forms.small_indices import smaller_index
from discreet.engine.proof.forms.small_views import smaller_expansion, smaller_split, smaller_view
from discreet.engine.trace.settings import ELEMENTWISE

_EACH: Final = 2  # channels in each of at most as many groups


def smaller(
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    tensors: list[Tensor],
    sizes: list[Sizes],
    numbers: Numbers,
    records: int,
) -> SmallCall | None:
    """The same call on smaller tensors; None if the sizes of the function matter."""
    if func in SIZE_FREE:
        if func in _NORMALISING:
            args, kwargs = _capped_shape(args), {name: _capped_shape((value,))[0] for name, value in kwargs.items()}
        small = _fewer_heads(sizes) if func in _GROUPING else [tuple(map(capped, own)) for own in sizes]
        return SmallCall(args, kwargs, small, is_fixed=func in _NORMALISING)
    rule = _RULES.get(func)
    if rule is None:
        return None
    try:
        return rule(BoundArguments(args, kwargs, tensors, sizes, numbers, records))
    except (KeyError, TypeError, ValueError, IndexError):  # arguments in a form that the rule does not know
        return None


def _no_larger(size: Any) -> Any:
    return (min(size[0], SHARED),) if type(size) is tuple else min(size, SHARED)


def _fewer_heads(sizes: list[Sizes]) -> list[Sizes]:
    """Of attention: some queries for each key, if there were more heads of queries than of keys."""
    heads = [own[-3] for own in sizes[:2] if len(own) > 3 and type(own[-3]) is int]
    fewer: dict[int, int] = {}
    if len(heads) == 2 and heads[0] != heads[1] > 0 == heads[0] % heads[1]:
        keys = min(heads[1], _EACH)
        fewer = {heads[0]: keys * _EACH, heads[1]: keys, 1: 1}
    return [
        tuple(fewer.get(size, size) if axis == len(own) - 3 else _no_larger(size) for axis, size in enumerate(own))
        if fewer
        else tuple(map(_no_larger, own))
        for own in sizes
    ]


def _capped_shape(args: Any) -> Any:
    return tuple(list(map(capped, arg)) if isinstance(arg, (tuple, list)) else arg for arg in args)


def _numbers(value: Any, dimensions: int) -> tuple[int, ...]:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return numbers * dimensions if len(numbers) == 1 else numbers


def _reached(kernel: tuple[int, ...], stride: Any, dilation: Any) -> Sizes:
    """Pixels for two places of the kernel: both borders, and all that it sees between them."""
    steps, gaps = _numbers(stride, len(kernel)), _numbers(dilation, len(kernel))
    return tuple(d * (k - 1) + 1 + step for k, step, d in zip(kernel, steps, gaps, strict=True))


def _groups(channels: int, groups: int) -> tuple[int, int]:
    """Fewer channels in fewer groups."""
    fewer = min(groups, _EACH)
    return fewer * min(channels // groups, _EACH), fewer


def _convolution(call: BoundArguments, *, transposed: bool) -> SmallCall:
    """conv(input, weight, bias, stride, padding, dilation, groups), or its transpose."""
    images, weight = call.size(0, "input"), call.size(1, "weight")
    kernel = weight[2:]
    if len(images) != len(weight):
        raise ValueError("one image without a record axis")
    whole(*images[1:], *weight)
    groups = call.get(6, "groups", 1)
    channels, fewer = _groups(images[1], groups)
    outside = _groups(weight[1] * groups if transposed else weight[0], groups)[0]
    if transposed:
        pixels = tuple(min(size, 3) for size in images[2:])
        call.resize(1, "weight", (channels, outside // fewer, *kernel))
    else:
        pixels = _reached(kernel, call.get(3, "stride", 1), call.get(5, "dilation", 1))
        call.resize(1, "weight", (outside, channels // fewer, *kernel))
    call.resize(0, "input", (images[0], channels, *pixels))
    if call.get(2, "bias") is not None:
        whole(*call.size(2, "bias"))
        call.resize(2, "bias", (outside,))
    call.put(6, "groups", fewer)
    return call.done()


def _pool(call: BoundArguments, *, dimensions: int, dilates: bool) -> SmallCall:
    """pool(input, kernel_size, stride, padding, ...)."""
    sizes = call.size(0, "input")
    whole(*sizes[-dimensions:])
    kernel = _numbers(call.get(1, "kernel_size"), dimensions)
    stride = call.get(2, "stride")
    dilation = call.get(4, "dilation", 1) if dilates else 1
    pixels = _reached(kernel, kernel if stride in (None, (), []) else stride, dilation)
    call.resize(0, "input", (*map(capped, sizes[:-dimensions]), *pixels))
    return call.done()


def _resample(call: BoundArguments, axes: int | None = None) -> SmallCall:
    """Adaptive pooling and interpolation: what happens to pixels depends on both sizes, so that only channels go."""
    sizes = call.size(0, "input")
    whole(*sizes[1:])
    if axes not in (None, len(sizes)):
        raise ValueError("images without channels")
    call.resize(0, "input", (sizes[0], capped(sizes[1]), *sizes[2:]))
    return call.done()


def _group_norm(call: BoundArguments) -> SmallCall:
    """group_norm(input, num_groups, weight, bias, eps)."""
    sizes = call.size(0, "input")
    whole(*sizes[1:])
    channels, fewer = _groups(sizes[1], call.get(1, "num_groups"))
    call.resize(0, "input", (sizes[0], channels, *map(capped, sizes[2:])))
    for place, name in ((2, "weight"), (3, "bias")):
        if call.get(place, name) is not None:
            whole(*call.size(place, name))
            call.resize(place, name, (channels,))
    call.put(1, "num_groups", fewer)
    return call.done()


def _pad(call: BoundArguments) -> SmallCall:
    """pad(input, amounts): axes that get no padding are made smaller; amounts can follow the number of records."""
    sizes, amounts = list(call.size(0, "input")), call.get(1, "pad")
    padded = {len(sizes) - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    smaller_sizes = tuple(size if axis in padded else capped(size) for axis, size in enumerate(sizes))
    call.resize(0, "input", smaller_sizes)
    return call.done(is_fixed=False)


def _roll(call: BoundArguments) -> SmallCall:
    """roll(input, shifts, dims): the other axes are made smaller; shifts can follow the number of records."""
    sizes, dims = call.size(0, "input"), call.get(2, "dims")
    rolled = {axis % len(sizes) for axis in ((dims,) if type(dims) is int else dims)}
    if not rolled:
        raise ValueError("all entries in one row")
    call.resize(0, "input", tuple(size if axis in rolled else capped(size) for axis, size in enumerate(sizes)))
    return call.done(is_fixed=False)


def _repeat(call: BoundArguments) -> SmallCall:
    """repeat(input, *sizes), repeat_interleave(input, number, dim): every entry as often; numbers can follow."""
    if not isinstance(call.get(1, "repeats"), (int, tuple, list)):
        raise ValueError("a number for each entry")
    call.resize(0, "input", tuple(map(capped, call.size(0, "input"))))
    return call.done(is_fixed=False)


def _gather(call: BoundArguments) -> SmallCall:
    """gather(input, dim, index): it may read the first rows alone, so that rows of records stay as many."""
    sizes, others = call.size(0, "input"), call.size(2, "index")
    whole(sizes[call.get(1, "dim")])
    for place, name, own, rest in ((0, "input", sizes, others), (2, "index", others, sizes)):
        pairs = list(zip(own, rest, strict=True))
        if any(type(size) is not type(other) for size, other in pairs):
            raise ValueError("records in one of both")
        call.resize(place, name, tuple(size if type(size) is tuple else min(size, SHARED) for size, _ in pairs))
    return call.done(is_fixed=False)


def _write(call: BoundArguments) -> SmallCall:
    """input[condition] = number."""
    condition, value = call.get(1, "index"), call.get(2, "value")
    if not isinstance(condition, Tensor) or condition.dtype != torch.bool or isinstance(value, Tensor):
        raise ValueError("another index, or another tensor")
    call.resize(0, "self", tuple(map(capped, call.size(0, "self"))))
    call.resize(1, "index", tuple(map(capped, call.size(1, "index"))))
    return call.done(is_fixed=False)


def _along(call: BoundArguments, axis: Any, size: Callable[[int], int]) -> SmallCall:
    """Functions that divide one axis: its size becomes `size` of it, the others are made smaller."""
    sizes = list(map(capped, call.size(0, "input")))
    own = call.size(0, "input")[axis]
    whole(own)
    sizes[axis] = size(own)
    call.resize(0, "input", tuple(sizes))
    return call.done()


def _recurrent(call: BoundArguments) -> SmallCall:
    """lstm(input, states, weights, has_biases, layers, dropout, train, bidirectional, batch_first) and its kind."""
    sequence, states, weights, _, layers, dropout, train, both_ways, batch_first = (call.get(i, "") for i in range(9))
    gates, directions = weights[0].shape[0] // weights[1].shape[1], 2 if both_ways else 1
    each = len(weights) // (layers * directions)
    if (dropout and train) or each not in (2, 4) or weights[1].shape[0] != gates * weights[1].shape[1]:
        raise ValueError("draws, or projections")
    sizes = list(call.size_of(sequence))
    sizes[int(batch_first)], sizes[2] = min(sizes[int(batch_first)], 3), _EACH
    call.resize_tensor(sequence, tuple(sizes))
    for i, weight in enumerate(weights):
        is_of_input = i % each == 0
        inputs = _EACH * (directions if is_of_input and i >= each * directions else 1)
        call.resize_tensor(weight, (gates * _EACH, inputs)[: weight.dim()])
    for state in (states,) if isinstance(states, Tensor) else states:
        call.resize_tensor(state, (*call.size_of(state)[:2], _EACH))
    return call.done()


def _chunk(call: BoundArguments) -> SmallCall:
    """chunk(input, chunks, dim)."""
    chunks = call.get(1, "chunks")
    return _along(
        call, call.get(2, "dim", 0), lambda size: size if size % chunks else chunks * min(size // chunks, _EACH)
    )


def _unbind(call: BoundArguments) -> SmallCall:
    """unbind(input, dim)."""
    return _along(call, call.get(1, "dim", 0), lambda size: size)


def _unflatten(call: BoundArguments) -> SmallCall:
    """unflatten(input, dim, sizes)."""
    return _along(call, call.get(1, "dim"), lambda size: size)


def named(*names: str) -> frozenset[Any]:
    """Torch functions and methods by name, with their in-place and operator forms."""
    rooms, found = (torch, Tensor, F, torch.special), []
    for name in names:
        for form in (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__"):
            found += [getattr(room, form, None) for room in rooms]
    return frozenset(func for func in found if callable(func))


def _rules() -> Iterator[tuple[str, Callable[[BoundArguments], SmallCall]]]:
    for n in (1, 2, 3):
        yield f"conv{n}d", partial(_convolution, transposed=False)
        yield f"conv_transpose{n}d", partial(_convolution, transposed=True)
        yield f"max_pool{n}d", partial(_pool, dimensions=n, dilates=True)
        yield f"max_pool{n}d_with_indices", partial(_pool, dimensions=n, dilates=True)
        yield f"avg_pool{n}d", partial(_pool, dimensions=n, dilates=False)
        yield f"adaptive_avg_pool{n}d", partial(_resample, axes=n + 2)
        yield f"adaptive_max_pool{n}d", partial(_resample, axes=n + 2)
    yield "interpolate", _resample
    yield "group_norm", _group_norm
    yield "pad", _pad
    yield "view", smaller_view
    yield "reshape", smaller_view
    yield "expand", smaller_expansion
    yield "split", smaller_split
    yield "chunk", _chunk
    yield "unbind", _unbind
    yield "unflatten", _unflatten
    yield "getitem", smaller_index
    yield "setitem", _write
    yield "gather", _gather
    yield "roll", _roll
    yield "repeat", _repeat
    yield "repeat_interleave", _repeat
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        yield name, _recurrent


_RULES: Final = {func: rule for name, rule in _rules() for func in named(name)}
_NORMALISING: Final = named("layer_norm", "rms_norm")
_GROUPING: Final = named("scaled_dot_product_attention")  # fewer heads of keys than of queries
MOVES: Final = named(
    *("view", "reshape", "flatten", "unflatten", "expand", "chunk", "split", "unbind", "getitem", "transpose"),
    *("permute", "contiguous", "select", "narrow", "unsqueeze", "squeeze", "movedim", "t", "unfold", "repeat"),
    *("roll", "flip", "swapaxes", "clone", "detach"),
)
"""Functions that copy entries, or fill in constants, whatever the entries are."""
SIZE_FREE: Final = (
    ELEMENTWISE
    | _NORMALISING
    | named(
        *("relu", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "mish", "softplus", "softsign", "tanh"),
        *("sigmoid", "logsigmoid", "hardtanh", "hardswish", "hardsigmoid", "relu6", "exp", "expm1", "log", "log1p"),
        *("log2", "log10", "sqrt", "rsqrt", "square", "abs", "neg", "sign", "sin", "cos", "tan", "erf", "reciprocal"),
        *("round", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "logical_not", "logical_and", "logical_or"),
        *("logical_xor", "bitwise_not", "bitwise_and", "bitwise_or", "and", "or", "xor", "invert", "nan_to_num"),
        *("clone", "detach", "float", "double", "half", "long", "int", "bool", "zeros_like", "ones_like"),
        *("rand_like", "randn_like", "dropout", "alpha_dropout", "softmax", "log_softmax", "logsumexp", "linear"),
        *("matmul", "bmm", "scaled_dot_product_attention", "embedding", "sum", "mean", "amax", "amin", "argmax"),
        *("argmin", "max", "min", "any", "all", "norm", "std", "var", "prod", "cumsum", "flip", "cat", "stack"),
        *("transpose", "permute", "unsqueeze", "squeeze", "t", "swapaxes", "movedim", "cross_entropy", "nll_loss"),
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "kl_div"),
        *("baddbmm", "addmm", "mv", "dot", "sort", "normalize", "cosine_similarity", "gaussian_nll_loss", "contiguous"),
        *("batch_norm", "instance_norm", "flatten", "to", "type_as", "copy"),
    )
)
"""Functions that treat all sizes alike, and all axes of one size as one."""
