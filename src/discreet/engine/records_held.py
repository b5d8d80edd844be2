"""Which tensors hold the records of a dataset, so that they do not count as public in the training loop."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from types import GeneratorType, ModuleType
from typing import Any, Final

import numpy as np
from torch import Tensor, nn

from discreet.engine.proof.lineage import addresses_of, has_memory, live_tensors, version_of

_MOST: Final = 500_000  # objects that are looked at
_PLAIN: Final = (str, bytes, int, float, complex, type(None), type, range, nn.Module, ModuleType)


def tensors_held_by(data: Any, live: Iterable[Tensor] = ()) -> list[Tensor]:
    """The tensors that a dataset, or whatever gives batches, holds at any depth, and those of `live` in their memory.

    Tensors that share the memory of a NumPy array of the dataset are among the latter.
    """
    held: list[Tensor] = []
    memory: list[tuple[int, int]] = []
    ahead, seen = deque([data]), set[int]()
    while ahead and len(seen) < _MOST:
        one = ahead.popleft()
        if id(one) in seen or isinstance(one, _PLAIN):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            held.append(one)
            memory += _memory(one)
            continue
        if isinstance(one, np.ndarray):
            memory += _memory_of_array(one)
        ahead += (part for part in _parts(one) if not isinstance(part, _PLAIN))
    return held + _inside(memory, live)


@contextmanager
def changed_tensors(tell: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `tell` for the tensors that were made or written to inside the block, after it."""
    before = {id(tensor): (tensor, version_of(tensor)) for tensor in live_tensors()}
    try:
        yield
    finally:
        for tensor in live_tensors():
            known = before.get(id(tensor))
            if known is None or known[1] != version_of(tensor):
                tell(tensor)


def _parts(one: Any) -> Iterator[Any]:
    """What an object holds: items, attributes and slots."""
    if isinstance(one, np.ndarray):
        yield from one.flat if one.dtype == object else ()
    elif isinstance(one, Mapping):
        yield from list(one.values())
    elif isinstance(one, (tuple, list, deque, Set)):
        yield from one
    elif isinstance(one, GeneratorType):
        yield from () if one.gi_frame is None else one.gi_frame.f_locals.values()
    yield from list(getattr(one, "__dict__", {}).values())
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hidden = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and name[-2:] != "__" else name
            yield getattr(one, hidden, None)


def _memory(tensor: Tensor) -> list[tuple[int, int]]:
    """The addresses of all the memory that a tensor is a view of."""
    if not has_memory(tensor) or tensor.device.type != "cpu":
        return []
    start, stop = addresses_of(tensor)
    return [(start, stop)] if stop > start else []


def _memory_of_array(array: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """The addresses of the entries of an array; those that it skips may belong to somebody else."""
    if array.size == 0:
        return []
    start = int(array.__array_interface__["data"][0])
    reach = [(length - 1) * step for length, step in zip(array.shape, array.strides, strict=True)]
    return [(start + sum(min(0, way) for way in reach), start + sum(max(0, way) for way in reach) + array.itemsize)]


def _inside(memory: list[tuple[int, int]], live: Iterable[Tensor]) -> list[Tensor]:
    """The tensors whose memory overlaps one of the ranges."""
    if not memory:
        return []
    ranges = np.array(sorted(memory), dtype=np.int64)
    starts, ends = ranges[:, 0], np.maximum.accumulate(ranges[:, 1])
    found = []
    for tensor in live:
        for start, stop in _memory(tensor):
            before = int(np.searchsorted(starts, np.int64(stop)))  # ranges that begin before this one ends
            if before and int(ends[before - 1]) > start:
                found.append(tensor)
    return found
