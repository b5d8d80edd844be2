"""The time of one value of noise: compiled and pure generator, tensor operations, exact noise on a grid.

python -m research.benchmarks.noise results/noise-time.json
python -m research.benchmarks.noise results/noise-time.json share  # the share of noise in a step
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from discreet.core import normals
from discreet.core.generators import ahead, exact, on_device
from discreet.core.streams import Stream, Streams
from research.benchmarks.models import MODELS
from research.benchmarks.rows import own_copy, plain, private
from research.benchmarks.table import machine, versions
from research.benchmarks.timing import interleave
from research.command import typed

VALUES: Final = 4_000_000
ROUNDS: Final = 7
SMALL: Final = "vit-tiny-8"  # a large model on a small batch, where noise takes most of a step


def main(values: int = VALUES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Medians of nanoseconds per float32 value, wall and processor time; all rows take turns."""
    flat, stream = torch.zeros(values), Streams.seeded(0).noise
    compiled = normals.compiled

    def ours(threads: int, generator: Any) -> Callable[[], object]:
        def draw() -> None:
            torch.set_num_threads(threads)
            normals.compiled = generator
            stream.add_normal_(flat, 1.0)
            normals.compiled = compiled

        return draw

    few = flat[: values // 8]
    rows: dict[str, tuple[int, Callable[[], object]]] = {
        "compiled, 1 thread": (values, ours(1, compiled)),
        "compiled, 2 threads": (values, ours(2, compiled)),
        "pure, 1 thread": (values, ours(1, None)),
        "normal_ of torch": (values, flat.normal_),
        "ChaCha20 in tensor operations on the CPU": (len(few), lambda: on_device.add_(bytes(32), 0, few, 1.0)),
        "exact, on a grid": (len(few), lambda: exact.rounded_normals(stream, len(few), 2.0**20)),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for _ in range(rounds + 1):
        for name, (count, draw) in rows.items():
            wall, processor = time.perf_counter(), time.process_time()
            draw()
            spent = time.perf_counter() - wall, time.process_time() - processor
            taken[name].append((1e9 * spent[0] / count, 1e9 * spent[1] / count))
            torch.set_num_threads(1)
    nanoseconds = {
        name: {
            kind: round(statistics.median(one[at] for one in times[1:]), 2) for at, kind in enumerate(("wall", "cpu"))
        }
        for name, times in taken.items()
    }
    return {
        "seconds_for_1e8_on_2_threads": {
            "compiled": large_draw(stream, compiled),
            "pure, as before it was compiled": large_draw(stream, None),
        },
        "milliseconds_after_a_call_of_torch": None if compiled is None else after_a_call(stream),
        "step_over_plain": {f"mlp, {threads} threads": overlap("mlp", threads) for threads in (1, 2)},
        "command": typed("research.benchmarks.noise"),
        "versions": versions(),
        "machine": machine(),
        "values": values,
        "rounds": rounds,
        "compiled": compiled is not None,
        "ns_per_value": nanoseconds,
    }


def large_draw(stream: Stream, generator: Any, values: int = 10**8, rounds: int = 3) -> dict[str, float]:
    """The fastest of some draws, wall and processor time; other work on the machine only adds to it."""
    flat, before, compiled = torch.zeros(values), torch.get_num_threads(), normals.compiled
    torch.set_num_threads(2)
    normals.compiled = generator
    taken = []
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        stream.add_normal_(flat, 1.0)
        taken.append((time.perf_counter() - wall, time.process_time() - processor))
    torch.set_num_threads(before)
    normals.compiled = compiled
    return {kind: round(min(one[at] for one in taken), 3) for at, kind in enumerate(("wall", "cpu"))}


def share_of_step(model: str, threads: int, rounds: int = 5) -> dict[str, float]:
    """Medians of the milliseconds of a private step and of its noise, and of their ratio."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    drawing: list[float] = []
    draw = Stream.add_normal_

    def timed(stream: Stream, value: torch.Tensor, std: float) -> torch.Tensor:
        start = time.perf_counter()
        noisy = draw(stream, value, std)
        drawing.append(time.perf_counter() - start)
        return noisy

    step, taken = private(MODELS[model].make()), []
    step()
    with unittest.mock.patch.object(Stream, "add_normal_", timed):
        for _ in range(rounds):
            drawing.clear()
            start = time.perf_counter()
            step()
            taken.append((time.perf_counter() - start, sum(drawing)))
    torch.set_num_threads(before)
    return {
        "step_ms": round(1e3 * statistics.median(whole for whole, _ in taken), 2),
        "noise_ms": round(1e3 * statistics.median(noise for _, noise in taken), 2),
        "share": round(statistics.median(noise / whole for whole, noise in taken), 4),
    }


def after_a_call(stream: Stream, values: int = 535_818, rounds: int = 101) -> dict[str, float]:
    """Medians for the noise of a small step on two threads, right after a product: on torch's threads and on others."""
    flat, before, matrix = torch.zeros(values), torch.get_num_threads(), torch.randn(512, 784)
    torch.set_num_threads(2)
    taken: dict[str, list[float]] = {"torch's threads": [], "own threads": []}
    for _ in range(rounds):
        for name, own in taken.items():
            normals.compiled.use_openmp(name == "torch's threads")
            matrix @ matrix.T
            start = time.perf_counter()
            stream.add_normal_(flat, 1.0)
            own.append(1e3 * (time.perf_counter() - start))
    normals.compiled.use_openmp(True)
    torch.set_num_threads(before)
    return {name: round(statistics.median(own), 3) for name, own in taken.items()}


def overlap(model: str, threads: int, rounds: int = 41) -> dict[str, float]:
    """A private step over a plain one, with noise that is drawn beside the passes, and without."""
    before, free = torch.get_num_threads(), ahead.core_is_free
    torch.set_num_threads(threads)
    task = MODELS[model].make()
    step = private(own_copy(task))

    def drawing(beside: bool) -> Callable[[], None]:
        def taken() -> None:
            ahead.core_is_free = lambda: beside
            step()

        return taken

    steps = {"plain": plain(task), "beside the passes": drawing(True), "after them": drawing(False)}
    try:
        timings = interleave(steps, repeats=rounds, patience=60)
    finally:
        ahead.core_is_free = free
        torch.set_num_threads(before)
    return {name: round(timing.ratio, 3) for name, timing in timings.items() if name != "plain"}


def shares() -> dict[str, Any]:
    """The share of noise in a step of a large model on a small batch."""
    measured = {f"{SMALL}, {threads} threads": share_of_step(SMALL, threads) for threads in (1, 2)}
    return {"share_of_a_step": {"command": typed("research.benchmarks.noise"), **measured}}


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    kept = json.loads(file.read_text()) if file is not None and file.exists() else {}
    answer = json.dumps(kept | (shares() if sys.argv[2:] == ["share"] else main()), indent=2) + "\n"
    print(answer)
    if file is not None:
        file.write_text(answer)
