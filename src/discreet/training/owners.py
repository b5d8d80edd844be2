"""Who owns which record, as the user of the library says it with `unit=`.

Owner names are private. They are compared, and never printed, stored or sent to other processes in clear.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core import check
from discreet.core.world import World
from discreet.stages.plan import Plan

Indices = npt.NDArray[np.int64]
OwnerOf = Callable[[Any], Hashable] | Sequence[Any] | Tensor | npt.NDArray[Any]
"""A function from a record to the name of its owner, or the names of all owners in the order of the records."""

_KINDS = (str, int, bytes)
_ASKED_AGAIN = 16  # records whose owner a function is asked twice
_REMEDY = "name every owner by a str, an int or bytes; convert other ids with str()"


@final
class Owners:
    """The records of each owner, in the order in which owners first appear. Each record has one owner."""

    def __init__(self, names: Sequence[Any]) -> None:
        kinds = {_kind(name) for name in names}
        one = len(kinds) <= 1
        check.require(one, "owner names of one type, so that 1, True and '1' are told apart", "several types", _REMEDY)
        number: dict[Hashable, int] = {}
        owner = np.fromiter((number.setdefault(name, len(number)) for name in names), np.int64, len(names))
        self._order = np.argsort(owner, kind="stable")
        self._starts = np.append(0, np.cumsum(np.bincount(owner, minlength=len(number)))).astype(np.int64)
        self._names = tuple(number)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return "Owners(...)"  # names and numbers are private

    def records_of(self, owner: int) -> Indices:
        """The indices of an owner's records."""
        return self._order[self._starts[owner] : self._starts[owner + 1]]

    def check_apart(self, world: World, name: str) -> None:
        """Refuse an owner with records in several processes: each of them would add a contribution."""
        if world.size == 1:
            return
        drawn = torch.tensor(list(os.urandom(32)), dtype=torch.uint8)
        salt = bytes(world.broadcast_(drawn).tolist())
        mine = {hashlib.blake2b(_bytes(owner), key=salt, digest_size=16).hexdigest() for owner in self._names}
        everyone = world.gather(sorted(mine))
        apart = sum(map(len, everyone)) == len(set().union(*everyone))
        remedy = f"give all records of a {name} to one process, for example by a hash of its name"
        check.require(apart, f"all records of a {name} in one process", "records of one in several", remedy)


def _bytes(name: Any) -> bytes:
    return name if isinstance(name, bytes) else str(name).encode()


def _kind(name: Any) -> type:
    """The type of a name. Refuses what may differ from itself, or equal another kind of name."""
    several = isinstance(name, (list, tuple, set, frozenset, dict))
    remedy = "leave such records out, or give each to one owner: records with several owners have no certificate"
    check.require(not several, "one owner for each record", "a record with several", remedy)
    missing = name is None or name in ("", b"") if isinstance(name, (str, bytes, type(None))) else False
    remedy = "leave out records without an owner, or give each a name of its own"
    check.require(not missing, "an owner for each record", "a record without one", remedy)
    plain = type(name) in _KINDS  # a subclass may define equality as it likes; bool is one of them
    check.require(plain, "an owner name that is a str, an int or bytes", f"a {type(name).__name__}", _REMEDY)
    return type(name)


def owners_of(plan: Plan, data: Any, unit: OwnerOf | None, world: World) -> Owners | None:
    """The owners of the data; None for a plan that protects records. Refuses owners that the plan does not expect."""
    if unit is None or plan.unit.is_record:
        needed = not plan.unit.is_record
        check.require(
            (unit is not None) == needed,
            f"owners of the records, because the plan protects every {plan.unit.name}"
            if needed
            else "no owners, because the plan protects records",
            "none" if unit is None else "unit=",
            "pass unit=, a function from a record to its owner, or a sequence of all owners"
            if needed
            else "build the plan for users: recipe.using(unit=discreet.SampledUsers(per_user=...)), or leave unit= out",
        )
        return None
    check.require(data is not None, "data with owners", "none", "pass the dataset, from which users are drawn")
    names = _names(unit, data)
    remedy = "give one owner for each record of the data, in the same order"
    check.require(len(names) == len(data), "as many owners as records", "another number", remedy)
    owners = Owners(names)
    owners.check_apart(world, plan.unit.name)
    return owners


def _names(unit: OwnerOf, data: Any) -> Sequence[Any]:
    if isinstance(unit, (Tensor, np.ndarray)):
        flat = unit.ndim == 1
        check.require(flat, "a row of owners", f"shape {list(unit.shape)}", "give one owner for each record")
        return [_plain(name) for name in unit.tolist()]
    if callable(unit):
        names = [_plain(unit(data[place])) for place in range(len(data))]
        again = range(0, len(data), max(1, len(data) // _ASKED_AGAIN))
        steady = all(_plain(unit(data[place])) == names[place] for place in again if type(names[place]) in _KINDS)
        remedy = "return a name that depends on the record alone"
        check.require(steady, "a function that names the same owner whenever it is asked", "another owner", remedy)
        return names
    listed = isinstance(unit, Sequence) and not isinstance(unit, (str, bytes))
    got, remedy = (
        f"a {type(unit).__name__}",
        "pass a function, a list, a tensor or an array; of a table, column.tolist()",
    )
    check.require(listed, "a function or a sequence of owners", got, remedy)
    return [_plain(name) for name in unit]


def _plain(name: Any) -> Any:
    """A number or string of torch or NumPy as one of Python."""
    if isinstance(name, Tensor):
        check.require(name.ndim == 0, "one owner for each record", "a tensor of several", "return one name")
        return name.item()
    return name.item() if isinstance(name, np.generic) else name
