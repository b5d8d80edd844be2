"""The lines of a ledger: canonical JSON, each with a digest that covers the line before it."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, final

from discreet.accounting.charges import Charge
from discreet.accounting.events import Event, event_from_json
from discreet.core import check
from discreet.core.randomness import SEEDED
from discreet.core.relation import Neighbouring

FORMAT: Final = 1
GENESIS: Final = "0" * 64
UNSTATED: Final = "the randomness was not seeded: a ledger of an older version does not say"
RESTORE: Final = "restore the ledger from a backup; without one, charge the run with its whole plan"


@final
@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One charge. `torn` is the hash of an incomplete line, left by a crash, that this charge replaces."""

    step: int
    event: Event
    note: Mapping[str, Any]
    digest: str
    torn: str | None = None


@final
@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """The contents of a ledger."""

    header: Mapping[str, Any]
    identity: str  # digest of the header, which holds a random number: equal only for copies of one ledger
    entries: tuple[LedgerEntry, ...]

    @property
    def relation(self) -> Neighbouring:
        return Neighbouring(self.header["relation"])

    @property
    def digest(self) -> str:
        return self.entries[-1].digest if self.entries else self.identity

    @property
    def length(self) -> int:
        return len(self.entries)

    def charge(self) -> Charge:
        said = {text for entry in self.entries for text in randomness_of(entry.note)}
        return charge_of(self.header, [(entry.event, 1) for entry in self.entries], said)


def charge_of(header: Mapping[str, Any], counts: Iterable[tuple[Event, int]], said: Iterable[str]) -> Charge:
    """A charge with the assumptions of the header and what header and entries say about randomness."""
    said = dict.fromkeys((*((SEEDED,) if header.get("seeded") else ()), *said))
    return Charge(tuple(counts), assumptions=(*header.get("assumptions", ()), *said))


def randomness_of(note: Mapping[str, Any]) -> tuple[str, ...]:
    """What a note says about randomness. The first charge under a key has a note about it."""
    if note.get("seeded"):
        return (SEEDED,)
    return (UNSTATED,) if "noise" in note and "seeded" not in note else ()


def torn_note(torn: bytes) -> dict[str, Any]:
    """What is left of the note of a torn line: a seed that it states still counts."""
    return {"seeded": True} if b'"seeded":true' in torn else {}


