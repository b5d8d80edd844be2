"""Which tensors hold the records of a dataset, so that they do not count as public in the training loop."""

import bisect
import contextvars
import gc
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from discreet.engine.dataset.named_by_code import contents_of, is_installed, named_by
from discreet.engine.model.support import modules_in
from discreet.engine.proof.lineage import addresses_of, has_memory, live_tensors, version_of

_MOST: Final = 500_000  # objects that are looked at
_PLAIN: Final = (
    *(str, int, float, complex, type(None), range, np.number, np.bool_),
    *(CodeType, FrameType, TracebackType),  # all that a program has hangs on these
)
_WITHOUT_RECORDS: Final = (*_PLAIN, ModuleType, nn.Module)
_OWN: Final = "discreet.engine"  # refers to all tensors there are


def tensors_held_by(data: Any, live: Iterable[Tensor] = (), model: nn.Module | None = None) -> list[Tensor]:
    """The tensors that a dataset, or whatever gives batches, holds at any depth, and those of `live` in their memory.

    Tensors that share the memory of a NumPy array, or of another buffer, of the dataset are among the latter.

    model  the one that is trained; what it holds is not the dataset's, also if the dataset holds the model, something
           of an installed package around it, or its optimizer
    """
    held: list[Tensor] = []
    memory: list[tuple[int, int]] = []
    ahead, no_buffers = deque([data]), set[type]()
    seen: dict[int, Any] = {}  # kept, as the place of an object that is gone may be another's
    modules = modules_in(model) if model is not None else []
    apart = set(map(id, [*modules, *(p for one in modules for p in one._parameters.values() if _is_trained(p))]))
    while ahead and len(seen) < _MOST:
        one = _referent(ahead.popleft())
        kind = type(one)
        if id(one) in seen or id(one) in apart or issubclass(kind, _PLAIN) or str(kind.__module__).startswith(_OWN):
            continue
        if isinstance(one, nn.Module) and is_installed(kind.__module__) and apart.intersection(map(id, one.children())):
            ahead += one.children()  # the rest of a wrapper names what is in the model
            continue
        if kind not in no_buffers and len(memory) < 2 * _MOST:
            memory += _memory_of_buffer(one, no_buffers)
        if kind is bytes:
            continue  # does not count: there may be one for each record
        seen[id(one)] = one
        if isinstance(one, torch.UntypedStorage):
            one = torch.empty(0, dtype=torch.uint8, device=one.device).set_(one)
        if isinstance(one, Tensor):
            held.append(one)
            memory += _memory(one)
            continue
        ahead += (part for part in _parts(one) if not issubclass(type(part), _PLAIN))
    return held + _inside(memory, live)


@contextmanager
def changed_tensors(tell: Callable[[Tensor], None]) -> Iterator[list[Tensor]]:
    """Call `tell` for the tensors that were made or written to inside the block, after it; gives those before it."""
    live = live_tensors()
    before = {id(tensor): (tensor, version_of(tensor)) for tensor in live}
    try:
        yield live
    finally:
        for tensor in live_tensors():
            known = before.get(id(tensor))
            if known is None or known[1] != version_of(tensor):
                tell(tensor)


def _is_trained(parameter: Tensor | None) -> bool:
    return parameter is not None and parameter.requires_grad


def _referent(one: Any) -> Any:
    """What a weak reference or a context variable stands for; other objects stand for themselves."""
    try:
        while type(one) in weakref.ProxyTypes:
            one = one.__dir__.__self__
    except (ReferenceError, AttributeError):
        return None
    if isinstance(one, weakref.ref):
        one = one()
        return None if isinstance(one, type) else one  # abstract classes note so all that they were compared with
    return one.get(None) if isinstance(one, contextvars.ContextVar) else one


def _parts(one: Any) -> Iterator[Any]:
    """What an object holds, and what the code that it runs names: a record can come from any of these.

    Of a function that is what it closes over, its defaults, and the global names that it reads; not all globals of its
    module, among which public tensors are.
    """
    if isinstance(one, np.ndarray):
        yield from one.flat if one.dtype == object else ()
    elif isinstance(one, FunctionType):
        outer = dict(zip(one.__code__.co_freevars, map(_in_cell, one.__closure__ or ()), strict=True))
        yield from (one.__defaults__, one.__kwdefaults__, one.__dict__)
        yield from _variables(outer, one.__code__, one.__globals__)
    elif isinstance(one, GeneratorType):
        if one.gi_frame is not None:
            yield from _variables(one.gi_frame.f_locals, one.gi_code, one.gi_frame.f_globals)
    elif isinstance(one, type):
        if not is_installed(one.__module__):
            yield from (*vars(one).values(), *one.__bases__)
        return
    elif isinstance(one, ModuleType):
        yield from contents_of(one)
    else:
        if isinstance(one, Mapping):
            yield from list(one.values())  # those of a class of its own may be made when they are asked for
        elif isinstance(one, torch.jit.ScriptModule):
            yield from (*one.parameters(), *one.buffers())  # are not objects of Python
        yield from gc.get_referents(one)  # items, attributes, slots, and what iterators of C go over
    yield type(one)


def _variables(variables: Mapping[str, Any], code: CodeType, names: Mapping[str, Any]) -> Iterator[Any]:
    """The variables that code was given, and what it names; of modules among them, what it reads."""
    modules = {name: value for name, value in variables.items() if isinstance(value, ModuleType)}
    yield from (value for name, value in variables.items() if name not in modules)
    yield from named_by(code, names, modules)


def _in_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # is not set yet
        return None


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
    ahead, seen = [record], dict[int, Any]()
    while ahead:
        one = ahead.pop()
        if isinstance(one, Tensor):
            yield from _memory(one)
        elif isinstance(one, np.ndarray):
            yield from _memory_of_array(one)
        elif id(one) not in seen and not isinstance(one, _WITHOUT_RECORDS):
            seen[id(one)] = one  # kept, so that no other object gets its number
            ahead += _parts_of_record(one)


def _parts_of_record(one: Any) -> Iterator[Any]:
    """The parts of a record."""
    if isinstance(one, (tuple, list)):
        yield from one
    elif isinstance(one, Mapping):
        yield from one.values()
    else:
        yield from getattr(one, "__dict__", {}).values()
        yield from _slots_of(one)


def _slots_of(one: Any) -> Iterator[Any]:
    """What an object holds in slots."""
    for kind in type(one).__mro__:
        slots = [name for name, member in vars(kind).items() if isinstance(member, MemberDescriptorType)]
        yield from (getattr(one, name, None) for name in slots)


def _memory(tensor: Tensor) -> list[tuple[int, int]]:
    """The addresses of all the memory that a tensor is a view of."""
    if not has_memory(tensor) or tensor.device.type != "cpu":
        return []
    start, stop = addresses_of(tensor)
    return [(start, stop)] if stop > start else []


def _memory_of_buffer(one: Any, no_buffers: set[type]) -> list[tuple[int, int]]:
    """The addresses of an array of NumPy, or of anything else whose memory Python can show: bytes, `array`, `mmap`."""
    if isinstance(one, np.ndarray):
        return _memory_of_array(one)
    try:
        return _memory_of_array(np.asarray(memoryview(one)))
    except TypeError:
        no_buffers.add(type(one))
    except (ValueError, BufferError):
        pass  # it was let go of
    return []


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
