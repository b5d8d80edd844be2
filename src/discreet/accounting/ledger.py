"""The append-only, write-ahead record of every charge of a run.

One JSON object a line: a header, then one line per charge, each with a SHA-256 digest over the digest of the line
before and its own body. A charge is on disk before `append` returns, and the release comes after that. So nothing is
ever released that the ledger does not contain.

The digests reveal edits and lines that were removed or moved. They cannot reveal that the last lines were cut off,
which is why a checkpoint stores `digest` and `length`. There is no key: the chain protects against accidents, not
against somebody who writes a new ledger.

A torn last line comes from a crash inside `append`, before its release. It is charged all the same, because a damaged
disk also tears lines: `read` refuses it; `resume` keeps it and appends one charge of the planned event.
"""

import dataclasses
import errno
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self, final

from discreet.accounting import ledger_chain as chain
from discreet.accounting.charges import Charge
from discreet.accounting.events import Event
from discreet.core import check
from discreet.core.files import sync_directory

FIXED_PLANS: Final = "no run's plan was chosen by the results of another of these runs"


def read(path: str | os.PathLike[str]) -> chain.LedgerRecord:
    """Read a ledger and check every line. A line that does not fit is refused by its number."""
    record, torn = chain.scan(Path(path))
    if torn:
        remedy = "if the run still writes, read again; after a crash, go on with Ledger.resume, which charges the line"
        number = record.length + 2 + sum(entry.torn is not None for entry in record.entries)
        check.refuse(f"line {number} of {path} to end", f"a torn line {torn[:60]!r}", remedy)
    return record


def merge(paths: Iterable[str | os.PathLike[str]]) -> Charge:
    """The charge of several ledgers on the same data."""
    seen: dict[str, str | os.PathLike[str]] = {}
    total, relation, unit = Charge(), None, None
    for path in paths:
        record = read(path)
        twin = seen.get(record.identity)
        check.require(twin is None, "different ledgers", f"{path}, a copy of {twin}", "name each ledger once")
        seen[record.identity] = path
        relation = relation or record.relation
        remedy = "an epsilon holds for one relation; account for these runs separately"
        check.require(record.relation is relation, f"relation {relation}", f"{record.relation} in {path}", remedy)
        protected = record.header.get("unit", "record")
        unit = unit or protected
        remedy = "an epsilon for one unit says nothing about another; account for these runs separately"
        check.require(protected == unit, f"runs that protect every {unit}", f"every {protected} in {path}", remedy)
        total = total + record.charge()
    check.require(bool(seen), "at least one ledger", "none", "name the ledgers of the runs to compose")
    return total if len(seen) == 1 else dataclasses.replace(total, assumptions=(*total.assumptions, FIXED_PLANS))