def canonical(value: Any) -> str:
    """The only JSON text of a value. Refuses values that JSON cannot represent."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        check.refuse("plain JSON values without infinities", f"{value!r} ({error})", "write numbers and text only")


def seal(previous: str, body: Mapping[str, Any]) -> tuple[str, bytes]:
    """The digest of a body that follows the line with digest `previous`, and the line itself."""
    text = canonical(body)
    digest = hashlib.sha256((previous + text).encode()).hexdigest()
    return digest, f'{{"body":{text},"digest":"{digest}"}}\n'.encode()


def begin(header: Mapping[str, Any]) -> tuple[LedgerRecord, bytes]:
    """A new ledger without charges, and its first line."""
    fields = header_fields(header)
    digest, line = seal(GENESIS, {"format": FORMAT, "ledger": os.urandom(16).hex(), "header": fields})
    return LedgerRecord(header=fields, identity=digest, entries=()), line


def header_fields(header: Mapping[str, Any]) -> dict[str, Any]:
    """The header as JSON values, with the fields that every reader needs."""
    remedy = "a header names relation, delta and plan, a digest of the plan; other public values may follow"
    missing = [name for name in ("relation", "delta", "plan") if name not in header]
    check.require(not missing, "relation, delta and plan in the header", f"no {', '.join(missing)}", remedy)
    relation, known = header["relation"], " or ".join(map(str, Neighbouring))
    is_known = relation in [*Neighbouring, *map(str, Neighbouring)]
    check.require(is_known, f"relation to be {known}", f"relation={relation!r}", "say which datasets are neighbours")
    fields = {**header, "relation": str(relation)}
    check.inside_unit("delta is the user's, and public", delta=fields["delta"])
    check.require(isinstance(fields["plan"], str), "plan to be a digest", f"plan={fields['plan']!r}", remedy)
    assumptions = fields.get("assumptions", [])
    sentences = isinstance(assumptions, (list, tuple)) and all(isinstance(text, str) for text in assumptions)
    check.require(sentences, "assumptions to be a list of sentences", f"{assumptions!r}", remedy)
    seeded = fields.get("seeded", False)  # ledgers of older versions say it in their entries only
    check.require(isinstance(seeded, bool), "seeded to be true or false", f"seeded={seeded!r}", remedy)
    plain: dict[str, Any] = json.loads(canonical(fields))
    return plain


def scan(path: Path) -> tuple[LedgerRecord, bytes]:
    """Read and check every line of a ledger. Returns also the bytes of an incomplete last line."""
    check.require(path.is_file(), "an existing ledger", f"{path}", "begin one with Ledger.create")
    *lines, tail = path.read_bytes().split(b"\n")
    if not lines:
        remedy = f"if the run took no step, delete the file and begin again; otherwise {RESTORE}"
        check.refuse(f"line 1 of {path} to be a whole header", f"{tail[:60]!r}", remedy)
    body, identity = open_line(path, 1, lines[0], GENESIS)
    known = body.keys() == {"format", "ledger", "header"} and body["format"] == FORMAT
    remedy = "read it with the version of the library that wrote it"
    check.require(known, f"line 1 of {path} to be a header of format {FORMAT}", f"{lines[0][:60]!r}", remedy)
    header, entries, previous = header_fields(body["header"]), [], identity
    torn: bytes | None = None
    for number, line in enumerate(lines[1:], 2):
        following = lines[number] if number < len(lines) else b""
        stands = b'"torn":"' + hashlib.sha256(line).hexdigest().encode() + b'"'
        if torn is None and stands in following:  # the next line says that it replaces this one
            torn = line
            continue
        entry = open_entry(path, number, line, previous)
        owed = None if torn is None else hashlib.sha256(torn).hexdigest()
        if entry.torn != owed:
            _unfit(path, number, f"stand for the torn line {owed}", f"{entry.torn}")
        entries.append(entry)
        previous, torn = entry.digest, None
    return LedgerRecord(header=header, identity=identity, entries=tuple(entries)), tail


def open_line(path: Path, number: int, line: bytes, previous: str) -> tuple[dict[str, Any], str]:
    """The body and digest of a line that must follow the line with digest `previous`."""
    try:
        content = json.loads(line)
        body, digest = content["body"], content["digest"]
        expected, again = seal(previous, body)
    except (ValueError, TypeError, KeyError, RecursionError):
        _unfit(path, number, "be a sealed JSON object", f"{line[:60]!r}")
    if digest != expected:
        _unfit(path, number, f"follow the line before it, with digest {expected}", f"digest {digest}")
    if line + b"\n" != again or not isinstance(body, dict):
        _unfit(path, number, "be canonical JSON", f"{line[:60]!r}")
    return body, expected


def open_entry(path: Path, number: int, line: bytes, previous: str) -> LedgerEntry:
    """The charge of a line that must follow the line with digest `previous`."""
    body, digest = open_line(path, number, line, previous)
    if body.keys() - {"torn"} != {"step", "event", "note"}:
        _unfit(path, number, "hold step, event and note", f"{sorted(body)}")
    try:
        event = event_from_json(body["event"])
        check.count("steps are numbered from 0", least=0, step=body["step"])
    except (check.Refused, TypeError) as error:
        _unfit(path, number, "hold a known event", str(error))
    return LedgerEntry(step=body["step"], event=event, note=body["note"], digest=digest, torn=body.get("torn"))


def _unfit(path: Path, number: int, expected: str, got: str) -> NoReturn:
    check.refuse(f"line {number} of {path} to {expected}", got, f"the file was changed: {RESTORE}")
