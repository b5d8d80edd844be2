"""kill -9 at random moments of a `PrivateTrainer` run, again and again: no charge is lost, and none is repeated.

One process imports everything, trains once, and forks a child for each stretch of the run. A child notes each release
in a file of its own, before the optimizer steps. A run that was killed before its first checkpoint begins anew, with
another ledger; the charges of the old one still count.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra huggingface")
pytest.importorskip("peft", reason="needs the extra huggingface")

from discreet.accounting.ledger import read

STEPS = 30

PROGRAM = """
import os, random, signal, sys, time, traceback
from pathlib import Path
from discreet.data.features.vision_operators import declare_vision_operators
declare_vision_operators()
import torch
torch.set_num_threads(1)
import transformers
transformers.utils.logging.set_verbosity_error()
import small_llama_trainer as small
from discreet.integrations import huggingface

place, kills, STEPS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(0)

class Note(transformers.TrainerCallback):
    def __init__(self, name):
        self.file, self.name = os.open(place / "released", os.O_WRONLY | os.O_APPEND | os.O_CREAT), name
    def on_pre_optimizer_step(self, args, state, control, **_):
        os.write(self.file, f"{self.name} {state.global_step}\\n".encode())

def ledgers():
    return sorted(place.glob("ledger-*"))

def charged():
    return sum(path.read_bytes().count(b"\\n") - 1 for path in ledgers())

def train(folder, steps, note=None, **options):
    callbacks = [] if note is None else [note]
    saving = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "logging_steps": 1000}
    return small.trainer(folder, seed=None, max_steps=steps, callbacks=callbacks, **saving, **options)

def fork():
    child = os.fork()
    if child:
        return child
    try:
        complete = any(map(huggingface._is_complete, place.glob("run/checkpoint-*")))
        ledger = ledgers()[-1] if complete else place / f"ledger-{len(ledgers()):03}"
        run = train(place / "run", STEPS, Note(ledger.name), ledger=ledger)
        run.train(resume_from_checkpoint=True if complete else None)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

train(place / "warm", 2).train()
for done in range(kills):
    child = fork()
    wanted = charged() + chance.randint(1, max(1, STEPS // kills - 1))
    until = time.monotonic() + 60
    while charged() < wanted and time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            sys.exit("the child ended by itself")
        time.sleep(0.0005)
    time.sleep(chance.random() * 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
_, status = os.waitpid(fork(), 0)
assert status == 0, "the last stretch failed"
"""


@pytest.mark.slow  # training/test_kill.py kills runs of `discreet train` in every run of the tests
@pytest.mark.parametrize("kills", [20])
def test_no_charge_is_lost_and_none_repeated(kills: int, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    helpers = Path(__file__).resolve().parents[1] / "helpers"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(kills), str(STEPS)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(helpers), *sys.path])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    released = Counter(tuple(line.split()) for line in (tmp_path / "released").read_text().splitlines())
    assert set(released.values()) == {1}  # no step is released twice
    ledgers = {path.name: read(path) for path in sorted(tmp_path.glob("ledger-*"))}
    charged = {(name, str(entry.step)) for name, ledger in ledgers.items() for entry in ledger.entries}
    assert sum(ledger.length for ledger in ledgers.values()) == len(charged)  # no step is charged twice
    assert set(released) <= charged  # nothing was free
    assert len(charged) <= len(released) + kills  # a kill wastes one charge at most
    *_, last = ledgers.values()
    assert [entry.step for entry in last.entries] == list(range(STEPS))
    keys = [entry.note["noise"] for ledger in ledgers.values() for entry in ledger.entries if "noise" in entry.note]
    assert len(keys) == len(set(keys))  # each stretch has keys of its own
