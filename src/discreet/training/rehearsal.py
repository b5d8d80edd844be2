"""Rehearsals: batches of made-up records, of public sizes, on which a training loop shows how it makes its losses.

A value of the records can reach Python in more ways than anyone can list (`item`, a string, an error, a size, a
thread), and Python can decide by it what comes next. So the calls that make the losses are fixed before a record is
seen: the loop gets two rehearsals before its first batch, and every batch after them must make its losses by the same
calls with the same numbers (engine/proof/program.py). Nothing of a rehearsal is added to a sum.

Guarantee: a rehearsal depends on the structure, the types and the shapes of a batch alone, apart from numbers and
strings of the whole batch (not one for each record).
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_SIZES: Final = (14, 9)  # even and odd, without a common factor, and seldom another size of a model
_SEED: Final = 7
_VALUES: Final = (str, bytes, int, float, complex, type(None))


def rehearsal_sizes(largest: int) -> tuple[int, ...]:
    """How many made-up records rehearsals have, if at most `largest` fit in memory.

    >>> [rehearsal_sizes(largest) for largest in (512, 6, 2, 1)]
    [(14, 9), (6, 5), (2, 1), (1,)]
    """
    return _SIZES if largest >= _SIZES[0] else (largest, largest - 1) if largest > 1 else (1,)


def made_up(batch: Any, records: int, size: int) -> Any:
    """A batch like this one of `size` records, with values that most loops take.

    Whole numbers are 1, which is a class, a token, a length and a mask; fractions lie between 0 and 1, and are 1 where
    a record has a single one; strings are "1".
    """
    generator = torch.Generator().manual_seed(_SEED)

    def walk(tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return _values(tree, records, size, generator)
        if isinstance(tree, np.ndarray) and tree.dtype.kind in "biufc":
            return _values(torch.from_numpy(tree), records, size, generator).numpy()
        if isinstance(tree, Mapping):
            whole: Any = copy.copy(tree)
            for key, branch in tree.items():
                whole[key] = walk(branch)
            return whole
        if isinstance(tree, (tuple, list)):
            if len(tree) == records and all(isinstance(one, _VALUES) for one in tree):
                return type(tree)([_value(tree[0])] * size)
            branches = [walk(branch) for branch in tree]
            named = isinstance(tree, tuple) and type(tree) is not tuple
            return type(tree)(*branches) if named else type(tree)(branches)
        if hasattr(tree, "__dict__") and not isinstance(tree, type) and not callable(tree):
            like = copy.copy(tree)
            vars(like).update({name: walk(value) for name, value in vars(tree).items()})
            return like
        return tree

    return walk(batch)


def _value(like: Any) -> Any:
    kind = type(like)
    return None if like is None else b"1" if kind is bytes else kind(1)


def _values(like: Tensor, records: int, size: int, generator: torch.Generator) -> Tensor:
    has_rows = like.dim() > 0 and like.shape[0] == records
    shape = (size, *like.shape[1:]) if has_rows else like.shape
    is_fraction = like.is_floating_point() or like.is_complex()
    if is_fraction and shape[1:].count(1) < len(shape[1:]):
        return torch.rand(shape, generator=generator).to(like)
    if like.dtype == torch.uint8:
        return torch.randint(0, 2, shape, generator=generator).to(like)
    return torch.ones(shape, dtype=like.dtype, device=like.device)
