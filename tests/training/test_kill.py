"""kill -9 at random moments of a training, again and again: nothing is run twice, nothing is free.

One process imports everything and forks a child for each stretch of the run, so that a kill costs little time.
A stretch begins or resumes the run of one directory; the child notes each released step in a file of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from discreet import data as tasks
from discreet.accounting.ledger import read
from discreet.runs import RunConfig, RunFolder, load_config, train

STEPS, DELTA, EPSILON = 160, 1e-5, 2.0
KILLS = {"keyed": (10, None), "seeded": (4, 11)}
Killed = tuple[int, RunFolder, list[int]]

PROGRAM = """
import json, os, random, signal, sys, time, traceback
import torch
from discreet.runs import RunConfig, RunFolder, complete, plan_of, train
from discreet import data as tasks

torch.set_num_threads(1)
chance = random.Random(0)
# What the children find done: what torch imports with its first optimizer.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

def fork(config, noted):
    child = os.fork()
    if child:
        return child
    try:
        file = os.open(noted, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        begun = RunFolder(config.out).run.exists()
        train(config, resume=begun, on_progress=lambda news: os.write(file, b"%d\\n" % news.step))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

def charged(config):
    ledger = RunFolder(config.out).ledger
    return ledger.read_bytes().count(b"\\n") - 1 if ledger.exists() else 0

for settings, kills, noted in json.loads(sys.argv[1]):
    config = RunConfig.from_json(settings)
    plan_of(complete(config), tasks.load("digits")).certificate()  # and the calibration, in its cache
    for done in range(kills):
        child = fork(config, noted)
        if done % 4 == 3:  # at any context, from the fork on
            time.sleep(chance.random() * 0.3)
        else:  # while it trains: after some more charges, and a little later
            left = config.steps - charged(config)
            wanted = charged(config) + chance.randint(1, max(1, 2 * left // (kills + 1 - done) - 2))
            while charged(config) < min(wanted, config.steps - 2):
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child ended by itself"
                time.sleep(0.0005)
            time.sleep(chance.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    _, status = os.waitpid(fork(config, noted), 0)
    assert status == 0
"""


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of `KILLS`, each in a directory of its own, killed so often and then left to finish."""
    place = tmp_path_factory.mktemp("killed")
    jobs = []
    for name, (kills, seed) in KILLS.items():
        (place / name).mkdir()
        config = RunConfig(
            out=str(place / name / "run"),
            delta=DELTA,
            epsilon=EPSILON,
            model="softmax",
            batch=64,
            steps=STEPS,
            eval_every=40,
            checkpoint_every=7,
            seed=seed,
        )
        jobs.append([config.to_json(), kills, str(place / name / "released")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(jobs)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(params=KILLS)
def killed(request: pytest.FixtureRequest, survived: Path) -> Killed:
    """How often it was killed, its folder, and the steps that were released, in order."""
    place = survived / request.param
    released = [int(step) for step in (place / "released").read_text().split()]
    return KILLS[request.param][0], RunFolder(place / "run"), released


def test_released_charged_and_killed(killed: Killed) -> None:
    kills, folder, released = killed
    charged = read(folder.ledger).length
    assert len(set(released)) == len(released)  # no step was released twice
    assert len(released) <= charged <= len(released) + kills
    assert charged == STEPS
    facts = json.loads(folder.run.read_text())
    assert kills / 2 < len(facts["starts"]) <= kills + 1  # most kills hit a run that had begun


def test_every_step_is_charged_once_and_the_budget_holds(killed: Killed) -> None:
    _, folder, _ = killed
    record = read(folder.ledger)
    assert [entry.step for entry in record.entries] == list(range(STEPS))
    result = json.loads(folder.result.read_text())
    plan = json.loads(folder.plan.read_text())
    assert record.header["plan"] == plan["digest"]
    assert 0.98 * EPSILON < result["spent"]["certified"]["epsilon"] <= EPSILON


def test_no_key_serves_twice(killed: Killed) -> None:
    """Each start has keys of its own, and a stream never repeats a block under one key."""
    _, folder, _ = killed
    starts = json.loads(folder.run.read_text())["starts"]
    for name in ("noise", "sampling"):
        keys = [start[name] for start in starts]
        assert len(set(keys)) == len(keys)
    used = [entry.note["noise"] for entry in read(folder.ledger).entries if "noise" in entry.note]
    assert len(set(used)) == len(used)  # a start notes its keys with its first charge
    assert set(used) <= {start["noise"] for start in starts}


def test_the_model_loads_and_has_learned(killed: Killed) -> None:
    _, folder, _ = killed
    task = tasks.load("digits")
    model = tasks.build("softmax", shape=task.shape, classes=task.classes)
    model.load_state_dict(torch.load(folder.model, weights_only=True))
    x, y = task.test.tensors
    result = json.loads(folder.result.read_text())
    accuracy = float((model(x).argmax(1) == y).float().mean())
    assert accuracy == pytest.approx(result["test_accuracy"])
    assert accuracy > 0.6
    assert 0 <= result["lost"] <= 8 * len(json.loads(folder.run.read_text())["starts"])


def test_a_finished_run_is_read_and_not_run_again(killed: Killed) -> None:
    _, folder, _ = killed
    before = folder.ledger.read_bytes()
    result = train(load_config(folder.directory), resume=True)
    assert result.to_json() == json.loads(folder.result.read_text())
    assert folder.ledger.read_bytes() == before
