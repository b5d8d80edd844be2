"""A call that can be run on other values, and what a proof says about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from discreet.engine.proof.lineage import MIXED, PUBLIC, Lineage
from discreet.engine.trace.capture import RecordAxis

FEW, MANY = 5, 67

Place = Lineage | RecordAxis


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

    @property
    def growing(self) -> RecordAxis | None:
        """The axis that follows the number of records, unless the tensor says which place is which."""
        if isinstance(self.place, RecordAxis):
            return self.place
        axes = [axis for axis, size in enumerate(self.sizes) if type(size) is tuple]
        return RecordAxis(axes[0]) if len(axes) == 1 and not self.counts else None

    def is_unclear(self, records: int) -> bool:
        """Whether a public axis may follow the number of records or not."""
        fixed = self.place is PUBLIC and self.values is None
        return fixed and any(type(size) is int and size and size % records == 0 for size in self.sizes)

    def shape(self, records: int) -> list[int]:
        return [size[0] * records if type(size) is tuple else size for size in self.sizes]


@dataclass(frozen=True)
class ProvableCall:
    """A call with its tensors taken out: `rebuild(tensors, records)` gives its arguments for any number of records."""

    func: Callable[..., Any]
    leaves: tuple[Leaf, ...]
    rebuild: Callable[[Sequence[Any], int], tuple[Any, Any]]
    special: tuple[int, ...] = ()  # whole numbers among the settings
    moves: bool = False  # whether it copies entries, and looks at none

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
    """

    outputs: tuple[Place, ...]
    factors: tuple[Any, ...]
    written: tuple[int, ...] = ()
    why: str = ""
    sized_by_values: bool = False

    @property
    def keeps_apart(self) -> bool:
        return MIXED not in self.outputs


class UnprovableError(Exception):
    """The call does not run on values of our own."""


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
