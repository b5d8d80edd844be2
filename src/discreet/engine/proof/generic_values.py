"""Values on which a call is proven: of its own making, never the records'.

A call that keeps records apart does so on every input, and one that mixes them shows it on generic ones: a mean
moves with every entry, a maximum with the largest, `any` with the first that is true. What could hide a movement is
a saturated value, so that seven patterns are tried: moderate numbers, scales from 1e-6 to 1e6, NaN and infinity in
the records that are replaced, all zero (false, the lowest id), all one (true, the highest id) with zeros in the records
that are replaced, few distinct values, which several records share, and numbers whose products underflow, with zeros in
the records that are replaced.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.engine.proof.forms.small_sizes import named
from discreet.engine.trace.settings import ELEMENTWISE

SEED: Final = 20_021
_POOL: Final = 1 << 18


class Pattern(enum.Enum):
    """What the records hold, and what those that are replaced hold instead."""

    MODERATE = "moderate numbers"
    SPREAD = "scales from 1e-6 to 1e6"
    BROKEN = "NaN and infinity in place of moderate numbers"
    ZERO = "moderate numbers in place of zeros"
    ONE = "zeros and others in place of ones"
    TIES = "few distinct values"
    TINY = "zeros in place of numbers whose products underflow"


@dataclass(frozen=True)
class Range:
    """Which numbers a call takes: whole numbers from `low` to `high`, some of them `special`; floats of any size, or
    probabilities alone."""

    low: int
    high: int
    special: tuple[int, ...] = ()
    unit: bool = False


def ranges(sizes: Sequence[int], special: Sequence[int], func: Callable[..., Any]) -> Iterator[Range]:
    """Ranges to try, the widest first: a call that looks something up takes only ids below a size of its tensors."""
    wide = Range(-(2**20), 2**20)
    tops = [size for size in sorted(set(sizes), reverse=True) if size > 1][:6]
    for unit in (False, True):
        yield Range(wide.low, wide.high, unit=unit)
        if special:
            yield from (Range(0, top - 1, tuple(special), unit) for top in tops)
        yield from (Range(0, top - 1, unit=unit) for top in tops)
        yield from (Range(0, 1, unit=unit), Range(1, 2, unit=unit))
    if func in (F.embedding, torch.embedding) and 1 in sizes:
        yield Range(0, 0)  # a table of one row


class ValueSource:
    """Draws generic tensors, from one seed: a verdict depends on no record."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self._normal = torch.randn(_POOL, generator=generator, dtype=torch.float64)
        self._uniform = torch.rand(_POOL, generator=generator, dtype=torch.float64)
        powers = 12 * torch.rand(_POOL, generator=generator, dtype=torch.float64) - 6
        self._spread = self._normal.sign() * 10**powers
        self._broken = self._normal.clone()
        kinds = torch.randint(0, 4, (_POOL,), generator=generator)
        for kind, value in enumerate((float("nan"), float("inf"), -float("inf"))):
            self._broken[kinds == kind] = value
        self._single = {id(pool): pool.float() for pool in (self._normal, self._uniform, self._spread, self._broken)}
        self._plain = {pattern: self._single[id(self._normal)] for pattern in (Pattern.MODERATE, Pattern.ZERO)}
        self._plain |= {Pattern.SPREAD: self._single[id(self._spread)], Pattern.BROKEN: self._single[id(self._broken)]}
        self._at = 0

    def restart(self) -> None:
        """Give the same values again, so that a verdict does not depend on the calls that were proven before."""
        self._at = 0

    def base(self, like: Tensor, shape: Sequence[int], pattern: Pattern, within: Range) -> Tensor:
        """Values before any record is replaced."""
        if pattern is Pattern.ZERO:
            return self._filled(like, shape, 0, within.low if within.low > 0 else 0)
        if pattern is Pattern.ONE:
            return self._filled(like, shape, 1, within.high if within.high < 2**20 else 1)
        steady = Pattern.MODERATE if pattern in (Pattern.BROKEN, Pattern.TINY) else pattern
        value = self.drawn(like, shape, steady, within)
        is_fraction = value.is_floating_point() or value.is_complex()
        is_tiny = pattern is Pattern.TINY and is_fraction and not within.unit
        return torch.where(self._few_of(shape).to(like.device), value * 1e-25, value) if is_tiny else value

    def drawn(self, like: Tensor, shape: Sequence[int], pattern: Pattern, within: Range) -> Tensor:
        """Values that take their place."""
        count, dtype = math.prod(shape), like.dtype
        if dtype is torch.float32 and pattern in self._plain and not within.unit:  # nearly always
            value = self._take(self._plain[pattern], count).view(list(shape))
            return value if like.is_cpu else value.to(like.device)
        if dtype == torch.bool:
            if pattern in (Pattern.ZERO, Pattern.ONE):
                value = (self._take(self._uniform, count) < 0.5) ^ (pattern is Pattern.ZERO)
            else:
                value = self._take(self._uniform, count) < 0.5
            return value.reshape(list(shape)).to(like.device)
        if pattern is Pattern.TIES and not within.unit:
            low = max(within.low, 0)
            distinct = min(count // 2 + 2, within.high - low + 1)
            tied = low + (distinct * self._take(self._uniform, count)).floor()
            return tied.to(dtype).reshape(list(shape)).to(like.device)
        if dtype.is_floating_point or dtype.is_complex:
            pools = {Pattern.SPREAD: self._spread, Pattern.BROKEN: self._broken}
            pool = self._uniform if within.unit else pools.get(pattern, self._normal)
            value = self._take(self._single[id(pool)] if dtype == torch.float32 else pool, count)
            if within.unit and pattern is not Pattern.MODERATE:
                value = value.round()
            if pattern in (Pattern.ONE, Pattern.TINY):
                value = torch.where(self._take(self._uniform, count) < 0.5, 0.0, value)
            if dtype.is_complex:
                other = self._take(self._normal, count).to(value.dtype)
                is_zero = value == 0 if pattern in (Pattern.ONE, Pattern.TINY) else torch.tensor(False)
                value = torch.complex(value, torch.where(is_zero, 0.0, other))
            return value.to(dtype).reshape(list(shape)).to(like.device)
        limits = torch.iinfo(dtype)
        low, high = max(within.low, limits.min), min(within.high, limits.max)
        whole = (low + (high - low + 1) * self._take(self._uniform, count)).floor().clamp(low, high).to(dtype)
        if within.special:
            fresh = self._take(self._uniform, count)
            for i, special in enumerate(within.special):
                if limits.min <= special <= limits.max:
                    whole[(fresh >= i * 0.1) & (fresh < i * 0.1 + 0.1)] = special
        return whole.reshape(list(shape)).to(like.device)

    def _filled(self, like: Tensor, shape: Sequence[int], value: int, whole: int) -> Tensor:
        is_whole = not (like.dtype.is_floating_point or like.dtype.is_complex or like.dtype == torch.bool)
        return torch.full(list(shape), whole if is_whole else value, dtype=like.dtype, device=like.device)

    def _few_of(self, shape: Sequence[int]) -> Tensor:
        """About two entries of each row: of the last axis for some places along the first, of all but it for others.

        A product over such a row underflows if two are small; that of the other entries does not.
        """
        rows = [math.prod(shape[axis:]) for axis in range(1, len(shape))] or [1]
        chances = torch.tensor([2 / max(size, 2) for size in rows])
        by_place = chances[torch.arange(math.prod(shape[:1])) % len(chances)]
        uniform = self._take(self._uniform, math.prod(shape)).reshape(list(shape))
        return (uniform < by_place.view(-1, *[1] * (len(shape) - 1))).reshape(list(shape))

    def _take(self, pool: Tensor, count: int) -> Tensor:
        self._at = (self._at + 7919) % (_POOL // 2)
        if count <= _POOL - self._at:
            return pool[self._at : self._at + count]
        return pool.roll(self._at).repeat(-(-count // _POOL))[:count]


@lru_cache
def separating(records: int) -> tuple[Tensor, ...]:
    """Few sets of records: of any two records, each is in a set in which the other is not.

    A record is in half of the sets, and no two are in the same half (Sperner): 8 sets are enough for 67 records, where
    the bits of a record's number take 14.

    >>> [own.nonzero().flatten().tolist() for own in separating(5)]
    [[0, 1, 2], [0, 3, 4], [1, 3], [2, 4]]
    """
    count = next(k for k in itertools.count() if math.comb(k, k // 2) >= records)
    members = list(itertools.islice(itertools.combinations(range(count), count // 2), records))
    return tuple(torch.tensor([one in own for own in members]) for one in range(count))


@lru_cache
def alternating(records: int) -> tuple[Tensor, ...]:
    """Every other record, and the rest."""
    even = torch.arange(records) % 2 == 0
    return even, ~even


def _elementwise(first: Tensor, *rest: Any, **_: Any) -> Tensor:
    total = first.clone()
    for other in rest:
        if isinstance(other, Tensor):
            total = total + other
    return total


def _rows(probabilities: Tensor, samples: int, *_: Any, **__: Any) -> Tensor:
    whole = probabilities.sum(-1, keepdim=True)
    return whole.expand(*probabilities.shape[:-1], samples).to(torch.long)


def _spread_over_the_last_axis(concentration: Tensor, *_: Any, **__: Any) -> Tensor:
    return concentration + concentration.sum(-1, keepdim=True)


BY_SIZE: Final = ELEMENTWISE | named(
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "to", "type_as", "expand_as", "view_as"),
    *("reshape_as", "broadcast_tensors", "broadcast_to", "meshgrid", "copy", "fill", "zero", "normal", "uniform"),
    *("random", "exponential", "log_normal", "cauchy", "geometric"),
)
"""Functions whose result depends on sizes and types of a record alone, or entry by entry on its values."""


def _recurrent(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a look at the sizes of its state: beyond a state of others, torch reads foreign memory."""

    def checked(*args: Any) -> Any:
        is_packed = not isinstance(args[3], bool)
        data, state, layers, is_twofold = args[0], args[1 + is_packed], args[4 + is_packed], args[7 + is_packed]
        records = int(args[1][0]) if is_packed else data.shape[0 if args[8] else 1]
        wanted = (layers * (1 + is_twofold), records)
        for one in (state,) if isinstance(state, Tensor) else state:
            if tuple(one.shape[:2]) != wanted:
                raise ValueError(f"a state of sizes {wanted}")
        return func(*args)

    return checked


def _ctc_loss(log_probs: Tensor, targets: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The loss, of targets that are classes: for others torch reads foreign memory."""
    if bool(((targets < 0) | (targets >= log_probs.shape[-1])).any()):
        raise ValueError("targets among the classes")
    result: Tensor = F.ctc_loss(log_probs, targets, *args, **kwargs)
    return result


def _if_finite(func: Callable[..., Any], place: int) -> Callable[..., Any]:
    """The function with a look at one of its tensors: NaN in it ends the process."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        if not bool([*args, *kwargs.values()][place].isfinite().all()):
            raise ValueError("finite values")
        return func(*args, **kwargs)

    return checked


def _definite(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function of positive definite matrices, made of any: M M' / (1 + |M|^2) + 1, each of its own matrix alone."""

    def of_any(matrices: Tensor, *args: Any, **kwargs: Any) -> Any:
        size = 1 + (matrices * matrices.conj()).real.sum((-2, -1), keepdim=True)
        whole = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
        return func(matrices @ matrices.mH / size + whole, *args, **kwargs)

    return of_any


STAND_INS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    torch.poisson: _elementwise,
    torch._standard_gamma: _elementwise,
    torch.binomial: _elementwise,
    torch.multinomial: _rows,
    Tensor.multinomial: _rows,
    torch._sample_dirichlet: _spread_over_the_last_axis,
    **{func: _recurrent(func) for func in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)},
    F.ctc_loss: _ctc_loss,
    **{func: _if_finite(func, 1) for func in (F.grid_sample, torch.grid_sampler)},
    torch.linalg.eigvals: _if_finite(torch.linalg.eigvals, 0),
    **{func: _definite(func) for func in (torch.linalg.cholesky, torch.cholesky, Tensor.cholesky)},
}
"""Functions that are proven by another of the same form.

Samplers whose draws depend on values (gamma, Poisson) move the generator by what one record holds, so that all later
draws look as if they moved with it. Each draws every entry from that entry's own parameters, as its stand-in computes
it.
"""
