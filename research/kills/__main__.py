"""`python -m research.kills`: kill single processes of runs under torchrun at random moments, and check what is left.

torchrun starts all processes again after every kill, and the run goes on from its last checkpoint. Afterwards:

charges  the ledger holds each planned step exactly once, and its certificate is that of the plan
paid     no process drew noise before the charge of the step was on disk
once     no process released a step twice: steps that are lost with a checkpoint stay paid and are not repeated
keys     no key was used by two starts or two processes, and no noise came twice
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import torch

from discreet.accounting.ledger import read
from discreet.accounting.ledger_chain import LedgerRecord
from discreet.cli import entry
from discreet.cli.flags import flag
from discreet.core.files import check_file, write_json, write_text
from research.command import typed
from research.kills.job import pid_file
from research.kills.train import charges, plan
from research.readme import put

_MODULE: Final = "research.kills"
KINDS: Final = ("replicas", "sharded")
_STEPS_A_KILL: Final = 30
_PATIENCE: Final = 900.0  # seconds without a charge or a new process
_NEVER: Final = "charged_never_released"
_LOST: Final = "released_and_lost_with_a_checkpoint"
_AT_START: Final = 0.25  # of the kills strike while processes start, the others while they train


class Job:
    """A run under torchrun."""

    def __init__(self, kind: str, place: Path, *, ranks: int, steps: int, kills: int) -> None:
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--max-restarts={kills}"]
        local = ["--monitor-interval=0.05", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
        script = ["--local-addr=127.0.0.1", "-m", "research.kills.job", kind, str(place), str(steps)]
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "DISCREET_TIMEOUT": "600"}
        self.place, self.ledger, self.ranks, self.steps = place, place / "ledger.jsonl", ranks, steps
        self._log = open(place / "log", "wb")  # noqa: SIM115
        command = [sys.executable, *launcher, *local, *script]
        self._agent = subprocess.Popen(command, stdout=self._log, stderr=self._log, env={**os.environ, **own})

    def has_ended(self) -> bool:
        return self._agent.poll() is not None

    def processes(self, start: int) -> list[int]:
        """The processes of a start, as soon as all of them are there; none if the run has ended."""
        files, until = [pid_file(self.place, start, rank) for rank in range(self.ranks)], time.monotonic() + _PATIENCE
        while not all(file.exists() and file.read_text(encoding="utf-8") for file in files):
            if self.has_ended() or time.monotonic() > until:
                return []
            time.sleep(0.005)
        return [int(file.read_text(encoding="utf-8")) for file in files]

    def wait_for(self, wanted: int) -> None:
        """Return when so many charges are in the ledger, or the run has ended."""
        until = time.monotonic() + _PATIENCE
        while charges(self.ledger) < wanted and not self.has_ended() and time.monotonic() < until:
            time.sleep(0.002)

    def kill(self, process: int) -> bool:
        """Kill one process of this run; False if it has ended."""
        try:
            parent = int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return False
        if parent != self._agent.pid:
            return False
        os.kill(process, signal.SIGKILL)
        return True

    def ended(self) -> int:
        """The exit code of torchrun."""
        code = self._agent.wait()
        self._log.close()
        return code


def strike(job: Job, kills: int, chance: random.Random) -> list[dict[str, Any]]:
    """Kill a process of every start but the last; which, and at which number of charges."""
    struck: list[dict[str, Any]] = []
    longest = 5.0  # seconds from the first line of a process to its first charge, so far
    for start in range(kills):
        processes, before, began = job.processes(start), charges(job.ledger), time.monotonic()
        if not processes:
            break
        rank, at_start = chance.randrange(job.ranks), chance.random() < _AT_START
        if at_start:
            time.sleep(chance.random() * longest)
        else:
            left = job.steps - before
            share = max(1, 2 * left // (kills + 1 - start) - 2)
            job.wait_for(before + 1)
            longest = max(longest, time.monotonic() - began)
            job.wait_for(min(before + chance.randint(1, share), job.steps - 2))
            time.sleep(chance.random() * 0.05)
        seen = charges(job.ledger)
        if not job.kill(processes[rank]):
            break
        struck.append({"rank": rank, "while": "starting" if at_start else "training", "charges": seen})
    return struck


def judged(place: Path, *, ranks: int, steps: int, starts: int) -> tuple[dict[str, Any], list[str]]:
    """What a run left behind, and what is wrong with it."""
    record, planned = read(place / "ledger.jsonl"), plan(steps)
    lines = [(place / f"released-{rank}").read_text(encoding="utf-8").split("\n") for rank in range(ranks)]
    words = [[line.split() for line in own if line] for own in lines]
    released = [[(int(step), paid) for kind, _, step, *paid in own if kind == "release"] for own in words]
    noise = [tuple(numbers) for own in words for kind, _, _, *numbers in own if kind == "noise"]
    keys = _keys(record)
    wrong = {
        "charges": [entry.step for entry in record.entries] != list(range(steps))
        or record.charge().certified != planned.charge().certified,
        "paid": any(paid != ["1"] for own in released for _, paid in own),
        "once": any(len({step for step, _ in own}) != len(own) for own in released),
        "keys": len(set(keys)) != len(keys) or len(set(noise)) != len(noise),
    }
    any_rank = {step for own in released for step, _ in own}
    updates = int((place / "updates").read_text(encoding="utf-8"))
    found = {
        "charges": len(record.entries),
        "epsilon": planned.certificate().epsilon,
        "released": [len(own) for own in released],
        _NEVER: steps - len(any_rank),
        _LOST: len(any_rank) - updates,
        "updates_of_the_final_model": updates,
        "starts_that_charged": len(keys) // (2 * ranks),
        "starts": starts,
        "keys": len(keys),
    }
    return found, [name for name, is_wrong in wrong.items() if is_wrong]


def _keys(record: LedgerRecord) -> list[str]:
    """The fingerprints of all keys, as the first charge of each start notes them."""
    return [value for entry in record.entries for value in entry.note.values() if isinstance(value, str)]


def survive(kind: str, *, ranks: int, kills: int, seed: int) -> dict[str, Any]:
    """A run that is killed so often."""
    steps, began = _STEPS_A_KILL * (kills + 1), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        job = Job(kind, place, ranks=ranks, steps=steps, kills=kills)
        struck = strike(job, kills, random.Random(seed))
        code = job.ended()
        told = (place / "log").read_text(encoding="utf-8")[-4000:] if code else ""
        named: dict[str, Any] = {"kind": kind, "ranks": ranks, "seed": seed, "steps": steps}
        if code:
            return {**named, "kills": struck, "wrong": [f"torchrun ended with {code}: {told}"]}
        found, wrong = judged(place, ranks=ranks, steps=steps, starts=len(struck) + 1)
    seconds = round(time.monotonic() - began)
    return {**named, **found, "seconds": seconds, "wrong": wrong, "kills": struck}


def total(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over the runs of each kind."""
    kinds = {kind: [run for run in runs if run["kind"] == kind] for kind in KINDS}
    return {
        kind: {
            "runs": len(own),
            "kills": sum(len(run["kills"]) for run in own),
            "charges": sum(run.get("charges", 0) for run in own),
            "planned": sum(run["steps"] for run in own),
            "keys": sum(run.get("keys", 0) for run in own),
            "wrong": sum(bool(run["wrong"]) for run in own),
        }
        for kind, own in kinds.items()
    }


