"""Exit codes: 2 only where nothing was spent; everything else says what was, and how to go on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cli_runner import Result, refused, run

from discreet import runs
from discreet.accounting import ledger as ledger_module
from discreet.auditing import truth
from discreet.core.check import Damaged
from discreet.core.errors import ProcessLost
from discreet.data import targets
from discreet.report import page
from discreet.runs import RunFolder
from discreet.training import checkpoint
from discreet.training.checkpoint import Checkpoint

RUN = ("--data", "digits", "--model", "softmax", "--method", "dp-sgd", "--noise", "1.0", "--delta", "1e-5")
RUN += ("--batch", "64", "--steps", "6", "--eval-every", "2", "--checkpoint-every", "1")
CPU_MEMORY = "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: 8 bytes"


def stopped(result: Result, code: int, out: Path, *parts: str) -> None:
    """One line that says what was spent and how to go on."""
    assert result.code == code, result
    assert result.out == ""
    *progress, last = result.err.splitlines()
    assert not [line for line in progress if not line.startswith(("dp-sgd on digits: softmax", "step "))]
    charges = RunFolder(out).charges()
    assert charges > 0
    for part in (*parts, f": {charges} charge", f"Resume with: discreet resume {out}"):
        assert part in last, (part, result.err)


def goes_on(out: Path) -> None:
    """The line that was printed works, and no step is charged twice."""
    assert run("resume", out, "--json").json["steps"] == 6
    assert ledger_module.read(out / "ledger.jsonl").length == 6


def failing(monkeypatch: pytest.MonkeyPatch, at: int, fail: Callable[[], Any]) -> None:
    """The loss of step `at` (from 0) fails. Rehearsals, which are smaller than any batch, and evaluations do not."""
    calls = iter(range(1000))

    class Functional:
        @staticmethod
        def cross_entropy(*args: Any, **kwargs: Any) -> torch.Tensor:
            step = -1 if len(args[1]) < 24 or not torch.is_grad_enabled() else next(calls)
            return fail() if step == at else F.cross_entropy(*args, **kwargs)

    monkeypatch.setattr(targets, "F", Functional)


def raising(error: Exception) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return fail


FAILURES = [
    (MemoryError(), 71, "Expected enough memory"),
    (RuntimeError(CPU_MEMORY), 71, "can't allocate memory"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 71, "Tried to allocate 2 GiB"),
    (OSError(errno.ENOSPC, "No space left on device", "x"), 74, "free space on the disk"),
    (PermissionError(errno.EACCES, "Permission denied", "x"), 74, "check the path"),
    (ProcessLost("Expected all 2 processes"), 75, "Expected all 2 processes"),
    (ZeroDivisionError("division by zero"), 3, "division by zero"),
    (KeyError("wrong"), 70, "A fault in discreet"),
]


@pytest.mark.parametrize(("error", "code", "part"), FAILURES, ids=lambda value: type(value).__name__)
def test_a_run_that_fails_after_it_has_spent(
    tmp_path: Path, error: Exception, code: int, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        failing(patch, 3, raising(error))
        stopped(run("train", *RUN, "--out", out), code, out, part)
    goes_on(out)


@pytest.mark.parametrize(("error", "code", "part"), FAILURES, ids=lambda value: type(value).__name__)
def test_the_same_failures_before_anything_was_spent(
    tmp_path: Path, error: Exception, code: int, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, memory, a lost process and our own faults keep their codes; the rest is bad input."""
    out = tmp_path / "run"
    failing(monkeypatch, 0, raising(error))
    result = run("train", *RUN, "--out", out)
    bad_input = isinstance(error, (PermissionError, ZeroDivisionError))
    assert result.code == (2 if bad_input else code)
    assert part in result.err
    assert "Spent so far" not in result.err
    assert RunFolder(out).charges() == 0


def test_what_is_refused_after_the_first_step_is_not_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        failing(patch, 3, lambda: torch.zeros((), requires_grad=True))
        stopped(run("train", *RUN, "--out", out), 3, out, "Expected ")
    goes_on(out)


