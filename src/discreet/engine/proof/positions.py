"""Public numbers that depend on the batch: on a record's place in it, or on its size.

`losses * torch.arange(len(losses))` gives each record a weight by its place; leave one record out, and all that follow
have another weight. Random numbers are no matter, as every place gets the same kind. `losses / len(losses)` gives each
record a weight by the number of records, which one record more changes for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from discreet.engine.proof.call_forms import Reading
from discreet.engine.proof.lineage import PUBLIC, Origin
from discreet.engine.trace.capture import RecordAxis, name_of

_RANDOM: Final = frozenset(
    [
        *("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_", "normal"),
        *(
            "normal_",
            "uniform_",
            "exponential_",
            "random_",
            "poisson",
            "multinomial",
            "dropout",
            "randperm",
            "binomial",
        ),
        *("_standard_gamma", "_sample_dirichlet", "geometric_", "cauchy_", "log_normal_"),
    ]
)

_FUNCTIONS: Final[tuple[Callable[[float], float], ...]] = (
    lambda n: n,
    lambda n: n**2,
    lambda n: n**3,
    lambda n: n**0.5,
    lambda n: n**1.5,
    lambda n: n ** (1 / 3),
    lambda n: n ** (2 / 3),
    math.log,
    math.log1p,
    lambda n: n - 1,
    lambda n: n + 1,
    lambda n: (n - 1) / n,
    lambda n: n / (n + 1),
    lambda n: (n - 1) ** 0.5,
    lambda n: (n + 1) ** 0.5,
    lambda n: n * math.log(n),
    lambda n: math.log(n) / n,
    lambda n: math.log(n) ** 0.5,
)
"""What people divide by. A number is tested against each of them, and its inverse, up to a constant factor."""
_SUMMANDS: Final[tuple[Callable[[float], float], ...]] = (
    math.log,
    lambda n: n**0.5,
    lambda n: 1 / n,
    lambda n: n**-0.5,
)
"""The same, up to a constant that is added."""
_POWERS: Final = 7  # of them, the first
_EXACT: Final = 1e-6
_LARGEST_SAMPLE: Final = 1 << 14


def places_matter(reading: Reading, records: int) -> bool:
    """Whether an element-wise call combines records with public numbers that differ along the record axis."""
    ends = {
        (tensor.dim() - origin.lineage.axis, origin.lineage.minor)
        for tensor, origin in zip(reading.tensors, reading.origins, strict=True)
        if isinstance(origin.lineage, RecordAxis)
    }
    for tensor, origin in zip(reading.tensors, reading.origins, strict=True):
        if origin.lineage is not PUBLIC or tensor.dim() == 0:
            continue
        for end, minor in ends:
            axis = tensor.dim() - end
            if axis < 0 or tensor.shape[axis] < records or tensor.shape[axis] % records:
                continue
            if _differs(tensor, RecordAxis(axis, minor), records) and not is_random(origin):
                return True
    return False


def _differs(tensor: Tensor, axis: RecordAxis, records: int) -> bool:
    by_record = axis.split(tensor.detach(), records)
    return bool((by_record != by_record[:1]).any())


def is_random(origin: Origin) -> bool:
    ahead, seen = [origin], {id(origin)}
    while ahead:
        one = ahead.pop()
        if one.func is not None and name_of(one.func) in _RANDOM:
            return True
        for parent in one.parents:
            if id(parent) not in seen:
                seen.add(id(parent))
                ahead.append(parent)
    return False


def follows(numbers: tuple[float, float], sizes: tuple[int, int], *, drew: bool = False) -> bool:
    """Whether two numbers are a usual function of two sizes.

    drew  whether they may be random: then simple ratios such as 1 to 2 are no evidence, unless the numbers fit exactly

    >>> follows((1 / 7, 1 / 5), (7, 5)), follows((3 * 7**-0.5, 3 * 5**-0.5), (7, 5)), follows((0.99, 0.98), (7, 5))
    (True, True, False)
    >>> follows((1.0, 2.0), (12, 6)), follows((1.0, 2.0), (12, 6), drew=True), follows((12.0, 6.0), (12, 6), drew=True)
    (True, False, True)
    """
    if drew and _is_simple(*numbers):
        return min(sizes) > 1 and any(_equals(numbers, sizes, function) for function in _FUNCTIONS[:_POWERS])
    if any(_matches(numbers, sizes, function) for function in _FUNCTIONS):
        return True
    if all(float(number).is_integer() for number in numbers):
        return False
    return any(_is_shifted(numbers, sizes, function) for function in _SUMMANDS)


def _is_simple(first: float, second: float) -> bool:
    """Whether the ratio of two numbers is one of small whole numbers."""
    return any(first * p == second * q for p in range(1, 5) for q in range(1, 5))


def is_proportional(numbers: tuple[float, float], sizes: tuple[int, int]) -> bool:
    """Whether two numbers are proportional to two sizes, or inversely so."""
    return _matches(numbers, sizes, _FUNCTIONS[0])


def _matches(numbers: tuple[float, float], sizes: tuple[int, int], function: Callable[[float], float]) -> bool:
    """Whether the numbers are in the ratio of the function's values, or in the inverse ratio."""
    (a, b), (f, g) = numbers, map(function, map(float, sizes))
    if not (a and b and f and g and math.isfinite(a) and math.isfinite(b)):
        return False
    return math.isclose(a * g, b * f, rel_tol=_EXACT) or math.isclose(a * f, b * g, rel_tol=_EXACT)