def sentences(answer: Mapping[str, Any]) -> str:
    """What was killed, and what was left."""
    lines = [
        f"Measured on one machine with gloo ([results/kills.json](../results/kills.json), `{answer['command']}`):",
        "",
        "| model | runs under torchrun | processes | kills | planned charges | charges | charged, never released | "
        "released, lost with a checkpoint | keys, all different | runs with a fault |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, sums in answer["total"].items():
        own = [run for run in answer["runs"] if run["kind"] == kind]
        never, lost = (sum(run.get(name, 0) for run in own) for name in (_NEVER, _LOST))
        processes = " and ".join(str(number) for number in sorted({run["ranks"] for run in own}))
        cells = [kind, sums["runs"], processes, sums["kills"], sums["planned"], sums["charges"], never, lost]
        lines.append(f"| {' | '.join(map(str, [*cells, sums['keys'], sums['wrong']]))} |")
    return "\n".join(lines)


def kills(
    out: Annotated[Path, flag("The JSON file to write, after every run.")] = Path("results/kills.json"),
    page: Annotated[Path | None, flag("Write the table of this page from the file; kill nothing.")] = None,
    kill: Annotated[int, flag("Kills of one run.")] = 20,
    run: Annotated[int, flag("Runs of each kind.")] = 3,
    rank: Annotated[int, flag("Processes of a run.")] = 2,
    seed: Annotated[int, flag("The seed of the first run; the others count on.")] = 1,
) -> int:
    """Kill processes of runs of replicas and of sharded models. Runs that the file holds are not repeated."""
    if page is not None:
        answer = json.loads(out.read_text(encoding="utf-8"))
        write_text(page, put(page.read_text(encoding="utf-8"), "kills", sentences(answer)))
        return 0
    check_file(out)
    runs: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["runs"] if out.exists() else []
    held = {(one["kind"], one["seed"]) for one in runs}
    for number in range(seed, seed + run):
        for kind in KINDS:
            if (kind, number) in held:
                continue
            runs.append(survive(kind, ranks=rank, kills=kill, seed=number))
            answer = {"command": typed(_MODULE), "torch": torch.__version__, "total": total(runs), "runs": runs}
            write_json(out, answer)
    return int(any(one["wrong"] for one in runs))


if __name__ == "__main__":
    sys.exit(entry.main(args=["kills", *sys.argv[1:]], commands=[kills], program=f"python -m {_MODULE}"))
