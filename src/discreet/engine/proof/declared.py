"""What the user declared public: tensors, modules, and numbers, with what arithmetic makes of them.

Arithmetic on a declared number, with plain numbers or other declared ones, gives a declared number again. It is told
from others by the operation and its operands, so that a choice between `2 * a` and `3 * a` shows as one between 2 and 3
does.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from torch import Tensor, nn

from discreet.engine.model.support import modules_in, tensors_of
from discreet.engine.proof.lineage import has_memory, storage_of


@dataclass(frozen=True)
class Declaration:
    """By which line of code a number was declared public, as which of the numbers of that line, and when."""

    where: str
    count: int
    clock: int


@dataclass(frozen=True)
class Computed:
    """What made a number of declared ones: the operation, and its operands; constants are in words."""

    operation: str
    operands: tuple[Declaration | Computed | str, ...]

    @property
    def size(self) -> int:
        return 1 + sum(part.size if isinstance(part, Computed) else 1 for part in self.operands)


@final
class DeclaredValues:
    """The tensors and modules that the user declared public, each with a number that says by which line of code, and
    as which of those that the line declares from one batch to the next; and where numbers were declared."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._modules: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
        self._counts: Counter[str] = Counter()  # how many tensors and modules each line declared
        self._newest: dict[tuple[str, int], Declaration] = {}  # of the numbers that each line declared
        self._clock = 0
        self.outside_of_steps: dict[str, None] = {}  # lines that declare something while no step is watched

    def new_batch(self) -> None:
        self._counts.clear()

    def add(self, value: Tensor | nn.Module, where: str) -> None:
        """Whatever was declared before keeps its number, until its line declares another in a later batch."""
        known: dict[int, Any] = self._tensors if isinstance(value, Tensor) else self._modules
        number = hash(("declared", where, self._counts[where]))
        self._counts[where] += 1
        if id(value) not in known or known[id(value)][0]() is not value:
            self._take_away(number)
            known[id(value)] = weakref.ref(value), number

    def _take_away(self, number: int) -> None:
        """Two values of one number could not be told apart: the older is no longer public."""
        for key in [key for key, found in self._tensors.items() if found[1] == number]:
            del self._tensors[key]
        for key, (found, own) in list(self._modules.items()):
            if own == number:
                del self._modules[key]
                module = found()
                for tensor in tensors_of(modules_in(module)) if module is not None else ():
                    self._tensors.pop(id(tensor), None)

    def note_number(self, where: str) -> Declaration:
        """A line declares a number, which takes the place of the one that it declared before."""
        self._clock += 1
        made = Declaration(where, self._counts[where], self._clock)
        self._counts[where] += 1
        self._newest[where, made.count] = made
        return made

    def description_of(self, declaration: Declaration | Computed) -> str:
        """What tells a declared number from others: a line declares it anew with another value."""
        if isinstance(declaration, Computed):
            parts = [part if isinstance(part, str) else self.description_of(part) for part in declaration.operands]
            return f"{declaration.operation}({'; '.join(parts)})"
        is_newest = self._newest[declaration.where, declaration.count] is declaration
        age = "" if is_newest else f", of old ({declaration.clock})"
        return f"declared public at {declaration.where}, {declaration.count}{age}"

    def number_of(self, tensor: Tensor) -> int | None:
        """A number that stands for a declared tensor in every step; None for any other."""
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        for found, number in self._modules.values():
            module = found()
            for index, own in enumerate(tensors_of(modules_in(module)) if module is not None else ()):
                if own is tensor:
                    self._tensors[id(tensor)] = weakref.ref(tensor), hash((number, index))
                    return self._tensors[id(tensor)][1]
        return None

    def owns_memory(self, storage: int) -> bool:
        """Whether a memory belongs to a declared tensor."""
        if not self._tensors and not self._modules:
            return False
        tensors = [found() for found, _ in self._tensors.values()]
        for found, _ in self._modules.values():
            module = found()
            tensors += tensors_of(modules_in(module)) if module is not None else []
        return any(tensor is not None and has_memory(tensor) and storage_of(tensor) == storage for tensor in tensors)


DECLARED: Final = DeclaredValues()


class DeclaredFloat(float):
    """A number that the user declared public, or that was computed from such numbers alone, and how."""

    declaration: Declaration | Computed


class DeclaredInt(int):
    """A whole number that the user declared public, or that was computed from such numbers alone, and how."""

    declaration: Declaration | Computed


_LARGEST: Final = 64  # parts of a formula: a number that is updated in every step would carry all of them
_OPERATIONS: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs"),
    *("round", "floor", "ceil", "trunc"),
)
_ON_BITS: Final = ("and", "or", "xor", "lshift", "rshift", "invert")


def _described(value: Any) -> Declaration | Computed | str | None:
    """What stands for an operand; None if it is no plain number."""
    if type(value) in (DeclaredFloat, DeclaredInt):
        made: Declaration | Computed = value.declaration
        return made
    return f"{type(value).__name__} {value!r}" if type(value) in (int, float, bool, type(None)) else None


def _declaring(plain: Callable[..., Any], name: str) -> Callable[..., Any]:
    """An operation of int or float whose result is declared as its operands are."""

    def operate(self: Any, *others: Any) -> Any:
        result = plain(self, *others)
        operands = tuple(map(_described, (self, *others)))
        if type(result) not in (int, float) or None in operands:
            return result
        computed = Computed(name, operands)  # type: ignore[arg-type]
        if computed.size > _LARGEST:
            return result
        number = DeclaredFloat(result) if type(result) is float else DeclaredInt(result)
        number.declaration = computed
        return number

    operate.__name__ = name
    return operate


for _kind in (DeclaredFloat, DeclaredInt):
    for _name in (f"__{_form}{_operation}__" for _operation in _OPERATIONS + _ON_BITS for _form in ("", "r")):
        _plain = getattr(_kind.__base__, _name, None)
        if _plain is not None:
            setattr(_kind, _name, _declaring(_plain, _name.strip("_")))
