"""Normals that are drawn ahead, beside other work: the same values, each handed out once, whatever the thread does."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch

from discreet.core import normals
from discreet.core.check import Refused
from discreet.core.generators import ahead
from discreet.core.generators.ahead import NormalsAhead
from discreet.core.streams import Stream, Streams

pytestmark = pytest.mark.skipif(normals.compiled is None, reason="the compiled generator was not built")
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


def drawn_at(first: int, count: int) -> normals.Floats:
    values = np.zeros(count)
    normals.add(KEY, first, values, 1.0)
    return values


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("count", [2, 30, 32, 34, 16384, 3 * 16384 - 2, COUNT + 1])
def test_the_same_values_at_the_same_positions(count: int, beside: bool) -> None:
    memory = np.full(count + 1, np.nan)
    drawn = NormalsAhead(KEY, 11, memory[:-1], beside=beside)
    assert np.array_equal(drawn.wait(), drawn_at(11, count))
    assert np.array_equal(drawn.wait(), drawn_at(11, count)), "a second wait changes nothing"
    assert np.isnan(memory[-1]), "nothing is written behind the array"


def test_a_forked_process_has_all_values_without_the_thread() -> None:
    count = 1 << 24  # the thread is still at work when the process forks
    drawn = NormalsAhead(KEY, 11, np.full(count, np.nan))
    child = os.fork()
    if child == 0:
        ends, expected = drawn.wait()[[0, -2, -1]], drawn_at(11, 2)[0]
        is_right = ends[0] == expected and np.array_equal(ends[1:], drawn_at(11 + count // 2 - 1, 2))
        os._exit(0 if is_right and not np.isnan(drawn.wait()).any() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(drawn.wait()[-2:], drawn_at(11 + count // 2 - 1, 2))


def test_a_draw_that_nobody_waits_for_ends() -> None:
    memory = np.full(1 << 24, np.nan)
    del_at_once = NormalsAhead(KEY, 11, memory)
    del del_at_once
    left = np.isnan(memory).sum()
    time.sleep(0.02)
    assert np.isnan(memory).sum() == left, "the thread has ended"
    assert left, "the thread does not draw to the end"


@pytest.mark.parametrize("given", [(KEY[:31], np.zeros(4)), (KEY, np.zeros(4, np.float32))])
def test_other_keys_and_arrays_are_refused(given: tuple[bytes, normals.Floats]) -> None:
    with pytest.raises(ValueError, match="a key of 32 bytes and an array of float64"):
        NormalsAhead(given[0], 0, given[1])


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
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not ahead.core_is_free()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert ahead.core_is_free()
    monkeypatch.setattr(normals, "compiled", None)
    assert not ahead.core_is_free()


def test_the_first_thread_of_a_stream_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    real = NormalsAhead.__init__

    def counted(self: NormalsAhead, key: bytes, first: int, memory: normals.Floats) -> None:
        begun.append(1)
        real(self, key, first, memory)

    monkeypatch.setattr(NormalsAhead, "__init__", counted)
    stream: Stream = Streams.seeded(3).noise
    stream.prepare(COUNT)
    stream.prepare(2 * COUNT)
    assert len(begun) == 1
