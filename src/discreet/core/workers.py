"""Jobs in parallel, each in its own process, because small models leave cores idle.

A worker is `python -m discreet.core.workers CALL THREADS ARGV...`. It reads one order a line from standard input and
answers with lines {"news": ...} and, at the end of a job, {"result": ...} or {"failure": ..., "refused": ...}. It
stops when standard input closes, so no worker outlives its parent.
"""

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import IO, Any, Protocol, final

from discreet.core import check
from discreet.core.errors import RunStopped

MOST_WORKERS = 4
_LONGEST_REASON = 300


class JobListener(Protocol):
    """Receives the progress of each job; `job` is its index among the orders."""

    def started(self, job: int) -> None: ...

    def news(self, job: int, news: Any) -> None: ...

    def ended(self, job: int, result: Any, failure: Exception | None) -> None:
        """`failure` is None if the job finished; `Refused` arrives as such, also from another process."""


@final
class JobFailed(RuntimeError):
    """A job of another process failed; the message is the reason, in one line."""


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def worker_count(jobs: int, workers: int | None = None) -> int:
    """The number of processes for `jobs` jobs; `workers` None: one per core, at most four.

    >>> worker_count(1, 3), worker_count(9, 3)
    (1, 3)
    """
    if workers is not None:
        check.count("how many work at once", workers=workers)
    return min(jobs, min(cores(), MOST_WORKERS) if workers is None else workers)


def failure_of(error: Exception) -> str:
    """The reason of a failed job, in one line. Messages of validators are not changed."""
    if isinstance(error, RunStopped) and isinstance(error.__cause__, Exception):
        return f"{failure_of(error.__cause__)} ({error.outcome})"
    first = (str(error).splitlines() or [""])[0][:_LONGEST_REASON]
    return first if isinstance(error, (check.Refused, JobFailed)) else f"{type(error).__name__}: {first}"


def run_jobs(
    call: str,
    orders: Sequence[Any],
    listener: JobListener,
    *,
    workers: int | None = None,
    threads: int | None = None,
    saves: bool = False,
) -> None:
    """Run all orders; with one worker, in this process.

    call     "module:function", called with an order and a function that forwards news; all of them JSON values
    threads  of torch in each worker; None: an equal share of the cores
    saves    whether a stopped job saves its work; otherwise its process is terminated
    """
    waiting = deque(enumerate(orders))
    at_once = worker_count(len(orders), workers)
    if at_once > 1:
        _with_processes(call, waiting, listener, at_once, threads or max(1, cores() // at_once), saves)
        return
    for job, order in waiting:
        listener.started(job)
        listener.ended(job, *_do(call, order, partial(listener.news, job)))


def _do(call: str, order: Any, tell: Callable[[Any], None]) -> tuple[Any, Exception | None]:
    """The result and why there is none."""
    module, name = call.split(":")
    try:
        return getattr(importlib.import_module(module), name)(order, tell), None
    except Exception as error:
        return None, error


def _with_processes(
    call: str, waiting: deque[tuple[int, Any]], listener: JobListener, at_once: int, threads: int, saves: bool
) -> None:
    crew: list[_Worker] = []
    try:
        while True:
            idle = [worker for worker in crew if worker.job is None]
            while waiting and (idle or len(crew) < at_once):
                if not idle:
                    crew.append(_Worker(call, threads))
                (idle.pop(0) if idle else crew[-1]).begin(*waiting.popleft(), listener)
            busy = [worker for worker in crew if worker.job is not None]
            if not busy:
                return
            ready = wait([worker.answers for worker in busy])
            for worker in busy:
                if worker.answers in ready and not worker.listen(listener):
                    worker.dismiss()
                    crew.remove(worker)  # a worker that died is replaced
    finally:
        for worker in crew:  # all are told before any is waited for: each saves its job
            worker.stop(saves)
        for worker in crew:
            worker.dismiss()


@final
class _Worker:
    """A process that does one job at a time. Terminal signals do not reach it."""

    def __init__(self, call: str, threads: int) -> None:
        command, pipe = [sys.executable, "-m", "discreet.core.workers", call, str(threads), *sys.argv], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders: IO[bytes] = self._process.stdin
        self._output: IO[bytes] = self._process.stdout
        self.answers = self._output.fileno()
        self.job: int | None = None
        self._rest = b""

    def begin(self, job: int, order: Any, listener: JobListener) -> None:
        self.job = job
        listener.started(job)
        # If the process has died, its answers end, which is noticed where they are read.
        with contextlib.suppress(BrokenPipeError):
            self._orders.write(json.dumps(order).encode() + b"\n")

    def listen(self, listener: JobListener) -> bool:
        """Forward its output; False once it has ended."""
        said = os.read(self.answers, 1 << 16)
        if not said:
            if self.job is not None:
                code = self._process.wait()
                listener.ended(self.job, None, JobFailed(f"the process of this run ended with code {code}"))
            return False
        *lines, self._rest = (self._rest + said).split(b"\n")
        for answer in map(json.loads, lines):
            assert self.job is not None
            if "news" in answer:
                listener.news(self.job, answer["news"])
            else:
                job, self.job = self.job, None
                failure = answer.get("failure")  # the error of the job, as its worker wrote it
                error = None if failure is None else (check.Refused if answer["refused"] else JobFailed)(failure)
                listener.ended(job, answer.get("result"), error)
        return True

    def stop(self, saves: bool) -> None:
        self._orders.close()
        if not saves:
            self._process.terminate()

    def dismiss(self) -> None:
        """Wait until it has ended."""
        self._orders.close()
        while os.read(self.answers, 1 << 16):
            pass  # what it says while it stops would fill the pipe
        self._process.wait()
        self._output.close()


def main() -> None:
    """Do jobs until standard input ends."""
    import torch

    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    call = sys.argv[1]
    torch.set_num_threads(int(sys.argv[2]))
    del sys.argv[:3]  # what is left is the command that the jobs are part of

    def answer(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")

    def tell(news: Any) -> None:
        # No order comes before the end of this job, so input that can be read is input that has ended.
        if select.select([0], [], [], 0)[0]:
            raise KeyboardInterrupt
        answer(news=news)

    for line in iter(sys.stdin.readline, ""):
        try:
            result, failure = _do(call, json.loads(line), tell)
        except KeyboardInterrupt:
            return
        if failure is None:
            answer(result=result)
        else:
            answer(failure=failure_of(failure), refused=isinstance(failure, check.Refused))


if __name__ == "__main__":
    main()
