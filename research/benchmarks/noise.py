"""The time of one value of noise: compiled and pure generator, tensor operations, exact noise on a grid.

python -m research.benchmarks.noise results/noise-time.json
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from discreet.core import normals
from discreet.core.generators import exact, on_device
from discreet.core.streams import Stream, Streams
from research.benchmarks.table import machine, versions
from research.command import typed

VALUES: Final = 4_000_000
ROUNDS: Final = 7


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


if __name__ == "__main__":
    answer = json.dumps(main(), indent=2) + "\n"
    print(answer)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(answer)
