"""Smaller sizes for views, expansions and splits.

The axes of a view fall into groups: the first axes of the input that have as many entries as the first axes of the
result, and so on. Entries stay in order within a group, so that its axes can be made smaller together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from discreet.engine.proof.forms.bound_arguments import BoundArguments, SmallCall, capped, whole
from discreet.engine.proof.forms.provable_call import UnprovableError

_EACH: Final = 2  # entries of each piece of a split
_REST: Final = -1  # the size that torch computes


def smaller_view(call: BoundArguments) -> SmallCall:
    """view(input, *sizes), reshape(input, sizes)."""
    sizes, target = call.size(0, "input"), _sizes_given(call)
    whole_target = _resolved(list(sizes), target)
    own, result = list(sizes), list(whole_target)
    for before, after in _groups(sizes, whole_target, call.records):
        if len(before) > 1 and len(after) > 1:
            raise ValueError("axes that are cut anew")
        many, few, source, other = (own, result, before, after) if len(after) == 1 else (result, own, after, before)
        for axis in source:
            many[axis] = capped(many[axis])
        for axis in other:
            few[axis] = _product([many[axis] for axis in source])
    call.resize(0, "input", tuple(own))
    return _with_sizes(call, [_REST if size == _REST else new for size, new in zip(target, result, strict=True)])


def smaller_expansion(call: BoundArguments) -> SmallCall:
    """expand(input, *sizes)."""
    sizes, target = list(call.size(0, "input")), _sizes_given(call)
    new = len(target) - len(sizes)
    for size, wanted in zip(sizes, target[new:], strict=True):
        if size != 1 and wanted not in (size, _REST):
            raise ValueError("sizes that follow the records in one of both")
    call.resize(0, "input", tuple(map(capped, sizes)))
    return _with_sizes(call, [_REST if size == _REST else capped(size) for size in target])


def smaller_split(call: BoundArguments) -> SmallCall:
    """split(input, size of a piece or all sizes, dim)."""
    given = call.given()
    sizes, pieces, dim = list(call.size(0, "input")), given.pop(0), given.pop(0) if given else 0
    whole(dim)
    length = sizes[dim]
    if type(pieces) is tuple and type(length) is int:
        raise UnprovableError("the number of pieces does not follow the number of records")
    whole(length, *(pieces if isinstance(pieces, list) else [pieces]))
    if isinstance(pieces, list):
        pieces = [min(size, _EACH) for size in pieces]
        smaller = sum(pieces)
    else:
        full, rest = divmod(length, pieces)
        pieces = min(pieces, _EACH) if not rest else _EACH
        smaller = full * pieces + min(rest, 1)
    sizes = list(map(capped, sizes))
    sizes[dim] = smaller
    call.resize(0, "input", tuple(sizes))
    call.put_given([pieces, dim])
    return call.done(is_fixed=False)


def _sizes_given(call: BoundArguments) -> list[Any]:
    """The sizes of the result, given one by one or together."""
    given = call.given()
    sizes = given[0] if len(given) == 1 and isinstance(given[0], list) else given
    if any(isinstance(size, list) for size in sizes):
        raise ValueError("sizes within sizes")
    return list(sizes)


def _with_sizes(call: BoundArguments, sizes: list[Any]) -> SmallCall:
    is_nested = isinstance(call.given()[0], list)
    call.put_given([sizes] if is_nested else sizes)
    return call.done(is_fixed=False)


def _entries(sizes: list[Any]) -> tuple[int, int]:
    """How many entries, as a factor and a power of the number of records."""
    factor = math.prod(size[0] if type(size) is tuple else size for size in sizes)
    return factor, sum(type(size) is tuple for size in sizes)


def _product(sizes: list[Any]) -> Any:
    factor, power = _entries(sizes)
    if power > 1:
        raise ValueError("two axes that follow the records")
    return (factor,) if power else factor


def _resolved(sizes: list[Any], target: list[Any]) -> list[Any]:
    """The sizes of the result, with the one that torch computes."""
    (factor, power), (known, taken) = _entries(sizes), _entries([size for size in target if size != _REST])
    if not known or not factor:
        raise ValueError("no entries")
    has_rest, left = _REST in target, power - taken
    if factor % known or left not in (0, 1) or (not has_rest and (left or factor != known)):
        raise UnprovableError("other numbers of records have another number of entries")
    rest = (factor // known,) if left else factor // known
    return [rest if size == _REST else size for size in target]


def _groups(sizes: Any, target: list[Any], records: int) -> Iterator[tuple[list[int], list[int]]]:
    """The axes of the input and of the result that hold the same entries; axes of one entry are left out."""
    own, result = ([axis for axis, size in enumerate(some) if size != 1] for some in (sizes, target))
    while own and result:
        before, after = [own.pop(0)], [result.pop(0)]
        while (held := _entries([sizes[i] for i in before])) != (needed := _entries([target[i] for i in after])):
            here, there = (factor * records**power for factor, power in (held, needed))
            if here == there:
                raise ValueError("sizes that are equal for this number of records alone")
            if here < there:
                before.append(own.pop(0))
            else:
                after.append(result.pop(0))
        yield before, after