@pytest.mark.parametrize("torn", [False, True])
def test_a_disk_that_fills_while_a_charge_is_written(
    tmp_path: Path, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, left, write = tmp_path / "run", iter(range(100)), os.write

    def full(descriptor: int, content: bytes) -> int:
        if content.startswith(b'{"body"') and next(left) >= 3:  # the header, two charges, then no more
            if not torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            content = content[:40]
        return write(descriptor, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        told = "40 of" if torn else os.strerror(errno.ENOSPC)
        stopped(run("train", *RUN, "--out", out), 74, out, told, "free space on the disk")
    assert RunFolder(out).charges() == (3 if torn else 2)
    goes_on(out)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_disk_that_is_full_for_the_metrics(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "metrics.jsonl").symlink_to("/dev/full")
    stopped(run("train", *RUN, "--out", out), 74, out, os.strerror(errno.ENOSPC))
    (out / "metrics.jsonl").unlink()
    goes_on(out)


# Damaged files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after three of its steps."""
    out = tmp_path_factory.mktemp("broken") / "run"
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, 3, raising(MemoryError()))
        assert run("train", *RUN, "--out", out).code == 71
    return out


@pytest.fixture
def copied(broken_off: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(broken_off, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_flipped_bit_in_the_checkpoint(copied: RunFolder) -> None:
    whole, ledger = copied.checkpoint.read_bytes(), copied.ledger.read_bytes()
    flip(copied.checkpoint, len(whole) // 2)
    result = run("resume", copied.directory)
    assert result.code == 65
    assert result.err.count("\n") == 1
    for part in ("Expected", str(copied.checkpoint), "its bytes have changed", "Remedy: restore the file"):
        assert part in result.err
    assert copied.ledger.read_bytes() == ledger
    copied.checkpoint.write_bytes(whole)
    goes_on(copied.directory)


def test_no_bit_of_a_checkpoint_changes_unseen(copied: RunFolder) -> None:
    """Two hundred places, the digest and the end of the zip among them."""
    path = copied.checkpoint
    size = path.stat().st_size
    places = {*range(0, size, size // 100), *range(size - 100, size)}
    for place in sorted(places):
        flip(path, place, place % 8)
        with pytest.raises(Damaged, match=r"whole checkpoint|bytes have changed"):
            Checkpoint.read(path)
        flip(path, place, place % 8)
    assert Checkpoint.read(path).charges == 3
    state = torch.load(path, weights_only=True)  # an ordinary file of torch's, for all that
    state["format"] = checkpoint.WITHOUT_DIGEST
    torch.save(state, path)  # as the version before wrote it
    assert Checkpoint.read(path).charges == 3
    state["format"] = checkpoint.FORMAT
    torch.save(state, path)
    with pytest.raises(Damaged, match="lost its digest"):
        Checkpoint.read(path)


@pytest.mark.parametrize("line", [b'{"step": 2, "test', b"\xff\xfe", b"[1]", b'{"step": 2}', b"", b"null"])
def test_a_broken_line_of_the_metrics(copied: RunFolder, line: bytes) -> None:
    whole, ledger = copied.metrics.read_bytes(), copied.ledger.read_bytes()
    copied.metrics.write_bytes(line + b"\n" + whole)
    result = run("resume", copied.directory)
    assert result.code == 65
    for part in ("line 1 of", "metrics.jsonl", "Remedy: delete the line", f"resume {copied.directory}"):
        assert part in result.err
    assert copied.ledger.read_bytes() == ledger
    copied.metrics.unlink()
    goes_on(copied.directory)


def test_metrics_that_break_while_the_run_spends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    add = RunFolder.add_metrics

    def broken(self: RunFolder, **values: Any) -> None:
        self.metrics.write_text("no JSON\n")
        add(self, **values)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add_metrics", broken)
        stopped(run("train", *RUN, "--out", out), 65, out, "line 1 of", "delete the line")
    (out / "metrics.jsonl").unlink()
    goes_on(out)


# Where the answer goes ----------------------------------------------------------------------------------------

COMPARE = ("compare", "--data", "digits", "--model", "softmax", "--epsilon", "3", "--delta", "1e-5")
COMPARE += ("--methods", "dp-sgd", "--steps", "2", "--repeats", "1")
PLAN = ("plan", "--records", "1000", "--batch", "100", "--epochs", "1", "--epsilon", "3", "--delta", "1e-5")
ACCOUNT = ("account", "--method", "dp-sgd", "--noise", "1", "--rate", "0.1", "--steps", "3", "--delta", "1e-5")
WITH_OUT = {
    "train": ("train", *RUN, "--out"),
    "compare": (*COMPARE, "--out"),
    "audit": ("audit", "--method", "dp-sgd", "--out"),
    "plan": (*PLAN, "--out"),
    "account": (*ACCOUNT, "--curve"),
}


@pytest.mark.parametrize("name", WITH_OUT)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, act in ((runs, "train"), (truth, "truth_table")):
        monkeypatch.setattr(module, act, raising(AssertionError("the work has begun")))
    ending = {"plan": "plan.html", "account": "curve.svg"}.get(name, "out")
    (tmp_path / "file").touch()
    refused(run(*WITH_OUT[name], tmp_path / "file" / ending), "file")
    refused(run(*WITH_OUT[name], f"/proc/nowhere/{ending}"), "/proc/nowhere")
    if name in ("audit", "plan", "account"):
        (tmp_path / ending).mkdir()
        refused(run(*WITH_OUT[name], tmp_path / ending), "a directory, a device or read-only")
        assert {path.name for path in tmp_path.iterdir()} == {"file", ending}
    else:
        assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_a_comparison_whose_page_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "compared"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "report.html")
    with monkeypatch.context() as patch:
        patch.setattr(page, "write", lambda *_: raising(full)())
        result = run(*COMPARE, "--out", out)
    assert result.code == 74
    assert f"kept in {out}: 2 charges. Resume with: " in result.err
    assert run(*COMPARE, "--out", out, "--json").json["entries"][0]["runs"][0]["steps"] == 2