@final
class Ledger:
    """The writer of one ledger. It holds an exclusive lock on the file until `close`.

    Guarantee: when `append` returns, its line is on disk. After a failed write every later append is refused.
    """

    def __init__(self, path: Path, descriptor: int | None, record: chain.LedgerRecord) -> None:
        self._path, self._descriptor, self.header = path, descriptor, record.header
        self._entries = list(record.entries)
        self._counts = Counter(entry.event for entry in record.entries)
        self._said = {text for entry in record.entries for text in chain.said_by(entry.note)}
        self.identity = record.identity
        self._process = os.getpid()
        self._file = path.absolute()  # the program may change its directory
        self._size = 0 if descriptor is None else os.fstat(descriptor).st_size
        self._open = True

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Mapping[str, Any]) -> Self:
        """Create a ledger in a new file.

        The header names `relation`, `delta` and `plan` (a digest of the plan), and other public values. `assumptions`,
        a list of sentences, is part of every charge, and so is `seeded`, whether the run has a seed.
        """
        path, (record, line) = Path(path), chain.begin(header)
        try:
            descriptor = _open_locked(path, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            remedy = "go on from the run's checkpoint (resume=), or take another path: the charges in both files count"
            check.refuse("a new file", f"{path}, which exists", remedy)
        try:
            _write(descriptor, line)
            sync_directory(path.parent)
        except BaseException:  # no ledger was begun, so none may stay: it would stand in the way of the next run
            os.close(descriptor)
            path.unlink()
            raise
        return cls(path, descriptor, record)

    @classmethod
    def in_memory(cls, header: Mapping[str, Any]) -> Self:
        """A ledger without a file, which ends with the process."""
        return cls(Path("memory"), None, chain.begin(header)[0])

    @classmethod
    def resume(cls, path: str | os.PathLike[str], *, planned: Callable[[chain.LedgerRecord], Event]) -> Self:
        """Continue a ledger. A torn last line, left by a crash, is charged as the planned event.

        `planned` is called with the contents of the ledger, under the lock; it may refuse the ledger.
        """
        path = Path(path)
        check.require(path.is_file(), "an existing ledger", f"{path}", "begin one with Ledger.create")
        descriptor = _open_locked(path, 0)
        try:
            record, torn = chain.scan(path)
            due = planned(record)
        except BaseException:
            os.close(descriptor)
            raise
        ledger = cls(path, descriptor, record)
        if torn:
            ledger._settle(torn, due)
        return ledger

    def _settle(self, torn: bytes, planned: Event) -> None:
        """Charge a torn last line: as it is if only its line end is missing, else as the planned event."""
        try:
            entry = chain.open_entry(self._path, len(self._entries) + 2, torn, self.digest)
        except check.Refused:
            step = self._entries[-1].step + 1 if self._entries else 0
            self._add(planned, step, chain.torn_note(torn), torn=torn)
        else:
            assert self._descriptor is not None  # only a file can be torn
            self._write(b"\n")
            self._keep(entry)

    def append(self, event: Event, *, step: int, note: Mapping[str, Any] | None = None) -> None:
        """Charge `event` BEFORE its release: the line is on disk when this returns.

        `note` contains public values only. `"seeded": True` in it marks every charge that includes this one.
        """
        self._add(event, step, json.loads(chain.canonical(note)) if note else {}, torn=b"")

    def _add(self, event: Event, step: int, note: dict[str, Any], *, torn: bytes) -> None:
        self._usable()
        check.require(isinstance(event, Event), "an event", f"{event!r}", "charge what the mechanism returned")
        check.count("number the steps from 0", least=0, step=step)
        last = self._entries[-1].step if self._entries else 0
        remedy = "steps only go on; a crashed step stays charged and is not run again"
        check.require(step >= last, f"step >= {last}", f"step={step}", remedy)
        body: dict[str, Any] = {"step": int(step), "event": event.to_json(), "note": note}
        if torn:
            body["torn"] = hashlib.sha256(torn).hexdigest()
        digest, line = chain.seal(self.digest, body)
        self._check_file()
        self._open = False  # until the line stands: a failed write must not be followed by another
        self._write(b"\n" + line if torn else line)
        self._open = True
        self._keep(chain.LedgerEntry(step=int(step), event=event, note=note, digest=digest, torn=body.get("torn")))

    def _write(self, line: bytes) -> None:
        if self._descriptor is not None:
            _write(self._descriptor, line)
            self._size += len(line)

    def _check_file(self) -> None:
        """Refuse to charge into a file that nobody will find: removed, replaced, or without its earlier charges."""
        if self._descriptor is None:
            return
        expected = f"the ledger of this run at {self._file}, as it was last written"
        own = os.fstat(self._descriptor)
        try:
            found = os.stat(self._file)
        except OSError:
            check.damaged(expected, "no file: it was removed or moved while the run was writing to it", chain.RESTORE)
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
            check.damaged(expected, "another file in its place", chain.RESTORE)
        if own.st_size != self._size:
            check.damaged(expected, f"{own.st_size} bytes instead of {self._size}", chain.RESTORE)

    def _keep(self, entry: chain.LedgerEntry) -> None:
        self._counts[entry.event] += 1
        self._said.update(chain.said_by(entry.note))
        self._entries.append(entry)  # last: Ctrl-C before it leaves a charge too many, never one too few

    def _usable(self) -> None:
        remedy = "read the file, and go on with Ledger.resume"
        check.require(self._open, f"an open ledger at {self._path}", "a closed or broken one", remedy)
        ours = os.getpid() == self._process
        check.require(ours, "the process that opened the ledger", "a forked one", "let one process keep the ledger")

    @property
    def entries(self) -> tuple[chain.LedgerEntry, ...]:
        return tuple(self._entries)

    @property
    def length(self) -> int:
        return len(self._entries)

    @property
    def digest(self) -> str:
        """The digest after the last charge."""
        return self._entries[-1].digest if self._entries else self.identity

    def charge(self) -> Charge:
        return chain.charge_of(self.header, self._counts.items(), self._said)

    def close(self) -> None:
        """Release the lock. The file is always complete."""
        descriptor, self._descriptor, self._open = self._descriptor, None, False
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_locked(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        lock(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock(path: Path, descriptor: int) -> None:
    """Lock an open ledger, or refuse if another writer holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        check.refuse(f"{path} for one writer", "a ledger that another writer holds", "end the other run first")


def _write(descriptor: int, line: bytes) -> None:
    """Write bytes to disk in one call, or raise."""
    written = os.write(descriptor, line)
    if written != len(line):
        raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes were written: is the disk full?")
    os.fsync(descriptor)
