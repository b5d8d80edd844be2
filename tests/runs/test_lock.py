"""One process trains a run: another is refused before it touches a file, and a dead one holds nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runner import refused, run

from discreet import runs
from discreet.accounting.ledger import Ledger, read
from discreet.core.check import Refused
from discreet.runs import RunConfig, RunFolder
from discreet.training.private import Private

STEPS = 12

# Trains, and waits before the first checkpoint until a file says "go": the ledger has a header and no charge.
FIRST = """
import sys, time
from pathlib import Path
from discreet import runs
from discreet.training.private import Private
place, out = Path(sys.argv[1]), sys.argv[2]
save = Private.save
def waiting(self, path):
    (place / "ready").touch()
    while not (place / "go").exists():
        time.sleep(0.01)
    Private.save = save
    save(self, path)
Private.save = waiting
runs.train(runs.RunConfig(out=out, model="softmax", steps=12, batch=64, noise=1.0, delta=1e-5))
"""

# Trains, and stops for good after a few steps, holding the lock.
STUCK = """
import sys, time
from pathlib import Path
from discreet import runs
def stuck(news):
    if news.step == 5:
        Path(sys.argv[1], "ready").touch()
        time.sleep(600)
runs.train(runs.RunConfig(out=sys.argv[2], model="softmax", steps=12, batch=64, noise=1.0, delta=1e-5,
                          checkpoint_every=1), on_progress=stuck)
"""

RESUME = "import sys; from discreet.cli import main; sys.exit(main(['resume', sys.argv[1], '--json']))"


def start(program: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def everything(directory: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in files}


def test_a_run_that_has_not_charged_yet_is_not_taken_away(tmp_path: Path) -> None:
    """Resume used to delete the ledger of a living process; six of twelve charges were left on disk."""
    out = tmp_path / "run"
    with start(FIRST, tmp_path, out) as first:
        wait_for(tmp_path / "ready", first)
        before = everything(out)
        refused(run("resume", out), f"{out}, which process {first.pid} holds")
        assert everything(out) == before
        (tmp_path / "go").touch()
        assert first.wait(timeout=200) == 0, first.communicate()
    assert read(out / "ledger.jsonl").length == STEPS
    facts = json.loads((out / "run.json").read_text())
    assert len(facts["starts"]) == 1


def test_two_that_resume_at_once_spend_the_budget_once(tmp_path: Path) -> None:
    """Killed while it holds the lock, and then resumed by two processes at the same time."""
    out = tmp_path / "run"
    with start(STUCK, tmp_path, out) as stuck:
        wait_for(tmp_path / "ready", stuck)
        with pytest.raises(Refused, match=f"which process {stuck.pid} holds.*wait for it or end it"):
            runs.train(runs.load_config(out), resume=True)
        stuck.send_signal(signal.SIGKILL)
    assert RunFolder(out).lock.read_text() == str(stuck.pid)  # stale, and holds nothing
    racers = [start(RESUME, out) for _ in range(2)]
    told = [racer.communicate(timeout=280) for racer in racers]
    codes = sorted(racer.returncode for racer in racers)
    assert codes in ([0, 2], [0, 0]), told  # the slower one is refused, or finds the finished run
    record = read(out / "ledger.jsonl")
    assert [entry.step for entry in record.entries] == list(range(STEPS))
    assert len(json.loads((out / "run.json").read_text())["starts"]) == 2


def config(out: Path, **settings: Any) -> RunConfig:
    usual = {"model": "softmax", "steps": 3, "batch": 64, "noise": 1.0, "delta": 1e-5}
    return RunConfig(out=str(out), **{**usual, **settings})


def test_a_ledger_that_another_writer_holds_is_not_deleted(tmp_path: Path) -> None:
    """A writer that knows nothing of the run's lock: the ledger's own lock is taken before it is touched."""
    result = runs.train(config(tmp_path / "run"))
    folder = RunFolder(result.directory)
    folder.result.unlink()
    folder.checkpoint.unlink()
    folder.ledger.unlink()
    header = {"relation": "add/remove", "delta": 1e-5, "plan": "a" * 64}
    with Ledger.create(folder.ledger, header):
        with pytest.raises(Refused, match="another writer holds"):
            runs.train(runs.load_config(folder.directory), resume=True)
        assert folder.ledger.exists()
    assert runs.train(runs.load_config(folder.directory), resume=True).steps == 3  # nobody holds it now
    assert runs.train(runs.load_config(folder.directory), resume=True).steps == 3  # read, not run again
    with pytest.raises(Refused, match="which holds one"):
        runs.train(config(folder.directory))


def test_a_run_that_could_not_begin_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first checkpoint fails, as on a full disk; nothing is left, and the same process begins again."""

    def full(self: Private, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Private, "save", full)
        with pytest.raises(OSError, match="No space left"):
            runs.train(config(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert runs.train(config(tmp_path / "run")).steps == 3
