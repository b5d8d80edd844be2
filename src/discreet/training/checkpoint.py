"""Checkpoints, and the rules for resuming a run from them.

The ledger, not the checkpoint, determines how many steps remain: planned - charged. A step that crashed may have been
released, so it stays charged and is not run again.

Random state is never stored. A resumed run uses new keys: an old key would repeat noise, and an old batch with new
noise would be a second, uncharged query. Masks and projections also use new keys, even within an epoch. They are public
and independent of the data, so this costs no privacy.
"""

import copy
import hashlib
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, final

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from discreet.accounting.events import Event
from discreet.accounting.ledger import Ledger
from discreet.accounting.ledger_chain import LedgerRecord, scan
from discreet.core import check
from discreet.core.files import replace_file
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.stages.plan import Plan
from discreet.stages.values import PUBLIC
from discreet.training.step import Parameters, RunState

FORMAT: Final = "discreet checkpoint 3"
WITHOUT_DIGEST: Final = "discreet checkpoint 2"  # written by an older version; changed bytes are not detected
FIXED_ROWS: Final = "fixed_rows"  # in the header of a ledger: all of its charges are for a run with fixed rows
KERNELS: Final = (
    "in runs with fixed rows, where rounding of records by the batch is covered, kernels compute the same bits for "
    "equal shapes, strides, alignment and threads, and those of a row do not depend on the values of other rows"
)
_SEAL: Final = b"sha256="
_HEX: Final = 64
_CHUNK: Final = 1 << 20
_SAFE: Final = (type(None), bool, int, float, str, Tensor)
_WHOLE: Final = (
    "restore the file from a backup, or use an earlier checkpoint of the same run; the ledger determines how many "
    "steps remain"
)


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state that a resumed run needs, and the settings that it must match.

    Guarantee: post-processing of releases and public settings. It contains no record, random state or exact sum.

    model, optimizer, schedulers  None if a trainer saves and restores them itself
    hidden  true if the certificate covers the final parameters only and these are earlier ones; the file must then stay
            private
    shards  of a sharded model: the folder with the tensors of model, optimizer and average (sharded/checkpoint.py)
    """

    plan: str
    relation: str
    charges: int
    digest: str
    updates: int
    scale: float
    memory: Mapping[str, Tensor]
    model: Mapping[str, Tensor] | None
    optimizer_kind: str
    optimizer: Mapping[str, Any] | None
    average: Mapping[str, Any] | None
    schedulers: Sequence[Mapping[str, Any]] | None
    hidden: bool
    shards: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls, plan: Plan, ledger: Ledger, run: RunState, parameters: Parameters, schedulers: Sequence[LRScheduler]
    ) -> Self:
        """The checkpoint of a run between two steps."""
        average = parameters.average
        return cls(
            plan=plan.digest,
            relation=str(plan.relation),
            charges=ledger.length,
            digest=ledger.digest,
            updates=parameters.updates,
            scale=run.scale,
            memory={name: value for name, value in run.memory.items() if not name.startswith(PUBLIC)},
            model=parameters.model.state_dict(),
            optimizer_kind=type(parameters.optimizer).__qualname__,
            optimizer=parameters.optimizer.state_dict(),
            average=None if average is None else average.state_dict(),
            schedulers=[scheduler.state_dict() for scheduler in schedulers],
            hidden=not plan.analysis.visible and run.step < plan.horizon.steps,
        )

    def without_model(self) -> Self:
        """The same for a trainer that saves and restores model, optimizer and schedulers itself."""
        return replace(self, model=None, optimizer=None, schedulers=None)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically: after a crash it is the old checkpoint or the new one, never a part."""
        state = {"format": FORMAT, **{name: getattr(self, name) for name in self.__dataclass_fields__}}
        for name, value in state.items():
            _refuse_unsafe(name, value)
        replace_file(Path(path), lambda file: save_sealed(state, file))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a checkpoint. It may hold tensors and plain values only; a file that contains code is refused."""
        path = Path(path)
        check.require(path.is_file(), "a checkpoint", f"no file {path}", "pass the file that `save` wrote")
        sealed = _check_seal(path)
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
            check.damaged(f"{path} to be a whole checkpoint", f"{type(error).__name__}", _WHOLE)
        held = state.pop("format", None) if isinstance(state, dict) else None
        if held == FORMAT and not sealed:
            check.damaged(f"{path} to be a whole checkpoint", "one that lost its digest", _WHOLE)
        known = held in (FORMAT, WITHOUT_DIGEST)
        if known:
            state.setdefault("shards", None)  # older files have none
        known = known and state.keys() == cls.__dataclass_fields__.keys()
        check.require(known, f"{path} to be a {FORMAT}", "another file", "read it with the version that wrote it")
        return cls(**state)

    # -- checks ----------------------------------------------------------------------------------------

    def check_fits(self, plan: Plan, parameters: Parameters, schedulers: Sequence[LRScheduler]) -> None:
        """Refuse a relation, plan, model, optimizer class, average or schedulers that differ from the original run."""
        _same("relation", self.relation, str(plan.relation), "resume with the relation of the run")
        _same("plan", self.plan, plan.digest, "resume with the settings of the run, or begin a new run")
        absent, optimizer, average = "no such tensor", parameters.optimizer, parameters.average
        decay = None if self.average is None else self.average["decay"]
        _same("average", decay, None if average is None else average.decay, "resume with the average of the run")
        _same("optimizer", self.optimizer_kind, type(optimizer).__qualname__, "build the optimizer of the run")
        if self.model is None or self.optimizer is None or self.schedulers is None:
            return
        mine = {name: list(value.shape) for name, value in parameters.model.state_dict().items()}
        held = {name: list(value.shape) for name, value in self.model.items()}
        for name in sorted(mine.keys() | held.keys()):
            _same(f"the model's {name}", held.get(name, absent), mine.get(name, absent), "build the model of the run")
        sizes = [len(group["params"]) for group in self.optimizer["param_groups"]]
        now = [len(group["params"]) for group in optimizer.state_dict()["param_groups"]]
        _same("the sizes of the optimizer's groups", sizes, now, "build the optimizer of the run")
        remedy = "resume with the schedulers of the run"
        _same("number of schedulers", len(self.schedulers), len(schedulers), remedy)

    def check_ledger(self, record: LedgerRecord) -> None:
        """Refuse the ledger of another run, and a ledger that lost entries since this checkpoint."""
        remedy = "restore the ledger from a backup; without one, count the whole plan as spent"
        check.require(
            record.length >= self.charges, f"a ledger of at least {self.charges} charges", record.length, remedy
        )
        found = record.entries[self.charges - 1].digest if self.charges else record.identity
        _same(f"digest after {self.charges} charges", self.digest, found, remedy)

    def restore(self, parameters: Parameters, schedulers: Sequence[LRScheduler]) -> Callable[[], None]:
        """Restore model, optimizer, average and schedulers: all of them, or none if one refuses its state.

        Returns a function that undoes it.
        """
        own: list[tuple[Any, Any]] = [(parameters.model, self.model), (parameters.optimizer, self.optimizer)]
        own += [] if self.schedulers is None else zip(schedulers, self.schedulers, strict=True)
        parts = [(part, state) for part, state in own if state is not None]
        parts += [] if parameters.average is None else [(parameters.average, self.average)]
        before = [(part, copy.deepcopy(part.state_dict())) for part, _ in parts]

        def undo() -> None:
            for part, state in before:
                part.load_state_dict(state)

        try:
            for part, state in parts:
                part.load_state_dict(dict(state))
        except BaseException:
            undo()
            raise
        return undo


def new_ledger(
    path: str | os.PathLike[str] | None,
    plan: Plan,
    streams: Streams,
    assumed: Sequence[str] = (),
    *,
    fixed_rows: int | None = None,
) -> Ledger:
    """Create the ledger of a new run, as a file or (without a path) in memory.

    assumed     what the certificate assumes beyond the assumptions of the plan
    fixed_rows  rows of every pass, if the run has fixed rows
    """
    rows = {} if fixed_rows is None else {FIXED_ROWS: fixed_rows}
    assumed = [*assumed, *((KERNELS,) if rows else ())]
    exists = path is None or Path(path).parent.is_dir()
    check.require(exists, "a ledger in a directory that exists", path, "make the directory first")
    header = {
        "plan": plan.digest,
        "relation": str(plan.relation),
        "delta": plan.delta,
        "assumptions": [*plan.assumptions, *assumed],
        **({} if plan.unit.is_record else {"unit": plan.unit.name}),
        **rows,
        "seeded": streams.is_seeded,  # also in the charges, but a crash may damage the only one
    }
    return Ledger.in_memory(header) if path is None else Ledger.create(path, header)


def reopen(
    path: Path, plan: Plan, saved: Checkpoint, keys: Mapping[str, str], world: World, fixed_rows: int | None = None
) -> Ledger:
    """Open the ledger of a resumed run. The first process continues the file; the others keep a copy in memory."""
    ledger = _open_checked(path, plan, saved, keys, fixed_rows) if world.is_first else None
    try:
        if ledger is not None and plan.has_tests and ledger.length % 2:
            # The last release was not tested. Its test is charged anyway, so that releases and tests alternate in the
            # ledger and no released step is run again.
            step = ledger.entries[-1].step
            ledger.append(plan.test_at(step), step=step)
        world.sum_(torch.zeros(1))  # the others read the file after the first has repaired it …
        if ledger is None:
            record = scan(path)[0]
            ledger = Ledger.in_memory(record.header)  # which says whether the run began with a seed
            for entry in record.entries:
                ledger.append(entry.event, step=entry.step, note=entry.note)
        world.sum_(torch.zeros(1))  # … and before it writes again
    except BaseException:
        if ledger is not None:
            ledger.close()
        raise
    return ledger


def resumed(
    saved: Checkpoint,
    ledger: Path,
    plan: Plan,
    parameters: Parameters,
    schedulers: Sequence[LRScheduler],
    keys: Mapping[str, str],
    world: World,
    fixed_rows: int | None,
) -> tuple[Ledger, RunState]:
    """Restore a checkpoint, and reopen the ledger, which determines the next step. If that fails, all is undone."""
    saved.check_fits(plan, parameters, schedulers)
    with ExitStack() as opened:
        run = ledger, plan, saved, keys, world, fixed_rows
        reopened = opened.enter_context(reopen(*run))  # one line: else the lock could stay
        opened.callback(saved.restore(parameters, schedulers))
        state = RunState(step=next_step(plan, reopened), scale=saved.scale, memory=dict(saved.memory))
        parameters.updates = saved.updates
        parameters.begin(state.memory, world)
        opened.pop_all()
    return reopened, state


def _open_checked(path: Path, plan: Plan, saved: Checkpoint, keys: Mapping[str, str], fixed_rows: int | None) -> Ledger:
    """Open the ledger file and check it against plan and checkpoint. A torn last line is charged."""
    remedy = "restore it, or start a new run: a checkpoint without its ledger cannot tell what was spent"
    check.require(path.is_file(), f"the ledger of the run at {path}", "no file", remedy)

    def due(record: LedgerRecord) -> Event:  # holds the ledger's lock, so nothing is written in between
        _same("the ledger's plan", plan.digest, record.header["plan"], "resume with the ledger of this run")
        _same("the ledger's fixed_rows", record.header.get(FIXED_ROWS), fixed_rows, "resume with those of the run")
        _same("the ledger's relation", str(plan.relation), str(record.relation), "resume with the relation of the run")
        saved.check_ledger(record)
        refuse_old_keys(record, keys)
        return plan.due(record.length)

    return Ledger.resume(path, planned=due)


@final
class UnusedRemoved:
    """Removes a ledger that is made inside the block if the block fails: no file stays behind.

    Another process may have made it in the same moment, so a file with charges is never removed. A class and not a
    generator, which would also run when it is collected.
    """

    def __init__(self, ledger: str | Path | None) -> None:
        self._new = Path(ledger) if ledger is not None and not Path(ledger).exists() else None

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        is_left = kind is not None and self._new is not None and self._new.exists()
        if is_left and self._new is not None and len(self._new.read_bytes().splitlines()) <= 1:  # the header
            self._new.unlink()


def next_step(plan: Plan, ledger: Ledger) -> int:
    """The first step that no charge covers. Steps may have been left out, so their number is not enough."""
    last = ledger.entries[-1].step + 1 if ledger.length else 0
    return max(plan.steps_paid(ledger.length), last)


def keys_of(streams: Streams, world: World) -> dict[str, str]:
    """Fingerprints of the keys that must never be used twice, of all processes; they are safe to print."""
    mine = {"noise": streams.noise.fingerprint, "sampling": streams.sampling.fingerprint}
    first, *others = world.gather(mine)
    named = ((f"{name} of rank {rank}", key) for rank, keys in enumerate(others, 1) for name, key in keys.items())
    return {**first, **dict(named)}


def note_of(streams: Streams, keys: Mapping[str, str] | None) -> dict[str, Any]:
    """The note of a charge: the fingerprints of its keys if it is their first, and whether the run is seeded."""
    seeded = {"seeded": streams.is_seeded} if keys is not None or streams.is_seeded else {}
    return {**(keys or {}), **seeded}


def refuse_old_keys(record: LedgerRecord, keys: Mapping[str, str]) -> None:
    """Refuse keys that were already used in an earlier part of the run, by any process."""
    fresh = set(keys.values())
    used = {value for entry in record.entries for value in entry.note.values() if isinstance(value, str)}
    remedy = "pass discreet.Streams.from_os(), or a different seed for every resume"
    check.require(not fresh & used, "fresh keys for the rest of the run", "a key that was used before", remedy)


def save_sealed(state: Mapping[str, Any], file: BinaryIO) -> None:
    """Write a torch file, which is a zip archive, with its sha256 digest in the zip comment."""
    torch.save(state, file)
    file.seek(-2, os.SEEK_END)  # the last field of a zip file is the length of its comment
    file.write((len(_SEAL) + _HEX).to_bytes(2, "little"))
    file.flush()
    with open(file.name, "rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    file.write(_SEAL + digest.encode())


def _check_seal(path: Path) -> bool:
    """Whether the file has a digest. A wrong digest is refused before anything is loaded."""
    size = path.stat().st_size - len(_SEAL) - _HEX
    if size < 0:
        return False
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for start in range(0, size, _CHUNK):
            digest.update(file.read(min(_CHUNK, size - start)))
        seal = file.read()
    if not seal.startswith(_SEAL):
        return False
    if seal.removeprefix(_SEAL) != digest.hexdigest().encode():
        check.damaged(f"{path} with its original digest", "another one: its bytes have changed", _WHOLE)
    return True


def _same(what: str, expected: object, got: object, remedy: str) -> None:
    check.require(expected == got, f"{what} {expected}", got, remedy)


def _refuse_unsafe(where: str, value: Any) -> None:
    """Refuse values other than tensors and plain values, because loading them would run code."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_unsafe(f"{where}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_unsafe(where, item)
    else:
        expected = f"{where} to hold tensors and plain values"
        remedy = "remove it from the state of the optimizer or scheduler: loading it would run code"
        check.require(isinstance(value, _SAFE), expected, f"a {type(value).__name__}", remedy)
