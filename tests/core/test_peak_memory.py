"""Freed memory goes back to the system when it is much, and not before."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence

import pytest

from discreet.core import peak_memory
from discreet.core.peak_memory import FreedMemory


class System:
    """A process that has so many bytes at each look, and so many less after freed ones were given back."""

    def __init__(self, looks: Sequence[int | None], freed: int) -> None:
        self._looks, self._freed, self.given_back = list(looks), freed, 0
        self._now: int | None = None

    def look(self, field: str) -> int | None:
        assert field == "VmRSS"
        if self._now is not None:  # just after freed memory was given back
            now, self._now = self._now, None
            return now
        self._last = self._looks.pop(0)
        return self._last

    def give_back(self) -> None:
        assert self._last is not None
        self.given_back += 1
        self._now = self._last - self._freed


@pytest.mark.parametrize(
    ("looks", "times"),
    [
        ([500, 590, 600], 0),  # no more than 100 above the least
        ([500, 601], 1),
        ([500, 300, 401], 1),  # above the least, not above the first
        ([500, 700, 650], 1),  # 150 are freed, 550 are in use: this is the least from then on
        ([500, 700, 651], 2),
        ([None, None], 0),  # a system that does not say
    ],
)
def test_much_is_given_back(looks: list[int | None], times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    system, freed = System(looks, 150), FreedMemory(much=100)
    monkeypatch.setattr(peak_memory, "_status", system.look)
    monkeypatch.setattr(peak_memory, "give_back", system.give_back)
    for _ in looks:
        freed.give_back_if_much()
    assert system.given_back == times


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted on Linux")
def test_freed_pieces_leave_the_process() -> None:
    program = """
import torch
from pathlib import Path
from discreet.core.peak_memory import FreedMemory

freed = FreedMemory(much=64 << 20)
freed.give_back_if_much()
pieces = [torch.ones(1 << 18) for _ in range(200)]
torch.ones(7 << 20)  # freed: from here on the allocator keeps pieces of this size
pieces += [torch.ones(1 << 18) for _ in range(200)]
last = torch.ones(1 << 18)  # below the top of the heap
del pieces
for _ in range(2):
    print(Path("/proc/self/statm").read_text().split()[1])
    freed.give_back_if_much()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert (int(found[0]) - int(found[1])) * resource.getpagesize() > 128 << 20
