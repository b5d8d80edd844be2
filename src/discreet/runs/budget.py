"""The budget of a dataset: one file that every command charges before it reads records, and that refuses when spent.

One JSON object a line, each sealed to the line before: a header with the limit, then one line for each charge. A charge
holds the file's lock while it reads, checks, appends and syncs. So a charge that returned is on the disk, and no two
processes can spend the same rest. A torn last line was never acknowledged, because `charge` returns only after the
sync; the next charge removes it.

Later charges may depend on earlier results, so privacy losses may not simply be composed (docs/proofs/BudgetFile.md).
A record's first charge may use the exact certificate; from the second on, Rényi divergences of one order are added up.
The first charge of the file decides the order, before anything was released.
"""

import contextlib
import fcntl
import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, final

from discreet.accounting import gdp, ledger_chain, rdp
from discreet.accounting.accountants import certify, renyi_divergences
from discreet.accounting.charges import Charge
from discreet.accounting.events import BestOfRuns, Event, NonPrivate, event_from_json
from discreet.accounting.rules import rule_for
from discreet.core import check
from discreet.core.files import sync_directory
from discreet.core.relation import Neighbouring

FORMAT: Final = 1
_ORDERS = tuple(float(order) for order in range(2, 65))  # every event with a Rényi bound has one at these
_RESTORE = "restore the file from a backup; without one, count the ledgers of all runs"


@final
@dataclass(frozen=True, kw_only=True)
class BudgetEntry:
    """One charge.

    entry  identifies what was paid for; the same entry is charged once
    part   the part of the records that was read; None: all of them. A record belongs to one part
    """

    entry: str
    what: str
    charge: Charge
    part: str | None = None

    def to_json(self) -> dict[str, Any]:
        events = [[event.to_json(), count] for event, count in self.charge.certified]
        assumed = list(self.charge.assumptions)
        return {"entry": self.entry, "what": self.what, "part": self.part, "events": events, "assumptions": assumed}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        events = tuple((event_from_json(event), count) for event, count in body["events"])
        charge = Charge(events, assumptions=tuple(body["assumptions"]))
        return cls(entry=body["entry"], what=body["what"], part=body["part"], charge=charge)


@final
@dataclass(frozen=True, kw_only=True)
class BudgetLimit:
    """What a dataset may cost in all.

    unit  whom the limit protects: every record, or every owner of this name, with all records
    """

    epsilon: float
    delta: float
    relation: Neighbouring = Neighbouring.ADD_REMOVE
    unit: str = "record"

    def __post_init__(self) -> None:
        check.positive("the limit for all commands on these records together, e.g. 3", epsilon=self.epsilon)
        check.inside_unit("choose delta of at most 1/(10 * records)", delta=self.delta)

    def room(self, order: float) -> float:
        """The Rényi divergence of this order that gives epsilon at delta."""
        return self.epsilon - math.log1p(-1 / order) + (math.log(self.delta) + math.log(order)) / (order - 1)

    def divergence(self, charge: Charge, order: float) -> float:
        return float(renyi_divergences(charge.certified, self.relation)[rdp.ORDERS.index(order)])

    def order_for(self, first: Charge) -> float:
        """The order at which a charge uses the least share of the room."""
        fitting = [order for order in _ORDERS if self.room(order) > 0]
        return min(fitting, key=lambda order: self.divergence(first, order) / self.room(order), default=_ORDERS[-1])


