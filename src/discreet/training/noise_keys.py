"""The private keys of a run whose noise is correlated between steps, in a file next to its ledger.

Correlated noise is the one kind that must be drawn again: after a crash, the noise of the steps before. So its keys are
on disk before the first release. Whoever reads them can remove the noise. They are in a file of their own, not in
checkpoints, which may be published; only its owner may read it, and it is deleted when the run ends.

Every start of the run has a new key for the steps from there on. So no step that was drawn is drawn again for another
sum, not even if someone copies the files of a run and resumes both.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self, final

from discreet.accounting.ledger import Ledger, read
from discreet.accounting.ledger_chain import RESTORE
from discreet.core import check
from discreet.core.files import replace_file
from discreet.core.streams import Stream, Streams
from discreet.stages.plan import Plan
from discreet.training.step import RunState

RESTARTED = "restarted"  # in the note of a charge: a new factorisation begins with the next step
_DIGESTS = 2**40  # the sub-stream of the key of batch digests; it must differ from all steps


@final
class NoiseKeys:
    """Which key draws the noise of which step, the key of the sampler, and digests of the batches of a fixed order.

    Guarantee: the file is complete at every moment, and on disk when a method returns.
    """

    def __init__(self, path: Path | None, ledger: str, sampling: Stream) -> None:
        self._path, self._ledger, self.sampling = path, ledger, sampling
        self._noise: list[tuple[int, str]] = []  # the first step of each key
        self._batches: dict[int, str] = {}
        self.salt = sampling.again(_DIGESTS).uniform64(4).tobytes()

    @staticmethod
    def path_of(ledger: str | os.PathLike[str]) -> Path:
        """The file of the keys, next to the ledger."""
        path = Path(ledger)
        return path.with_name(f"{path.name}.keys")

    @classmethod
    def begin(cls, ledger_file: Path | None, ledger: str, streams: Streams, step: int) -> Self:
        """The keys of a new factorisation, which starts at `step`. Without a file they end with the process."""
        keys = cls(None if ledger_file is None else cls.path_of(ledger_file), ledger, streams.sampling)
        keys.go_on(streams, step)
        return keys

    @classmethod
    def read(cls, ledger_file: Path, ledger: str) -> Self | None:
        """The keys of an earlier part of the run; None if they are lost, or belong to another run."""
        path = cls.path_of(ledger_file)
        try:
            held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if held["ledger"] != ledger:
                return None
            keys = cls(path, ledger, _stream(held["sampling"], "sampling"))
            keys._noise = [(int(step), str(key)) for step, key in held["noise"]]
            keys._batches = {int(place): str(digest) for place, digest in held["batches"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return keys

    def check_ledger(self, ledger: Ledger, step: int) -> bool:
        """Whether these are the keys that the ledger notes; refuses a ledger that ends before they begin.

        A backup of the file may lack later keys, and would give another noise than the one that was released.
        """
        latest = self._noise[-1][0]
        got, remedy = f"step {step}, although its noise was drawn from step {latest} on", RESTORE
        check.require(latest <= step, "the ledger of the run with all of its lines", got, remedy)
        for entry in reversed(ledger.entries):
            noted = entry.note.get("noise")
            if noted is not None and _stream(self._key_of(entry.step), "noise").fingerprint != noted:
                return False
            if RESTARTED in entry.note:
                break
        return True

    def _key_of(self, step: int) -> str:
        return next(key for first, key in reversed(self._noise) if first <= step or first == self._noise[0][0])

    def go_on(self, streams: Streams, step: int) -> None:
        """Use the key of these streams from `step` on."""
        # A start that made no step has used nothing of its key.
        self._noise = [(first, key) for first, key in self._noise if first < step]
        self._noise.append((step, streams.noise.secret_key.hex()))
        self._write()

    def drawn(self, stop: int) -> Iterator[Stream]:
        """The noise streams of all steps before `stop`, in order, to be drawn again: the one replay of noise."""
        firsts = [first for first, _ in self._noise] + [stop]
        for (first, key), end in zip(self._noise, firsts[1:], strict=True):
            stream = _stream(key, "noise")
            for step in range(first, min(end, stop)):
                yield stream.at(step)

    def check_batch(self, place: int, digest: str) -> None:
        """Compare a batch with that of the first pass, by digests under a key that stays private."""
        known = self._batches.get(place)
        if known is None:
            self._batches[place] = digest
            self._write()
            return
        remedy = (
            "use shuffle=False, sampling=discreet.Reshuffled(), or discreet.FixedOrder(checked=False) for augmentation"
        )
        check.require(known == digest, f"batch {place} of the first pass again", "another batch", remedy)

    def discard(self) -> None:
        """Delete the file: the run has ended, and its noise is not needed again."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._path is None:
            return
        held = {
            "about": "PRIVATE: whoever reads this file can remove the noise of the run",
            "ledger": self._ledger,
            "sampling": self.sampling.secret_key.hex(),
            "noise": self._noise,
            "batches": self._batches,
        }

        def fill(file: BinaryIO) -> None:
            os.fchmod(file.fileno(), 0o600)
            file.write(json.dumps(held).encode())

        replace_file(self._path, fill)


def check_not_restarted(ledger: Path) -> None:
    """Refuse a run that lost the keys of its noise and was charged again; nothing has been released since."""
    restarted = any(RESTARTED in entry.note for entry in read(ledger).entries) if ledger.exists() else False
    remedy = "begin a new run, which is paid for anew"
    check.require(not restarted, f"the keys of the noise next to {ledger}", "none: they were lost", remedy)


def recalled(
    plan: Plan, file: str | os.PathLike[str] | None, ledger: Ledger, state: RunState, streams: Streams, size: int
) -> NoiseKeys | None:
    """The keys of a run with correlated noise, and in `state` the noise of its earlier steps, drawn again.

    If the keys of the earlier steps are lost, a new factorisation begins and is charged like the whole run. Its charge
    has a line of its own in the ledger, and thus a step that is left out: a torn last line is always a free one.
    """
    if not plan.mechanism.remembers:
        return None
    keys = None if file is None else NoiseKeys.read(Path(file), ledger.identity)
    if keys is None or not keys.check_ledger(ledger, state.step):
        if 0 < state.step < plan.horizon.steps:
            ledger.append(plan.event_at(0), step=state.step, note={RESTARTED: "the keys of the noise were lost"})
            state.step += 1
        state.secrets |= plan.mechanism.recall((), size, state.step)
        return NoiseKeys.begin(None if file is None else Path(file), ledger.identity, streams, state.step)
    state.secrets |= plan.mechanism.recall(keys.drawn(state.step), size, state.step)
    keys.go_on(streams, state.step)
    return keys


def _stream(key: str, name: str) -> Stream:
    return Stream(bytes.fromhex(key), name=name, replayable=False)
