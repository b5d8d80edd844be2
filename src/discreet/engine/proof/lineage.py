"""Where the values of a step come from: public, one record's own along one axis, or mixed.

Guarantee: a tensor is public only if it is a parameter or a buffer of the model, existed unchanged before the first
record was read, came from watched calls on public tensors, or was declared public by the user. Whatever else turns up
(from NumPy, a file, another thread, an earlier batch) is mixed.
"""

from __future__ import annotations

import enum
import gc
import operator
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import CodeType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from discreet.engine.trace.capture import RecordAxis


class Lineage(enum.Enum):
    """What a tensor depends on, where no axis of it is the record."""

    PUBLIC = "no record"
    SOLE = "the one record of the batch"
    MIXED = "several records, or something that was not watched"


PUBLIC: Final = Lineage.PUBLIC
SOLE: Final = Lineage.SOLE
MIXED: Final = Lineage.MIXED


@dataclass(frozen=True)
class Blame:
    """Which call mixed records: its name, the user's line, and why."""

    call: str
    where: str
    why: str
    remedy: str


ReadDraws = frozenset[frozenset[tuple[int, RecordAxis]]]
"""Ways to read draws (read_draws.py): in each, the digest of a draw, and its axis that has a row for each record."""


Ways = frozenset[tuple[RecordAxis, tuple[tuple[int, RecordAxis], ...]]]


@dataclass(frozen=True)
class PublicRows:
    """What is known of a public tensor that a step made with a size that may follow the number of records.

    A size may also equal the number of records by chance, so that this holds for several readings of the same call.

    equal   axes along which it has a row for each record: equal ones, or independent draws (`drawn`)
    placed  axes along which the row of a record depends on the record's place, and on no other row
    proven  which arguments may follow the number of records without a value that depends on it: for each reading, the
            places of tensors with their axes, and those of whole numbers; None for any
    shared  axes along which records may share numbers that the call drew by itself
    ways    for an axis, the tensors that the call took by rows along which of their axes
    draws   for an axis, how the draws that reach it are read
    used    how draws are read by a call on records
    """

    equal: frozenset[RecordAxis] = frozenset()
    placed: frozenset[RecordAxis] = frozenset()
    proven: frozenset[tuple[frozenset[tuple[int, int]], frozenset[int]]] | None = frozenset()
    drawn: bool = False
    shared: frozenset[RecordAxis] = frozenset()
    ways: Ways = field(default=frozenset(), compare=False, repr=False)
    draws: Mapping[RecordAxis, ReadDraws] = field(default_factory=dict, compare=False, repr=False)
    used: ReadDraws = field(default=frozenset([frozenset()]), compare=False, repr=False)

    @property
    def axes(self) -> list[RecordAxis]:
        return sorted(self.equal | self.placed, key=lambda place: (place.axis, place.minor))


UNPROVEN_ROWS: Final = PublicRows()


GENERATOR_STATE, CUSTOM_GRAPH, SPREAD_ROWS = -1, -2, -3
_ALIGNED: Final = 64  # bytes that a vector of the processor takes at once, at most


Geometry = tuple[torch.Size, tuple[int, ...], int]
"""Which entries of its memory a tensor has: its sizes, its strides and where it begins."""


class Origin:
    """How a value was made. Two steps made their losses alike if and only if the digests agree (up to collisions).

    It holds nothing of a batch: where a call comes again, what it makes has the same origin (known_calls.py).
    """

    __slots__ = (
        *("blame", "digest", "form", "func", "is_kept", "is_loose", "lineage", "output", "parents", "rows"),
        *("settings", "where"),
    )

    def __init__(
        self,
        lineage: Lineage | RecordAxis,
        digest: int,
        func: Callable[..., Any] | None = None,
        settings: Any = None,
        parents: tuple[Origin, ...] = (),
        blame: Blame | None = None,
        where: tuple[CodeType, int] | None = None,
        rows: PublicRows | None = None,
        output: int = 0,
    ) -> None:
        self.lineage, self.digest = lineage, digest
        self.func, self.settings, self.parents, self.blame = func, settings, parents, blame
        self.form: Any = None
        self.is_kept = False  # whether this object also stands for what other batches make alike
        self.is_loose = False  # whether the tensor is known not to be contiguous
        self.where = where  # the line that made the call
        # which tensor of the result; GENERATOR_STATE: the state that a draw left; CUSTOM_GRAPH: the tensor of the
        # parent, with a backward pass of the user's own
        # SPREAD_ROWS: the public tensor of the parent, whose rows get gradients of records
        self.output = output
        self.rows = rows  # of a public tensor whose size follows the number of records


