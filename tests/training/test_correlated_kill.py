"""kill -9 at random moments of a run with correlated noise: no z serves two sums, and no charge is lost.

One process imports everything and forks a child for each stretch. The child notes every release in a file, before it
happens: the step, the key of the noise, and digests of the exact sum and of the noise history.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from discreet.accounting.events import CorrelatedRun
from discreet.accounting.ledger import read
from discreet.runs import RunConfig, RunFolder
from discreet.training.noise_keys import NoiseKeys

STEPS, EPSILON, DELTA = 69, 2.0, 1e-5  # three epochs of 23 steps

PROGRAM = """
import hashlib, json, os, random, signal, sys, time, traceback
import torch
from discreet.core.streams import Stream
from discreet.methods.dp_ftrl.correlated_noise import HISTORY, CorrelatedNoise
from discreet.runs import RunConfig, RunFolder, complete, plan_of, train
from discreet import data as tasks

torch.set_num_threads(1)
chance = random.Random(int(sys.argv[2]))
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
digest = lambda tensor: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]

def noting(file):
    release = CorrelatedNoise.release
    def noted(self, sums, queries, noise, context):
        past = [digest(one) for one in context.secrets[HISTORY].reveal_to_mechanism()._past]
        line = [context.step, context.streams.noise.fingerprint, digest(sums[0].value), past]
        os.write(file, (json.dumps(line) + "\\n").encode())
        out = release(self, sums, queries, noise, context)
        past = [digest(one) for one in context.secrets[HISTORY].reveal_to_mechanism()._past]
        os.write(file, (json.dumps([context.step, "done", past[0], past]) + "\\n").encode())
        return out
    CorrelatedNoise.release = noted

def fork(config, noted):
    child = os.fork()
    if child:
        return child
    try:
        noting(os.open(noted, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        train(config, resume=RunFolder(config.out).run.exists())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

def charged(config):
    ledger = RunFolder(config.out).ledger
    return ledger.read_bytes().count(b"\\n") - 1 if ledger.exists() else 0

settings, kills, noted = json.loads(sys.argv[1])
config = RunConfig.from_json(settings)
plan_of(complete(config), tasks.load("digits")).certificate()
for done in range(kills):
    child = fork(config, noted)
    if done % 4 == 3:  # at any context, from the fork on
        time.sleep(chance.random() * 0.4)
    else:
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


def survive(place: Path, kills: int) -> tuple[RunFolder, list[list[object]]]:
    config = RunConfig(
        out=str(place / "run"),
        method="dp-ftrl",
        parameters=(("bands", 4),),
        delta=DELTA,
        epsilon=EPSILON,
        model="softmax",
        batch=64,
        steps=STEPS,
        eval_every=30,
        checkpoint_every=7,
    )
    job = json.dumps([config.to_json(), kills, str(place / "noted")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, job, str(kills)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    lines = (place / "noted").read_text().splitlines()
    return RunFolder(place / "run"), [json.loads(line) for line in lines]


Survived = tuple[int, RunFolder, list[list[object]]]


@pytest.fixture(scope="module", params=[4, pytest.param(20, marks=pytest.mark.slow)])
def survived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Survived:
    """A run that was killed so often and then left to finish, and what was noted of its releases."""
    return request.param, *survive(tmp_path_factory.mktemp("killed"), request.param)


def test_no_z_serves_two_sums_and_no_charge_is_lost(survived: Survived) -> None:
    kills, folder, noted = survived
    steps = [int(str(line[0])) for line in noted if line[1] != "done"]
    assert len(set(steps)) == len(steps)  # no step, and so no z, was used for a second sum
    assert steps == sorted(steps)
    record = read(folder.ledger)
    assert [entry.step for entry in record.entries] == list(range(STEPS))
    assert set(steps) <= set(range(STEPS))  # a line of the ledger for every release, and before it
    ((event, count),) = record.charge().certified
    assert isinstance(event, CorrelatedRun)
    assert count == 1  # the keys were never lost, so nothing was charged anew
    result = json.loads(folder.result.read_text())
    assert 0.98 * EPSILON < result["spent"]["certified"]["epsilon"] <= EPSILON
    assert STEPS - kills <= len(steps)
    assert not NoiseKeys.path_of(folder.ledger).exists()


def test_every_stretch_goes_on_with_the_noise_of_the_one_before(survived: Survived) -> None:
    """What a release leaves in its history is what the next one finds there, whatever was killed in between."""
    _, _, noted = survived
    after = {line[0]: line[3] for line in noted if line[1] == "done"}
    begun = [line for line in noted if line[1] != "done"]
    assert len({line[1] for line in begun}) > 1  # some kill hit a run that had begun
    pairs = [(line[3], after[before]) for line in begun if (before := int(str(line[0])) - 1) in after]
    assert all(found == left for found, left in pairs)
    assert len(pairs) > STEPS / 2
