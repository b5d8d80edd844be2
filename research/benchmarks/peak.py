"""Peak memory of one row above its memory before the first step, measured in its own process: of the first step, which
may check the model and compile, and of those after it.

    python -m research.benchmarks.peak MODEL ROW THREADS

prints one JSON object. The kernel's high-water mark is reset before the first step (Linux); elsewhere the peak of
the process stands in for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import resource
import subprocess
import sys
from pathlib import Path

import torch

from research.benchmarks.models import MODELS
from research.benchmarks.peers import ROWS
from research.benchmarks.rows import AbsentError, own_copy
from research.benchmarks.timing import quiet

STEPS = 3
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _status(field: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def peak_bytes(model: str, row: str) -> tuple[int, int]:
    """Bytes above the baseline, of the steps after the first and of the first; call it in a fresh process."""
    torch.manual_seed(0)
    task = MODELS[model].make()
    own = next(one for one in ROWS if one.name == row)
    with quiet():
        step = own.make(own_copy(task))
        before = _restarted()
        step()
        first = _peak() - before
        _restarted()  # memory that a step keeps for the next one counts
        for _ in range(STEPS - 1):
            step()
        return _peak() - before, first


def _restarted() -> int:
    """Bytes in use; the peak is counted from here on, where the system can."""
    _let_go()
    if not _STATUS.exists():
        return _peak()
    _RESET.write_text("5")
    return _status("VmRSS")


def _let_go() -> None:
    """Return freed memory to the system, so that the steps cannot reuse memory counted in the baseline."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _peak() -> int:
    if _STATUS.exists():
        return _status("VmHWM")
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else 1024 * kilobytes


def measure_peak(model: str, row: str, *, threads: int, seconds: float = 300) -> tuple[int, int] | str:
    """Bytes of later steps and of the first, or why they could not be measured."""
    command = [sys.executable, "-m", "research.benchmarks.peak", model, row, str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {seconds:.0f} s"
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return "fails: " + (done.stderr.strip().splitlines() or ["no output"])[-1][:100]
    if "peak_bytes" not in answer:
        return str(answer["absent"])
    later, first = answer["peak_bytes"]
    return later, first


def main() -> None:
    model, row, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    try:
        print(json.dumps({"peak_bytes": peak_bytes(model, row)}))
    except AbsentError as reason:
        print(json.dumps({"absent": str(reason)}))


if __name__ == "__main__":
    main()
