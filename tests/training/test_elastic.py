"""Processes of one run that are killed or stall, again and again: nothing is run twice, nothing is free.

A supervisor does what torchrun does (helpers/supervisor.py). Each process notes the steps that it has released, and
whether their charges were in the ledger by then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import killed_run
from discreet.accounting.ledger import read
from discreet.runs import RunConfig, RunFolder

STEPS, DELTA, EPSILON, RANKS = 120, 1e-5, 2.0, 2


def survive(place: Path, kills: int, steps: int, patience: float) -> tuple[RunFolder, list[list[tuple[int, bool]]]]:
    """A run that was killed so often, and the steps that each process released, with whether they were charged."""
    config = RunConfig(
        out=str(place / "run"),
        delta=DELTA,
        epsilon=EPSILON,
        model="softmax",
        batch=64,
        steps=steps,
        eval_every=steps,
        checkpoint_every=7,
    )
    job = json.dumps([config.to_json(), kills, str(place)])
    done = subprocess.run(
        [sys.executable, killed_run.__file__, job, str(RANKS), "1"],
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    files = [(place / f"released-{rank}").read_text().splitlines() for rank in range(RANKS)]
    noted = [[(int(step), paid == "1") for step, paid in map(str.split, lines)] for lines in files]
    return RunFolder(place / "run"), noted


def check_survived(folder: RunFolder, noted: list[list[tuple[int, bool]]], kills: int, steps: int) -> None:
    record = read(folder.ledger)
    assert [entry.step for entry in record.entries] == list(range(steps))  # exactly the planned charges
    for released in noted:
        assert all(paid for _, paid in released)  # no release before its charge
        assert len({step for step, _ in released}) == len(released)  # no step twice
        assert steps - kills <= len(released) <= steps
    keys = [value for entry in record.entries for value in entry.note.values() if isinstance(value, str)]
    assert len(set(keys)) == len(keys)  # no key twice, in any process
    assert len(keys) % (2 * RANKS) == 0
    starts = json.loads(folder.run.read_text())["starts"]
    assert len(keys) // (2 * RANKS) <= len(starts) <= kills + 1
    assert len(starts) > kills / 2  # most kills hit a run that had begun
    result = json.loads(folder.result.read_text())
    assert 0.98 * EPSILON < result["spent"]["certified"]["epsilon"] <= EPSILON
    assert 0 <= result["lost"] <= 8 * len(starts)


def test_kills_and_a_stall(tmp_path: Path) -> None:
    folder, noted = survive(tmp_path, kills=7, steps=STEPS, patience=280)
    check_survived(folder, noted, kills=7, steps=STEPS)


@pytest.mark.slow
@pytest.mark.timeout(3900)
def test_a_hundred_kills(tmp_path: Path) -> None:
    folder, noted = survive(tmp_path, kills=100, steps=600, patience=3600)
    check_survived(folder, noted, kills=100, steps=600)


@pytest.mark.slow
def test_torchrun_starts_the_command_again(tmp_path: Path) -> None:
    """The command under torchrun: a process is killed, torchrun starts all again, and the run ends as planned."""
    out = tmp_path / "run"
    command = ["--data", "digits", "--model", "softmax", "--epsilon", "2", "--delta", "1e-5", "--steps", "60"]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
    local = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    job = subprocess.Popen(
        [sys.executable, *launcher, *local, "-m", "discreet", "train", *command, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    folder, until = RunFolder(out), time.monotonic() + 240
    while not folder.ledger.exists() or folder.charges() < 5:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    holder = int(folder.lock.read_text())  # the first process
    os.kill(holder, signal.SIGKILL)
    told, errors = job.communicate(timeout=240)
    assert job.returncode == 0, errors
    assert told.count("epsilon, certified") == 1  # the first process speaks for all
    record = read(folder.ledger)
    assert [entry.step for entry in record.entries] == list(range(60))
    starts = json.loads(folder.run.read_text())["starts"]
    assert [start["processes"] for start in starts] == [2, 2]
    assert not {start["noise"] for start in starts[:1]} & {start["noise"] for start in starts[1:]}


def test_other_commands_are_refused_under_torchrun(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from discreet.cli import main

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["compare", "--data", "digits"]) == 2
    assert "rank 1: Expected discreet train or resume under torchrun, got discreet compare." in capfd.readouterr().err
