"""Training several runs at once, each in a process of its own: small models leave cores idle otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import IO, Protocol, final

from discreet import runs
from discreet.core.workers import cores, crew_size
from discreet.runs.comparison.worker import reason


@final
@dataclass(frozen=True, kw_only=True)
class TrainingOrder:
    """A run to train: its place in the comparison, its settings, and whether it was begun before."""

    index: int
    config: runs.RunConfig
    resume: bool


class PoolWatch(Protocol):
    """What is told about orders."""

    def started(self, order: TrainingOrder) -> None: ...

    def news(self, order: TrainingOrder, news: runs.RunProgress) -> None: ...

    def ended(self, order: TrainingOrder, why: str) -> None:
        """`why` is empty if the run finished."""


def carry_out(orders: Iterable[TrainingOrder], watch: PoolWatch, workers: int | None = None) -> None:
    """Train all orders; `workers` None: one for each core, four at most. One worker is this very process."""
    waiting = deque(orders)
    at_once = crew_size(len(waiting), workers)
    if at_once > 1:
        _with_processes(waiting, watch, at_once)
        return
    for order in waiting:
        watch.started(order)
        watch.ended(order, _train_here(order, watch))


def _train_here(order: TrainingOrder, watch: PoolWatch) -> str:
    try:
        runs.train(order.config, on_progress=lambda news: watch.news(order, news), resume=order.resume)
    except Exception as error:
        return reason(error)
    return ""


def _with_processes(waiting: deque[TrainingOrder], watch: PoolWatch, at_once: int) -> None:
    threads = max(1, cores() // at_once)
    crew: list[_Worker] = []
    try:
        while True:
            _hand_out(waiting, watch, crew, at_once, threads)
            busy = [worker for worker in crew if worker.order is not None]
            if not busy:
                return
            ready = wait([worker.answers for worker in busy])
            for worker in busy:
                if worker.answers in ready and not worker.listen(watch):
                    worker.dismiss()
                    crew.remove(worker)
    finally:
        for worker in crew:  # all are told before any is waited for: each saves its run
            worker.orders.close()
        for worker in crew:
            worker.dismiss()


def _hand_out(
    waiting: deque[TrainingOrder], watch: PoolWatch, crew: list[_Worker], at_once: int, threads: int
) -> None:
    """Orders to workers that have none; a worker that died is replaced."""
    while waiting:
        idle = next((worker for worker in crew if worker.order is None), None)
        if idle is None:
            if len(crew) == at_once:
                return
            crew.append(idle := _Worker(threads))
        idle.begin(waiting.popleft(), watch)


@final
class _Worker:
    """A process that trains one order at a time. Terminal signals do not reach it; closing `orders` stops it."""

    def __init__(self, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "discreet.runs.comparison.worker", str(threads), *sys.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.orders: IO[bytes] = self._process.stdin
        self._output: IO[bytes] = self._process.stdout
        self.answers = self._output.fileno()
        self.order: TrainingOrder | None = None
        self._rest = b""

    def begin(self, order: TrainingOrder, watch: PoolWatch) -> None:
        """Send an order."""
        self.order = order
        watch.started(order)
        line = json.dumps({"config": order.config.to_json(), "resume": order.resume}) + "\n"
        # If it has died, its answers end, which is noticed where they are read.
        with contextlib.suppress(BrokenPipeError):
            self.orders.write(line.encode())

    def listen(self, watch: PoolWatch) -> bool:
        """Pass on what it said; False where it says nothing any more."""
        said = os.read(self.answers, 1 << 16)
        if not said:
            if self.order is not None:
                code = self._process.wait()
                watch.ended(self.order, f"the process of this run ended with code {code}")
            return False
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            self._hear(json.loads(line), watch)
        return True

    def _hear(self, answer: dict[str, object], watch: PoolWatch) -> None:
        assert self.order is not None
        news = answer.get("news")
        if isinstance(news, dict):
            watch.news(self.order, runs.RunProgress(**news))
            return
        order, self.order = self.order, None
        watch.ended(order, str(answer["end"]))

    def dismiss(self) -> None:
        """Let it end, and wait until it has."""
        self.orders.close()
        while os.read(self.answers, 1 << 16):
            pass  # what it says while it stops would fill the pipe
        self._process.wait()
        self._output.close()
