"""Normals that are drawn ahead, beside other work: the same values, each handed out once, whatever the thread does."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
import torch

from discreet.core import normals
from discreet.core.check import Refused
from discreet.core.generators import ahead
from discreet.core.generators.ahead import NormalsAhead
from discreet.core.streams import Stream, Streams

KEY = bytes(range(32))
COUNT = 3 * ahead.LEAST + 5


@pytest.fixture(autouse=True)
def _free_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "core_is_free", lambda: True)


def reference(count: int) -> torch.Tensor:
    return Streams.seeded(3).noise.normal(count)


@pytest.mark.parametrize("sizes", [[COUNT], [7, COUNT], [COUNT - 1, 2, 9], [5, 5, ahead.LEAST, 3 * COUNT]])
def test_values_do_not_depend_on_what_was_prepared(sizes: list[int]) -> None:
    stream = Streams.seeded(3).noise
    found = []
    for size in sizes:
        stream.prepare(COUNT)
        found.append(stream.normal(size))
    assert torch.equal(torch.cat(found), reference(sum(sizes)))


def test_what_a_failed_step_prepared_is_used_once_by_the_next() -> None:
    stream = Streams.seeded(3).noise
    for _ in range(4):  # three steps that never release
        stream.prepare(COUNT)
    assert stream.spent == (COUNT + 1) // 2
    first, second = stream.normal(COUNT), stream.normal(COUNT)
    assert torch.equal(torch.cat([first, second]), reference(2 * COUNT))
    assert not np.isin(first.numpy(), second.numpy()).mean() > 0.01


def test_noise_keeps_its_size_when_memory_is_used_again() -> None:
    stream = Streams.seeded(3).noise
    found = []
    for std in (2.0, 0.5, 7.0):  # the pool is scaled in place
        stream.prepare(COUNT)
        found.append(stream.add_normal_(torch.zeros(COUNT), std) / std)
    assert torch.allclose(torch.cat(found), reference(3 * COUNT), rtol=1e-6)


def test_a_thread_that_dies_leaves_no_value_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    real, main = normals.add, threading.current_thread()

    def dies(key: bytes, first: int, values: normals.Values, std: float, *, threads: int | None = None) -> None:
        if threading.current_thread() is not main:
            values[: len(values) // 2] = 0.0
            raise MemoryError
        real(key, first, values, std, threads=threads)

    monkeypatch.setattr(normals, "add", dies)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    drawn = NormalsAhead.begin(KEY, 11, np.full(4 * ahead._PIECE, np.nan))
    time.sleep(0.05)  # let the thread take the first piece
    expected = np.zeros(4 * ahead._PIECE)
    real(KEY, 11, expected, 1.0)
    assert np.array_equal(drawn.wait(), expected)


def test_without_a_thread_the_draw_is_made_by_the_one_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    stream = Streams.seeded(3).noise
    stream.prepare(COUNT)
    assert torch.equal(stream.normal(COUNT), reference(COUNT))


def test_an_interrupted_wait_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, real = Streams.seeded(3).noise, NormalsAhead.wait
    interrupts = [KeyboardInterrupt()]

    def wait(self: NormalsAhead) -> normals.Floats:
        if interrupts:
            raise interrupts.pop()
        return real(self)

    monkeypatch.setattr(NormalsAhead, "wait", wait)
    stream.prepare(COUNT)
    with pytest.raises(KeyboardInterrupt):
        stream.normal(COUNT)
    assert torch.equal(stream.normal(COUNT), reference(COUNT)), "no value was handed out before"


def test_a_forked_process_may_not_prepare() -> None:
    stream = Streams.seeded(3).noise
    stream.prepare(COUNT)
    stream._process = os.getpid() + 1
    with pytest.raises(Refused, match="a forked process"):
        stream.prepare(COUNT)


def test_small_and_huge_draws_are_not_prepared() -> None:
    stream = Streams.seeded(3).noise
    stream.prepare(ahead.LEAST - 1)
    stream.prepare(ahead.MOST + 1)
    assert stream.spent == 0


def test_a_core_is_free_only_if_torch_leaves_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if normals.compiled is None:
        pytest.skip("the compiled generator was not built")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not ahead.core_is_free()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert ahead.core_is_free()
    monkeypatch.setattr(normals, "compiled", None)
    assert not ahead.core_is_free()


def test_the_first_thread_of_a_stream_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    real = NormalsAhead.begin.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(NormalsAhead, "begin", classmethod(lambda cls, *given: (begun.append(1), real(cls, *given))[1]))
    stream: Stream = Streams.seeded(3).noise
    stream.prepare(COUNT)
    stream.prepare(2 * COUNT)
    assert len(begun) == 1
