"""The settings of a call: its arguments that are neither tensors nor fractions, such as axes, sizes and words.

A call that kept the records apart along one axis may mix them along another. So the probe learns the settings of
every call, and a pass on records that makes the same call with others is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

VARIES: Final = object()
"""Stands for a setting that follows the number of records or torch's generator."""
ANYTHING: Final[list[Any]] = [VARIES]
"""Stands for settings whose very number does."""

_SETTINGS = (bool, int, str, type(None), type(...), torch.dtype)


def settings_of(tree: Any) -> list[Any]:
    """The settings in nested arguments, in order; the lengths of lists are settings, too.

    >>> settings_of(((torch.zeros(2, 3), 1), {"keepdim": True, "eps": 0.5}))
    [2, 2, 1, 2, 'keepdim', True, 'eps']
    """
    found: list[Any] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Any]) -> None:
    if isinstance(tree, _SETTINGS):
        found.append(tree)
    elif isinstance(tree, (tuple, list)):
        found.append(len(tree))
        for branch in tree:
            _collect(branch, found)
    elif isinstance(tree, dict):
        found.append(len(tree))
        for name, branch in tree.items():
            found.append(name)
            _collect(branch, found)
    elif isinstance(tree, slice):
        found += (tree.start, tree.stop, tree.step)


def agreed(seen: Sequence[list[Any]]) -> list[Any]:
    """What passes on different numbers of records have in common."""
    if len({len(settings) for settings in seen}) > 1:
        return ANYTHING
    columns = zip(*seen, strict=True)
    return [first if all(other == first for other in others) else VARIES for first, *others in columns]


def fits(settings: list[Any], expected: list[Any]) -> bool:
    """Whether these settings are those that were learned.

    >>> fits([2, 1, True], agreed([[2, 1, True], [3, 1, True]]))
    True
    >>> fits([2, 0, True], agreed([[2, 1, True], [3, 1, True]]))
    False
    """
    if expected is ANYTHING or settings == expected:
        return True
    return len(settings) == len(expected) and all(
        known is VARIES or own == known for own, known in zip(settings, expected, strict=True)
    )