def _equals(numbers: tuple[float, float], sizes: tuple[int, int], function: Callable[[float], float]) -> bool:
    """Whether the numbers are the function's values, or their inverses."""
    pairs = list(zip(numbers, map(function, map(float, sizes)), strict=True))
    is_same = all(math.isclose(number, value, rel_tol=_EXACT) for number, value in pairs)
    return is_same or all(math.isclose(number * value, 1.0, rel_tol=_EXACT) for number, value in pairs)


def _is_shifted(numbers: tuple[float, float], sizes: tuple[int, int], function: Callable[[float], float]) -> bool:
    (a, b), (f, g) = numbers, map(function, map(float, sizes))
    return math.isfinite(a - b) and math.isclose(abs(a - b), abs(f - g), rel_tol=_EXACT)


def difference(one: Tensor | None, other: Tensor | None) -> tuple[float, float] | None:
    """Two entries that differ between two samples of a public tensor; None if all are equal, or cannot be compared.

    Along axes of different lengths a tensor must be constant: `differs_by_place` looks at the others.
    """
    if one is None or other is None or one.dim() != other.dim():
        return None
    for axis, (size, length) in enumerate(zip(one.shape, other.shape, strict=True)):
        if size == length:
            continue
        for tensor in (one, other):
            if bool((tensor != tensor.narrow(axis, 0, 1)).any()):
                return None
        one, other = one.narrow(axis, 0, 1), other.narrow(axis, 0, 1)
    apart = ~torch.isclose(one, other, rtol=_EXACT, atol=0.0, equal_nan=True)
    if not bool(apart.any()):
        return None
    return float(one[apart][0]), float(other[apart][0])


def differs_by_place(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether a public tensor grows with the batch, and differs along the axis that grows."""
    if one is None or other is None or one.dim() != other.dim():
        return False
    growing = [axis for axis in range(one.dim()) if one.shape[axis] != other.shape[axis]]
    return any(bool((tensor != tensor.narrow(axis, 0, 1)).any()) for axis in growing for tensor in (one, other))


def sample_of(tensor: Tensor) -> Tensor | None:
    """The values of a public tensor, for a comparison; the extremes of a large one."""
    if tensor.is_complex() or tensor.is_quantized or tensor.is_meta or tensor.numel() == 0:
        return None
    values = tensor.detach().to("cpu", torch.float64)
    if values.numel() > _LARGEST_SAMPLE:
        return torch.stack([values.amin(), values.amax()])
    return values.clone()
