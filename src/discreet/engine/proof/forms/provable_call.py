"""A call that can be run on other values, and what a proof says about it."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward as _run_backward

from discreet.core.secret_draws import default_generators
from discreet.engine.proof.lineage import MIXED, PUBLIC, Lineage
from discreet.engine.trace.capture import RecordAxis, bare_name

FEW, MANY = 5, 67
FEWER: Final = (3, 2, 1)  # `torch.cross` without an axis takes the first one of size 3, maybe that of the records

Place = Lineage | RecordAxis


@final
@dataclass(frozen=True)
class Numbers:
    """Which whole numbers among the arguments of a call are taken to follow the number of records.

    Only multiples of that number can; `which` are their places among those. None stands for all of them.
    """

    which: frozenset[int] | None = None

    def follow(self, place: int) -> bool:
        return self.which is None or place in self.which


ALL_FOLLOW: Final = Numbers()
NONE_FOLLOW: Final = Numbers(frozenset())
_MOST_CHOICES: Final = 12


def choices_of_numbers(multiples: Sequence[int], records: int) -> Iterator[Numbers]:
    """What to try: all of them, those that equal the number of records, other choices, none."""
    yield ALL_FOLLOW
    places = range(len(multiples))
    tried = [frozenset(places), frozenset(i for i in places if multiples[i] == records)]
    if tried[1] != tried[0]:
        yield Numbers(tried[1])
    sizes = reversed(range(1, len(multiples)))
    others = (frozenset(own) for size in sizes for own in itertools.combinations(places, size))
    yield from map(Numbers, itertools.islice((own for own in others if own not in tried), _MOST_CHOICES))
    if multiples and tried[1]:
        yield NONE_FOLLOW


def factor_of(size: int, records: int) -> int | None:
    """How many times the number of records a size is; None if it is fixed."""
    return None if records < 2 or size < records or size % records else size // records


@dataclass(frozen=True)
class Leaf:
    """One tensor among the arguments: where the record lies, and how its sizes follow the number of records.

    sizes   per axis, a fixed size or (factor,) times the number of records
    values  what a public tensor of whole numbers holds, where that matters; `counts` if it holds 0, 1, 2, ...
    """

    like: Tensor
    place: Place
    sizes: tuple[Any, ...]
    needs_grad: bool = False
    values: Tensor | None = None
    counts: bool = False

    def growing(self, records: int | None = None) -> list[RecordAxis]:
        """Axes of a public tensor that may have a row for each record; of any size, or of sizes for `records`."""
        if self.place is not PUBLIC or self.counts or self.values is not None:
            return []
        found: list[RecordAxis] = []
        for axis, size in enumerate(self.sizes):
            factor = size[0] if type(size) is tuple else size // records if records and size % records == 0 else 0
            if factor:
                found += [RecordAxis(axis), *([RecordAxis(axis, minor=True)] if factor > 1 else [])]
        return found

    def first(self, value: Tensor, few: int = FEW) -> Tensor:
        """What a few records see of a value for MANY."""
        if isinstance(self.place, RecordAxis):
            return first(value, self.place, few)
        for axis, size in enumerate(self.sizes):
            if type(size) is tuple:
                value = first(value, RecordAxis(axis), few)
        return value

    def repeated(self, row: Tensor, records: int) -> Tensor:
        """The values of one record for as many records."""
        if not isinstance(self.place, RecordAxis):
            return row
        axis = self.place.axis
        return row.repeat_interleave(records, axis) if self.place.minor else torch.cat([row] * records, axis)

    def shape(self, records: int) -> list[int]:
        return [size[0] * records if type(size) is tuple else size for size in self.sizes]


@dataclass(frozen=True)
class ProvableCall:
    """A call with its tensors taken out: `rebuild(tensors, records)` gives its arguments for any number of records.

    moderate  the same with moderate numbers, if some are out of scale (moderate_numbers.py)
    """

    func: Callable[..., Any]
    leaves: tuple[Leaf, ...]
    rebuild: Callable[[Sequence[Any], int], tuple[Any, Any]]
    special: tuple[int, ...] = ()  # whole numbers among the settings
    moves: bool = False  # whether it copies entries, and looks at none
    has_fixed_numbers: bool = False  # whether no number among the arguments follows the number of records
    has_rows: bool = False  # whether a smaller call has as many rows of each record as the call itself
    moderate: Callable[[Sequence[Any], int], tuple[Any, Any]] | None = None

    def with_moderate_numbers(self) -> ProvableCall | None:
        """The call that shows what numbers out of scale hide; None if there are none."""
        return None if self.moderate is None else replace(self, rebuild=self.moderate, moderate=None)

    def bytes_for(self, records: int) -> int:
        """The memory of its tensors, for so many records."""
        return sum(math.prod(leaf.shape(records)) * leaf.like.element_size() for leaf in self.leaves)

    def key(self) -> Any:
        """All that its proof depends on."""
        leaves = tuple((leaf.like.dtype, leaf.like.device, leaf.place, leaf.sizes, leaf.counts) for leaf in self.leaves)
        return leaves, *(_frozen(self.rebuild(["a tensor"] * len(leaves), records)) for records in (FEW, MANY))


@dataclass(frozen=True)
class CallVerdict:
    """What a call does to records.

    outputs  for each tensor of the result, then for each argument that was written to: its lineage
    factors  entries of one record along the record axis; the shape of a public output, None if it is free
    written  which arguments were written to, by their place among the tensors
    why      why an output is mixed
    numbers  which whole numbers followed the number of records in the proof
    rows     public tensors that must have a row for each record, by their place among the tensors, and along which axis
    followed axes of public tensors that followed the number of records in the proof
    shares_draws  whether it may draw numbers that go to several records
    """

    outputs: tuple[Place, ...]
    factors: tuple[Any, ...]
    written: tuple[int, ...] = ()
    why: str = ""
    sized_by_values: bool = False
    numbers: Numbers = ALL_FOLLOW
    rows: tuple[tuple[int, RecordAxis], ...] = ()
    followed: frozenset[tuple[int, int]] = frozenset()
    shares_draws: bool = False

    @property
    def keeps_apart(self) -> bool:
        return MIXED not in self.outputs


UNMOVED: Final = "its result shows no record on any value that was tried, but may on others"


@dataclass
class SeenOutput:
    """What is known of one output so far: axes that fit, and whether it moved."""

    candidates: list[RecordAxis]
    factor: dict[int, int]
    is_empty: bool = False
    moved: bool = False
    sized_by_values: bool = False

    @classmethod
    def of(cls, tensor: Tensor, inputs: Sequence[RecordAxis], records: int) -> SeenOutput:
        """Every axis fits that is a multiple of the number of records; first those at which the inputs have it."""
        found: list[RecordAxis] = []
        factors: dict[int, int] = {}
        for axis, size in enumerate(tensor.shape):
            if size % records == 0 and size > 0:
                factors[axis] = size // records
                found.append(RecordAxis(axis))
                if size > records:
                    found.append(RecordAxis(axis, minor=True))
        found.sort(key=lambda axis: (axis not in inputs, axis.minor))  # an output that never moves looks like its input
        return cls(found, factors, is_empty=tensor.numel() == 0)

    def place(self, *, is_by_size: bool, is_exact: bool) -> Place:
        """Where the record lies. That nothing moved shows nothing, unless the function looks at no values: the values
        that it looks for may not have been tried. An axis that followed two numbers of records is not there by chance,
        one that has the size of a single batch may be."""
        if self.moved or is_by_size or self.is_empty or (self.candidates and not is_exact):
            return self.candidates[0] if self.candidates else PUBLIC
        return MIXED


def first(tensor: Tensor, axis: RecordAxis, few: int = FEW) -> Tensor:
    """The entries of the first few of MANY records."""
    places = torch.arange(tensor.shape[axis.axis])
    own = places.view(-1, MANY)[:, :few] if axis.minor else places.view(MANY, -1)[:few]
    return tensor.index_select(axis.axis, own.flatten().to(tensor.device))


@contextmanager
def apart_from_the_run() -> Iterator[None]:
    """Neither the watch nor the generators of the run notice what happens inside."""
    states = [(generator, generator.get_state()) for generator in default_generators()]
    try:
        off = torch._C.DisableTorchFunction()
        with torch.inference_mode(False), off, torch.enable_grad(), _saved_as_they_are(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def _saved_as_they_are() -> AbstractContextManager[object]:
    """Hooks of a checkpointed region would take the proof's tensors for the region's."""
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


class UnprovableError(Exception):
    """The call does not run on values of our own."""


_UNDERIVED: Final = (
    "derivative for",
    "not differentiable",
    "not computed",
)  # how torch says that a function has no gradient


def gradients_of(
    outputs: Sequence[Tensor], pulls: Sequence[Tensor], inputs: Sequence[Tensor]
) -> Sequence[Tensor | None] | None:
    """What goes back to the inputs; None if torch has no gradient of the function: none goes back in a run, either."""
    pairs = zip(outputs, pulls, strict=True)
    pulled = [(one, pull.to(one.dtype)) for one, pull in pairs if one.requires_grad and one.shape == pull.shape]
    if not pulled:
        return [None] * len(inputs)
    tensors, gradients = zip(*pulled, strict=True)
    try:  # torch.autograd.grad imports sympy for this: half a second
        found: Any = _run_backward(tensors, gradients, False, False, tuple(inputs), True, accumulate_grad=False)
    except RuntimeError as error:
        if any(words in str(error) for words in _UNDERIVED):
            return None
        raise UnprovableError(f"its gradient fails: {str(error).splitlines()[0].rstrip('.')}") from None
    return tuple(found)


def tensors_of_result(tree: Any) -> list[Tensor]:
    """The tensors of a result, in order; also in named tuples and the like."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [tensor for branch in tree for tensor in tensors_of_result(branch)]
    if isinstance(tree, dict):
        return [tensor for branch in tree.values() for tensor in tensors_of_result(branch)]
    return []


def _frozen(tree: Any) -> Any:
    """Nested arguments as something that can be hashed."""
    if isinstance(tree, (tuple, list)):
        return type(tree), *map(_frozen, tree)
    if isinstance(tree, dict):
        return dict, *((name, _frozen(branch)) for name, branch in tree.items())
    if isinstance(tree, slice):
        return slice, _frozen(tree.start), _frozen(tree.stop), _frozen(tree.step)
    return type(tree), repr(tree) if isinstance(tree, float) else tree


_BY_ROWS: Final = ("use_mm_for_euclid_dist_if_necessary", None, 0)  # torch.cdist's default, and that of torch.ops


def switches_formula(call: ProvableCall) -> bool:
    """Whether the number of records decides how torch.cdist computes distances: far apart, both formulas agree."""
    has_rows = any(leaf.place == RecordAxis(len(leaf.sizes) - 2) for leaf in call.leaves)
    if not bare_name(call.func).startswith("cdist") or not has_rows:
        return False
    args, kwargs = call.rebuild([leaf.like for leaf in call.leaves], 1)
    given = dict(zip(("x1", "x2", "p", "compute_mode"), args, strict=False)) | kwargs
    return given.get("compute_mode") in _BY_ROWS