def values_of(origin: Origin) -> Origin:
    """How the values were made, whatever graph leads to them."""
    while origin.output == CUSTOM_GRAPH:
        (origin,) = origin.parents
    return origin


def is_of_records(origin: Origin) -> bool:
    """Whether watched calls made a tensor of records."""
    ahead, seen = [origin], set[int]()
    while ahead:
        one = ahead.pop()
        if one.lineage is SOLE or isinstance(one.lineage, RecordAxis):
            return True
        if id(one) not in seen:
            seen.add(id(one))
            ahead += one.parents
    return False


class SeenTensor(NamedTuple):
    """One tensor object as it was last seen; `clock` says up to when its origin accounts for writes."""

    tensor: weakref.ref[Tensor]  # no tensor lives longer for being watched
    version: int
    node: type  # of its graph: an autograd.Function puts its own node on a view
    origin: Origin
    clock: int

    @classmethod
    def of(cls, tensor: Tensor, origin: Origin, clock: int) -> SeenTensor:
        origin.is_loose = tensor.layout is torch.strided and not tensor.is_contiguous()
        return cls(weakref.ref(tensor), version_of(tensor), type(tensor.grad_fn), origin, clock)


class ExistingTensors:
    """The tensors that were there before the first batch, and what they held."""

    def __init__(self, live: Iterable[Tensor], private: Iterable[Tensor]) -> None:
        withheld = {storage_of(tensor) for tensor in private if has_memory(tensor)}
        self._known: dict[int, tuple[weakref.ref[Tensor], int, int, tuple[Any, ...]]] = {}
        self._private: dict[int, weakref.ref[Tensor]] = {}
        for tensor in live:
            if not has_memory(tensor) or _is_freed(tensor):
                continue
            if storage_of(tensor) in withheld:
                self._private[id(tensor)] = weakref.ref(tensor)
            else:
                seen = version_of(tensor), _content(tensor), form_of(tensor)
                self._known[id(tensor)] = weakref.ref(tensor), *seen

    def has(self, tensor: Tensor) -> bool:
        """Whether this tensor existed and holds what it held."""
        found = self._known.get(id(tensor))
        if found is None or found[0]() is not tensor:
            return False
        return found[1:] == (version_of(tensor), _content(tensor), form_of(tensor))

    def name_of(self, tensor: Tensor) -> tuple[Any, ...]:
        """What it held, which other processes can compare."""
        return "existing", self._known[id(tensor)][2], str(tensor.dtype), tuple(tensor.shape)

    def forget(self, tensor: Tensor) -> None:
        """It holds records."""
        self._known.pop(id(tensor), None)
        self._private[id(tensor)] = weakref.ref(tensor)

    def is_private(self, tensor: Tensor) -> bool:
        """Whether this tensor existed and belongs to the dataset."""
        found = self._private.get(id(tensor))
        return found is not None and found() is tensor

    def existed(self, tensor: Tensor) -> bool:
        found = self._known.get(id(tensor))
        return found is not None and found[0]() is tensor


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A parameter or buffer, its sizes and type, and its origins: while it is frozen, and while it is trained."""

    tensor: Tensor
    size: torch.Size
    dtype: torch.dtype
    frozen: Origin
    trained: Origin

    @classmethod
    def of(cls, tensor: Tensor, number: int) -> HeldTensor:
        """A tensor as it is now, by its place among those of the model."""
        names = [("held", number, needs) for needs in (False, True)]
        frozen, trained = (Origin(PUBLIC, hash(name), settings=name) for name in names)
        frozen.is_kept = trained.is_kept = True
        return cls(tensor, tensor.shape, tensor.dtype, frozen, trained)

    def is_as_it_was(self, tensor: Tensor) -> bool:
        return self.tensor is tensor and self.size == tensor.shape and self.dtype == tensor.dtype


@dataclass(frozen=True)
class ExportedMemory:
    """A memory that others can write to unseen, and a digest of what it held.

    counter  a tensor that shares torch's count of writes with the one that was exported
    """

    memory: torch.UntypedStorage
    content: int
    counter: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> ExportedMemory:
        """The memory of a tensor as it is now."""
        memory = tensor.untyped_storage()
        with torch._C.DisableTorchFunction():
            return cls(memory, _content_of(memory), tensor.detach())

    def is_unchanged(self) -> bool:
        return _content_of(self.memory) == self.content

    def after(self, tensor: Tensor) -> ExportedMemory:
        """The same after a watched write through a tensor, unless autograd counts that write for that tensor alone."""
        return ExportedMemory.of(tensor) if version_of(tensor) == version_of(self.counter) else self


def _content_of(memory: torch.UntypedStorage) -> int:
    return _content(torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory))


def _is_freed(tensor: Tensor) -> bool:
    """Whether a tensor has given its memory back, as the gathered parameters of a sharded model do."""
    return tensor.untyped_storage().nbytes() == 0 < tensor.numel()


_VERSION: Final = operator.attrgetter("_version")


def versions_of(tensors: list[Tensor]) -> list[int]:
    """How often each tensor was written to."""
    try:
        return list(map(_VERSION, tensors))  # nearly always
    except RuntimeError:
        return [version_of(tensor) for tensor in tensors]


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor is an ordinary one: dense, of no class of its own, wrapped by no transform."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout == torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to; tensors of inference mode do not count."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def storage_of(tensor: Tensor) -> int:
    """What the views of one memory have in common."""
    return int(tensor.untyped_storage()._cdata)


def addresses_of(tensor: Tensor) -> tuple[int, int]:
    """Where all the memory that a tensor is a view of begins and ends."""
    memory = tensor.untyped_storage()
    return memory.data_ptr(), memory.data_ptr() + memory.nbytes()


def shares_memory(tensor: Tensor, stranger: Tensor) -> bool:
    """Whether two tensors of different storages have memory in common."""
    if not has_memory(tensor) or storage_of(tensor) == storage_of(stranger):
        return False
    (first, last), (start, stop) = addresses_of(tensor), addresses_of(stranger)
    return first < stop and start < last


def form_of(tensor: Tensor) -> tuple[Any, ...]:
    """What decides about results besides the content: kernels go by strides and alignment, and round otherwise."""
    own = tensor.dtype, tensor.shape, tensor.layout
    if tensor.layout != torch.strided or tensor.is_meta:
        return own
    bits = tensor.is_conj(), tensor.is_neg()  # the memory holds the conjugate, or the negative
    return *own, tensor.stride(), tensor.data_ptr() % _ALIGNED, *bits, *_quantiser(tensor)


def _quantiser(tensor: Tensor) -> tuple[Any, ...]:
    """By which rule the integers of a quantised tensor stand for numbers."""
    if not tensor.is_quantized:
        return ()
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return tensor.qscheme(), tensor.q_scale(), tensor.q_zero_point()
    channels = [each.tolist() for each in (tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points())]
    return tensor.qscheme(), tensor.q_per_channel_axis(), *map(tuple, channels)


def content_of(tensor: Tensor) -> Tensor:
    """What a tensor holds, in order, on the CPU: the integers of a quantised one."""
    values = tensor.detach()
    values = values.int_repr() if values.is_quantized else values.resolve_conj().resolve_neg()
    return values.cpu().contiguous()


def _content(tensor: Tensor) -> int:
    """A digest of the values: memory that NumPy shares changes without a new version."""
    if tensor.is_meta or tensor.numel() == 0:
        return 0
    values = content_of(tensor).flatten()
    if values.stride(0) != 1:  # one entry of an expanded tensor
        values = values.clone(memory_format=torch.contiguous_format)
    return zlib.crc32(values.view(torch.uint8).numpy().data)


class RecordList(list[Any]):
    """A list with an entry for each record: its tensors have no row for each, even if they have as many rows."""


class RecordTuple(tuple[Any, ...]):
    """The same as a tuple."""


PER_RECORD: Final = (RecordList, RecordTuple)


def places_in(batch: Any, rows: int) -> list[tuple[Tensor, RecordAxis | Lineage]]:
    """The tensors of a batch; the first axis is the record, and a tensor without one row per record is mixed."""
    found: list[tuple[Tensor, RecordAxis | Lineage]] = []
    ahead, seen = [batch], set()
    while ahead:
        tree = ahead.pop(0)
        if id(tree) in seen:
            continue
        seen.add(id(tree))
        if isinstance(tree, Tensor):
            is_row = tree.dim() > 0 and tree.shape[0] == rows
            found.append((tree, RecordAxis(0) if is_row else MIXED))
        elif isinstance(tree, PER_RECORD):
            found += [(tensor, MIXED) for tensor, _ in places_in(list(tree), rows)]
        elif isinstance(tree, (tuple, list)):
            ahead += tree
        elif isinstance(tree, Mapping):
            ahead += [*tree.values(), *getattr(tree, "__dict__", {}).values()]  # classes of dictionaries have both
        elif is_dataclass(tree):
            ahead += [getattr(tree, one.name) for one in fields(tree)]
        elif not isinstance(tree, type):
            ahead += getattr(tree, "__dict__", {}).values()
    return found


def live_tensors() -> list[Tensor]:
    kinds: set[type] = set()
    ahead: list[type] = [Tensor]
    while ahead:
        kind = ahead.pop()
        if kind not in kinds:
            kinds.add(kind)
            ahead += type.__subclasses__(kind)
    return [one for one in gc.get_objects() if type(one) in kinds]