@final
@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """The contents of a budget file."""

    limit: BudgetLimit
    data: str
    entries: tuple[BudgetEntry, ...]

    @property
    def order(self) -> float:
        """The Rényi order of the sum: decided by the first charge, before anything was released."""
        return self.limit.order_for(self.entries[0].charge)

    @property
    def spent(self) -> float:
        """The epsilon that is proven for all charges together, at the delta of the limit."""
        return max((self._epsilon(chain) for chain in self._chains(self.entries)), default=0.0)

    @property
    def left(self) -> float:
        """The epsilon of the largest single Gaussian release of all records that still fits."""
        if not self.entries:
            return self.limit.epsilon
        used = max(map(self._divergence, self._chains(self.entries)))
        rest = max(0.0, self.limit.room(self.order) - used)
        return gdp.epsilon(math.sqrt(2 * rest / self.order), self.limit.delta)

    def admits(self, entry: BudgetEntry) -> bool:
        """Whether the limit still holds with this entry, for every record."""
        return all(self._epsilon(chain) <= self.limit.epsilon for chain in self._chains((*self.entries, entry)))

    def _chains(self, entries: Sequence[BudgetEntry]) -> Iterator[Sequence[BudgetEntry]]:
        """The charges that one record may meet: those on all records and on its part; replaced, on two parts."""
        parts = sorted({entry.part for entry in entries if entry.part is not None})
        at_once = 1 if self.limit.relation is Neighbouring.ADD_REMOVE else 2
        if not parts and entries:
            yield entries
        for met in itertools.combinations(parts, min(at_once, len(parts))) if parts else ():
            yield [entry for entry in entries if entry.part is None or entry.part in met]

    def _epsilon(self, chain: Sequence[BudgetEntry]) -> float:
        limit = self.limit
        if len(chain) == 1:
            return certify(chain[0].charge, delta=limit.delta, relation=limit.relation).epsilon
        return max(0.0, self._divergence(chain) + limit.epsilon - limit.room(self.order))

    def _divergence(self, chain: Sequence[BudgetEntry]) -> float:
        return math.fsum(self.limit.divergence(entry.charge, self.order) for entry in chain)


