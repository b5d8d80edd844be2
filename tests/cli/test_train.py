from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from cli_runner import refused, replaced, run

from discreet import runs
from discreet.cli import recipes
from discreet.methods import METHODS
from discreet.report import progress
from discreet.runs import training

RUN = ("--data", "digits", "--model", "softmax", "--method", "dp-sgd", "--noise", "1.0", "--delta", "1e-5")
RUN += ("--batch", "64", "--steps", "4")


WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")


def test_a_run_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = run("train", *RUN, "--out", out, "--clip", "0.5", "--json").json
    assert answer["method"] == "dp-sgd"
    assert answer["steps"] == 4
    assert answer["directory"] == str(out)
    assert 0 <= answer["test_accuracy"] <= 1
    files = {"plan.json", "run.json", "metrics.jsonl", "ledger.jsonl", "model.pt", "result.json"}
    assert files | {"privacy-statement.md"} <= {path.name for path in out.iterdir()}
    config = runs.load_config(out)
    assert dict(config.parameters) == {"clip": 0.5}
    assert (config.data, config.model, config.noise, config.batch) == ("digits", "softmax", 1.0, 64)

    ledger = run("account", "--ledger", out / "ledger.jsonl", "--delta", "1e-5", "--json").json
    assert ledger["certified"] == answer["spent"]["certified"]

    assert run("resume", out, "--json").json == answer  # a finished run is read, not repeated
    shown = run("resume", out)
    assert (shown.code, shown.err) == (0, "")
    assert "test accuracy" in shown.out
    assert "keyed by the operating system" in shown.out
    refused(run("train", *RUN, "--out", out), "resume that run", str(out))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"out": None}, ["--out, got none", "--out runs/first"]),
        ({"delta": None, "out": None}, ["--delta and --out, got neither", "--delta 1e-5 --out runs/first"]),
        ({"delta": "0"}, ["delta in (0, 1)"]),
        ({"method": "dp-sdg"}, ["did you mean dp-sgd"]),
        ({"epsilon": "3"}, ["epsilon", "noise"]),
        ({"noise": None}, ["Expected --epsilon, got none", "--epsilon 3"]),
        ({"noise": "-1"}, ["noise"]),
        ({"epochs": "3"}, ["epochs", "steps"]),
        ({"steps": "0"}, ["steps"]),
        ({"batch": "1e3"}, ["--batch"]),
        ({"batch": "0"}, ["batch"]),
        ({"micro_batch": "0"}, ["micro_batch"]),
        ({"eval_every": "0"}, ["eval_every"]),
        ({"data": "digit"}, ["digits", "npz"]),
        ({"data": "no-such-file.npz"}, ["classes"]),
        ({"data": "no-such-file.npz", "classes": "2", "records": "10"}, ["no-such-file.npz"]),
        ({"model": "oracle"}, ["a model of", "oracle"]),
        ({"gamma": "1"}, ["flags of dp-sgd (--clip)", "--gamma"]),
        ({"clip": "0"}, ["clip > 0"]),
        ({"sampling": "own-loader"}, ["sampling"]),
        ({"sampling": "truncated-poisson"}, ["cap"]),
        ({"relation": "replace-one"}, ["Poisson"]),
        ({"optimizer": "lbfgs"}, ["--optimizer"]),
        ({"learning_rate": "-1"}, ["learning_rate > 0"]),
        ({"device": "abacus"}, ["device='abacus'", "leave the device out"]),
        pytest.param(
            {"device": "cuda"},
            ["device='cuda'"],
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA"),
        ),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_bad_input_is_one_line(tmp_path: Path, changes: dict[str, str | None], parts: list[str]) -> None:
    words = replaced((*RUN, "--out", str(tmp_path / "run")), **changes)
    refused(run("train", *words), *parts)
    assert not (tmp_path / "run").exists()  # a typo leaves no directory


def test_a_directory_that_was_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    refused(run("train", *replaced((*RUN, "--out", str(tmp_path / "run")), model="oracle")), "oracle")
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_run_says_what_it_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(training, "TELL_EVERY", 0.0)
    words = replaced((*RUN, "--out", str(tmp_path / "run"), "--eval-every", "2"), method=None)
    first, second, *_ = run("train", *words).err.splitlines()
    assert first.startswith("dp-sgd on digits: softmax with 650 parameters, 4 steps, batch 64 of 1,437 records")
    assert "certified epsilon at the end" in first
    assert re.fullmatch(r"step 1/4 · epsilon \d+\.\d+", second)


def test_a_directory_without_a_run_cannot_go_on(tmp_path: Path) -> None:
    refused(run("resume", tmp_path), str(tmp_path))
    refused(run("resume"), "resume --help")


def test_a_method_without_a_certificate_must_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unproven = dataclasses.replace(METHODS["dp-sgd"], certified=False, guarantee="nothing is proven")
    monkeypatch.setattr(recipes, "METHODS", MappingProxyType({**METHODS, "dp-sgd": unproven}))
    words = (*RUN, "--out", str(tmp_path / "run"))
    refused(run("train", *words), "nothing is proven", "--accept-uncertified")
    assert run("train", *words, "--accept-uncertified", "--json").json["method"] == "dp-sgd"


def test_stopping_before_anything_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train", stopped)
    result = run("train", *RUN, "--out", tmp_path / "run")
    assert result.code == 130
    assert result.err.count("\n") == 1
    assert "nothing was charged" in result.err


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    """On a terminal of its own: the bar is there, Ctrl-C is charged as planned, and the run goes on."""
    out = tmp_path / "a run"
    words = [*replaced(RUN, batch="16", steps="600"), "--out", str(out), "--eval-every", "10"]
    program = "import sys; from discreet.cli import main; sys.exit(main())"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program, "train", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"},
        text=True,
        # Where the tests run in the background of a shell, children would inherit a Ctrl-C that is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        os.close(theirs)
        ledger = out / "ledger.jsonl"
        deadline = time.monotonic() + 120
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < 25:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        seen = _everything(ours)
        assert process.wait(60) == 130
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert f"Resume with: discreet resume '{out}'" in seen
    assert "Traceback" not in seen
    assert "epsilon" in seen
    assert "accuracy" in seen

    charged = ledger.read_bytes().count(b"\n") - 1
    assert charged < 600
    result = run("resume", out, "--json").json
    assert result["steps"] == 600
    assert result["lost"] <= 1
    assert ledger.read_bytes().count(b"\n") == 601
    assert json.loads((out / "result.json").read_text())["resumes"] == 1


def _everything(terminal: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            os.close(terminal)
            return b"".join(parts).decode()
        parts.append(part)


def test_claimed_noise_must_be_asked_for_twice(tmp_path: Path) -> None:
    """The result shows what the noise of a paper's theorem is worth, beside what the theorem says."""
    dense = ("--reduction", "0.5", "--projection", "dense", "--widths", "320,5")
    words = replaced((*RUN, "--out", str(tmp_path / "run")), method="d2p2-sgd", noise=None, epsilon="3")
    words = (*words, *dense, "--calibrate-to-claim")
    refused(run("train", *words), "--calibrate-to-claim", "--accept-uncertified")
    spent = run("train", *words, "--accept-uncertified", "--json").json["spent"]
    assert spent["claimed"] <= 3 < spent["certified"]["epsilon"]
