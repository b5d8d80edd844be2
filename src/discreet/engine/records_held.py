"""Which tensors hold the records of a dataset, so that they do not count as public in the training loop."""

import bisect
import dis
import functools
import gc
import itertools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType, TracebackType
from typing import Any, Final, final

import numpy as np
from torch import Tensor, nn

from discreet.engine.proof.lineage import addresses_of, has_memory, live_tensors, version_of

_MOST: Final = 500_000  # objects that are looked at
_PLAIN: Final = (
    *(str, bytes, int, float, complex, type(None), range, nn.Module),
    *(ModuleType, CodeType, FrameType, TracebackType),  # all that a program has hangs on these
)


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
    """What an object holds, and what the code that it runs names: a record can come from any of these.

    Of a function that is what it closes over, its defaults, and the global names that it reads; not all globals of its
    module, among which public tensors are.
    """
    if isinstance(one, np.ndarray):
        yield from one.flat if one.dtype == object else ()
    elif isinstance(one, FunctionType):
        yield from (one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__)
        yield from _named(one.__code__, one.__globals__, one.__module__)
    elif isinstance(one, GeneratorType):
        if one.gi_frame is not None:
            yield from one.gi_frame.f_locals.values()
            yield from _named(one.gi_code, one.gi_frame.f_globals, one.gi_frame.f_globals.get("__name__"))
    elif isinstance(one, type):
        if not _is_installed(one.__module__):
            yield from (*vars(one).values(), *one.__bases__)
        return
    else:
        if isinstance(one, Mapping):
            yield from list(one.values())  # those of a class of its own may be made when they are asked for
        yield from gc.get_referents(one)  # items, attributes, slots, and what iterators of C go over
    yield type(one)


def _named(code: CodeType, names: Mapping[str, Any], module: str | None) -> Iterator[Any]:
    """The global names that the user's code reads, also in functions inside it."""
    if _is_installed(module):
        return
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield names.get(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _named(inner, names, module)


@functools.cache
def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package, whose globals hold no records."""
    top = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return top in sys.stdlib_module_names or top == "discreet" or "site-packages" in file or "dist-packages" in file


@final
class KnownMemory:
    """Where tensors lie, to find those that a record turns out to be a view of."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        spans = [(span, weakref.ref(tensor)) for tensor in tensors for span in _memory(tensor)]
        self._tensors, self._ranges = spans, _Ranges([span for span, _ in spans])

    def __len__(self) -> int:
        return len(self._tensors)

    def taken_by(self, record: Any) -> list[Tensor]:
        """The tensors in whose memory a record lies, as the dataset returned it. Each is found once."""
        shared = _Ranges([span for span in _memories_in(record) if self._ranges.meet(*span)])
        if not shared:
            return []
        found = [tensor() for span, tensor in self._tensors if shared.meet(*span)]
        self._tensors = [(span, tensor) for span, tensor in self._tensors if not shared.meet(*span)]
        self._ranges = _Ranges([span for span, _ in self._tensors])
        return [tensor for tensor in found if tensor is not None]


def _memories_in(record: Any) -> Iterator[tuple[int, int]]:
    """The memory of the tensors and arrays of a record."""
    if isinstance(record, Tensor):
        yield from _memory(record)
    elif isinstance(record, np.ndarray):
        yield from _memory_of_array(record)
    elif isinstance(record, Mapping):
        for part in record.values():
            yield from _memories_in(part)
    elif isinstance(record, (tuple, list)):
        for part in record:
            yield from _memories_in(part)
    elif hasattr(record, "__dict__") and not isinstance(record, _PLAIN):
        yield from _memories_in(vars(record))


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
    ranges = _Ranges(memory)
    return [tensor for tensor in live if ranges and any(ranges.meet(*span) for span in _memory(tensor))]


@final
class _Ranges:
    """Ranges of addresses."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        ranges = sorted(ranges)
        self._starts = [start for start, _ in ranges]
        self._ends = list(itertools.accumulate((stop for _, stop in ranges), max))

    def __len__(self) -> int:
        return len(self._starts)

    def meet(self, start: int, stop: int) -> bool:
        """Whether one of them overlaps this one."""
        before = bisect.bisect_left(self._starts, stop)  # ranges that begin before this one ends
        return before > 0 and self._ends[before - 1] > start