@final
class Budget:
    """A budget file. Guarantee: the charges in it are within its limit, whoever writes them and whenever they die."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        remedy = f"make it once for these records: discreet budget {self.path} --epsilon 3 --delta 1e-6"
        check.require(self.path.is_file(), "an existing budget file", f"{self.path}", remedy)

    @classmethod
    def create(cls, path: str | os.PathLike[str], limit: BudgetLimit, *, data: str = "") -> Self:
        """Make the file with its limit; a file that exists is refused."""
        path = Path(path)
        header = {"epsilon": limit.epsilon, "delta": limit.delta, "relation": str(limit.relation), "data": data}
        header |= {} if limit.unit == "record" else {"unit": limit.unit}
        body = {"format": FORMAT, "budget": os.urandom(16).hex(), "header": header}
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with open(new, "xb") as file:
                file.write(ledger_chain.seal(ledger_chain.GENESIS, body)[1])
                file.flush()
                os.fsync(file.fileno())
            os.link(new, path)  # unlike a rename, it never replaces a budget that exists
        except FileExistsError:
            check.refuse("a new file", f"{path}, which exists", "charge that one: a limit is set once")
        finally:
            new.unlink(missing_ok=True)
        sync_directory(path.parent)
        return cls(path)

    def read(self) -> BudgetState:
        """The contents; a torn last line is a charge that was never acknowledged."""
        with self._locked(fcntl.LOCK_SH) as descriptor:
            return self._scan(descriptor)[0]

    def charge(
        self, charge: Charge, *, entry: str, what: str, part: str | None = None, unit: str = "record"
    ) -> BudgetState:
        """Charge BEFORE the records are read: when this returns, the charge is on the disk. Refuses what does not fit.

        An entry that is in the file already is not charged again; with another charge it is refused. So is a charge
        for another unit than that of the file: what one record costs says nothing about a user with several.
        """
        new = BudgetEntry(entry=entry, what=what, charge=charge, part=part)
        with self._locked(fcntl.LOCK_EX) as descriptor:
            state, digest, end = self._scan(descriptor)
            self._check_unit(state.limit, unit, part)
            known = next((old for old in state.entries if old.entry == entry), None)
            if known is not None:
                same = (known.charge.certified, known.part) == (charge.certified, part)
                check.require(same, f"the charge of {entry} as it is in {self.path}", "another", "begin a new run")
                return state
            self._check(state, new)
            os.ftruncate(descriptor, end)
            body = {**new.to_json(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
            line = ledger_chain.seal(digest, body)[1]
            written = os.pwrite(descriptor, line, end)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes of {self.path} were written: is the disk full?")
            os.fsync(descriptor)
            return BudgetState(limit=state.limit, data=state.data, entries=(*state.entries, new))

    def holds(self, entry: str) -> bool:
        """Whether this entry has been charged."""
        return any(one.entry == entry for one in self.read().entries)

    def _check_unit(self, limit: BudgetLimit, unit: str, part: str | None) -> None:
        expected, got = f"a charge for every {limit.unit}, whom {self.path} protects", f"one for every {unit}"
        remedy = f"use --unit with a column of that name, or a budget file for every {unit}"
        check.require(unit == limit.unit, expected, got, remedy)
        whole, remedy = part is None or unit == "record", "charge all records: a user may have some in several parts"
        check.require(whole, f"no part in a budget for every {unit}", f"part {part!r}", remedy)

    def _check(self, state: BudgetState, new: BudgetEntry) -> None:
        limit = state.limit
        for event in _events(new.charge):
            proven = rule_for(event, limit.relation).relations
            moves = new.part is not None and Neighbouring.ADD_REMOVE not in proven
            remedy = "charge all records: a replaced record may change its part, and with it the sizes of both"
            check.require(not moves, "an event that is proven under add/remove too for a part", event.kind, remedy)
        if not state.admits(new):
            cost = certify(new.charge, delta=limit.delta, relation=limit.relation).epsilon
            check.refuse(
                f"a charge within what is left of {self.path}: epsilon {state.left:.3g} of {limit.epsilon:g} "
                f"at delta {limit.delta:g}, {limit.relation}",
                f"{new.what} at epsilon {cost:.4g}",
                "lower its epsilon, or do without it: nothing was charged, and no record was read",
            )

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[int]:
        """Wait for the file's lock; it is free as soon as its holder closes the file or dies."""
        descriptor = os.open(self.path, (os.O_RDWR if kind == fcntl.LOCK_EX else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, kind)
            found, own = os.stat(self.path), os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
                check.damaged(f"{self.path} in its place", "another file", _RESTORE)
            yield descriptor
        finally:
            os.close(descriptor)

    def _scan(self, descriptor: int) -> tuple[BudgetState, str, int]:
        """The contents, the digest of the last line and where it ends."""
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        *lines, torn = content.split(b"\n")
        if not lines:
            check.damaged(f"a budget in {self.path}", f"{content[:60]!r}", _RESTORE)
        try:
            body, digest = ledger_chain.open_line(self.path, 1, lines[0], ledger_chain.GENESIS)
            header = body["header"]
            known = body["format"] == FORMAT
            limit = BudgetLimit(
                epsilon=header["epsilon"],
                delta=header["delta"],
                relation=Neighbouring(header["relation"]),
                unit=header.get("unit", "record"),
            )
            entries = []
            for number, line in enumerate(lines[1:], 2):
                body, digest = ledger_chain.open_line(self.path, number, line, digest)
                entries.append(BudgetEntry.from_json(body))
        except (KeyError, TypeError, check.Refused, json.JSONDecodeError) as error:
            check.damaged(f"a budget in {self.path}", str(error), _RESTORE)
        check.require(known, f"a budget of format {FORMAT}", f"{self.path}", "use the version that wrote it")
        state = BudgetState(limit=limit, data=header["data"], entries=tuple(entries))
        return state, digest, len(content) - len(torn)


def _events(charge: Charge) -> Iterator[Event]:
    for event, _ in charge.certified:
        inner = itertools.chain.from_iterable(event.candidates) if isinstance(event, BestOfRuns) else ((event, 1),)
        yield from (one for one, _ in inner if not isinstance(one, NonPrivate))
