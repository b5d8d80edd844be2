"""Streams: the right distributions, exact probabilities, and no block ever used twice.

Every draw is seeded, so a pass stays a pass; alpha is the chance that a fresh seed would have failed.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import pickle
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from discreet.core import normals
from discreet.core.check import Refused
from discreet.core.streams import Stream, Streams

ALPHA = 1e-6
NAMES = ("noise", "sampling", "mask", "projection", "init")


@pytest.fixture(params=["compiled-1", "compiled-2", "pure-1", "pure-2"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    kind, _, count = request.param.partition("-")
    if kind == "pure":
        monkeypatch.setattr(normals, "compiled", None)
    before = torch.get_num_threads()
    torch.set_num_threads(int(count))
    yield int(count)
    torch.set_num_threads(before)


# Position: forward only, independent of the cut -----------------------------------------------------------


def cut(seed: int, counts: list[int]) -> torch.Tensor:
    stream = Streams.seeded(seed).noise
    return torch.cat([stream.normal(count, dtype=torch.float64) for count in counts])


@pytest.mark.parametrize(
    "counts", [[200_001], [1] * 50 + [199_951], [3, 0, 65_537, 1, 70_000, 64_460], [131_072, 68_929]]
)
def test_values_depend_neither_on_the_cut_nor_on_the_threads(counts: list[int], threads: int) -> None:
    whole = Streams.seeded(5).noise.normal(200_002, dtype=torch.float64)[:200_001]
    assert sum(counts) == 200_001
    # The vector library may differ in the last bit between the body and the rim of an array.
    assert torch.allclose(cut(5, counts), whole, rtol=1e-12, atol=1e-14)


def test_words_do_not_depend_on_the_cut() -> None:
    one, other = Streams.seeded(6).mask, Streams.seeded(6).mask
    parts = [one.uniform64(count) for count in (3, 0, 1, 70_000, 5)]
    assert (np.concatenate(parts) == other.uniform64(70_009)).all()


def test_words_and_normals_do_not_disturb_each_other() -> None:
    one, other = Streams.seeded(7).noise, Streams.seeded(7).noise
    other.uniform64(33)
    assert torch.equal(one.normal(100), other.normal(100))
    one.normal(70_000)
    assert (one.uniform64(33) != other.uniform64(33)).all()


def test_no_block_repeats(threads: int) -> None:
    stream = Streams.seeded(8).noise
    words = stream.uniform64(200_000).reshape(-1, 2)
    values = torch.cat([stream.normal(count, dtype=torch.float64) for count in (7, 65_000, 200_001, 3, 12_000)])
    assert len(np.unique(words, axis=0)) == len(words)
    assert len(values.unique()) == len(values)


@pytest.mark.parametrize("count", [10, 100_000])
def test_a_failed_draw_loses_values_and_repeats_none(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty memory is no noise: what was asked for is lost, and what comes next is drawn."""
    stream = Streams.seeded(5).noise
    whole = Streams.seeded(5).noise.normal(400_000, dtype=torch.float64)
    with monkeypatch.context() as broken:
        broken.setattr(normals, "add", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stream.normal(count)
    after = stream.normal(200_000, dtype=torch.float64)
    assert torch.allclose(after, whole[count : count + 200_000], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("count", [10, 100_000])
def test_a_target_that_fails_repeats_no_value(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Streams.seeded(5).noise
    stream.normal(20)  # what is left over lies in the pool
    seen: list[float] = []

    def failing(values: np.ndarray, noise: np.ndarray, std: float) -> None:
        seen.extend(noise.tolist())
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(normals, "compiled", None)
        broken.setattr(normals, "add_scaled", failing)
        with pytest.raises(ZeroDivisionError):
            stream.add_normal_(torch.zeros(count), 1.0)
    assert seen
    assert not set(seen) & set(stream.normal(200_000, dtype=torch.float64).tolist())


def side_by_side(acts: list[Callable[[], None]]) -> None:
    """Each in a thread of its own, which lose their turn as often as possible."""
    workers = [threading.Thread(target=act) for act in acts]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)


def test_streams_in_several_threads_do_not_mix() -> None:
    alone = [Streams.seeded(seed).noise.normal(300_000) for seed in range(3)]
    drawn: dict[int, torch.Tensor] = {}

    def draw(seed: int) -> None:
        drawn[seed] = Streams.seeded(seed).noise.normal(300_000)

    side_by_side([partial(draw, seed) for seed in range(3)])
    assert all(torch.equal(drawn[seed], alone[seed]) for seed in range(3))


class Nosy(TorchDispatchMode):
    """Draws from another stream in the middle of every call."""

    def __init__(self, other: Stream) -> None:
        super().__init__()
        self._other = other

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._other.normal(1000)
        return func(*args, **(kwargs or {}))


def test_a_draw_inside_a_draw_has_memory_of_its_own() -> None:
    expected = Streams.seeded(5).noise.normal(1000)
    with Nosy(Streams.seeded(6).mask):
        assert torch.equal(Streams.seeded(5).noise.normal(1000), expected)


def test_a_mode_that_only_traces_gets_no_noise_and_spoils_none() -> None:
    stream, whole = Streams.seeded(5).noise, Streams.seeded(5).noise.normal(100_000, dtype=torch.float64)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises((Refused, RuntimeError)):
        stream.normal(300)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises((Refused, RuntimeError)):
        stream.add_normal_(torch.zeros(70_000), 1.0)
    after = stream.normal(1000, dtype=torch.float64)
    assert torch.isin(after, whole).all()


class Asleep(TorchDispatchMode):
    """Lets one operation pass without doing it."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self._operation = operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.overloadpacket._qualified_op_name == f"aten::{self._operation}":
            return named.get("out", args[0])
        return func(*args, **named)


@pytest.mark.parametrize("operation", ["log_", "cos", "sin_"])
def test_an_operation_that_was_not_done_is_noticed(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normals, "compiled", None)
    stream = Streams.seeded(5).noise
    with Asleep(operation), pytest.raises(Refused, match="modes that trace"):
        stream.normal(300)
    assert len(stream.normal(300)) == 300


def test_a_pool_of_inference_mode_serves_later_draws() -> None:
    stream, other = Streams.seeded(5).noise, Streams.seeded(5).noise
    with torch.inference_mode():
        stream.normal(1000)
        stream.normal(10)
    other.normal(1010)
    assert torch.equal(stream.add_normal_(torch.zeros(5), 1.0), other.normal(5))


def test_a_default_device_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Streams.seeded(5).noise.normal(100_000)
    monkeypatch.setattr(normals, "_FREE", [])
    with torch.device("meta"):
        assert torch.equal(Streams.seeded(5).noise.normal(100_000), expected)


def test_a_first_draw_in_inference_mode_spoils_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Streams.seeded(5).noise.normal(10)
    with torch.inference_mode():
        monkeypatch.setattr(normals, "_FREE", [])
        assert torch.equal(Streams.seeded(5).noise.normal(10), expected)
    assert torch.equal(Streams.seeded(5).noise.normal(10), expected)


def test_spent_counts_blocks_and_only_grows() -> None:
    stream = Streams.seeded(9).noise
    assert stream.spent == 0
    stream.uniform64(3)
    assert stream.spent == 2
    stream.normal(100_000)
    assert stream.spent == 2 + 50_000
    seen = stream.spent
    stream.normal(1)
    assert stream.spent > seen


def test_threads_that_share_a_stream_never_get_the_same_value() -> None:
    stream = Streams.seeded(10).noise
    stream.normal(30_000)  # from here on the pool serves many draws
    drawn: list[list[float]] = []

    def draw() -> None:
        parts = [stream.normal(3, dtype=torch.float64) for _ in range(2000)]
        drawn.append(torch.cat(parts).tolist())

    side_by_side([draw] * 4)
    values = [v for part in drawn for v in part]
    assert len(values) == 4 * 2000 * 3
    assert len(set(values)) == len(values)


def test_every_draw_holds_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Streams.seeded(10).noise
    held: list[bool] = []
    for name in ("key_stream", "add"):
        real = getattr(normals, name)

        def watched(*args: object, real: Callable[..., object] = real, **named: object) -> object:
            held.append(stream._lock.locked())
            return real(*args, **named)

        monkeypatch.setattr(normals, name, watched)
    for act in (
        lambda: stream.normal(3),
        lambda: stream.normal(300_000),
        lambda: stream.add_normal_(torch.zeros(300_000), 1.0),
        lambda: stream.uniform64(3),
    ):
        before = len(held)
        act()
        assert held[before:]
        assert all(held[before:])


# Keys -----------------------------------------------------------------------------------------------------


def every(streams: Streams) -> dict[str, Stream]:
    return {name: getattr(streams, name) for name in NAMES}


def test_same_seed_same_values_and_other_seeds_other_values() -> None:
    assert torch.equal(Streams.seeded(5).noise.normal(50), Streams.seeded(5).noise.normal(50))
    for other in (0, 4, 6, 5 + 2**32, 5 + 2**64, 50):
        assert not torch.isin(Streams.seeded(5).noise.normal(50), Streams.seeded(other).noise.normal(50)).any()
        assert Streams.seeded(5).mask.fingerprint != Streams.seeded(other).mask.fingerprint


def test_names_and_indices_give_different_keys() -> None:
    streams = Streams.seeded(5)
    found = [stream.fingerprint for stream in every(streams).values()]
    found += [stream.at(index).fingerprint for stream in every(streams).values() for index in range(20)]
    found += [streams.mask.at(1).at(2).fingerprint, streams.mask.at(2).at(1).fingerprint]
    assert len(set(found)) == len(found)
    first = [stream.uniform64(4).tobytes() for stream in every(Streams.seeded(5)).values()]
    assert len(set(first)) == len(NAMES)


def test_streams_and_draws_are_uncorrelated() -> None:
    n = 50_000
    streams = Streams.seeded(11)
    draws = [stream.normal(n, dtype=torch.float64) for stream in every(streams).values()]
    draws += [streams.noise.normal(n, dtype=torch.float64), streams.mask.at(1).normal(n, dtype=torch.float64)]
    pairs = list(itertools.combinations(draws, 2))
    bound = stats.norm.isf(ALPHA / 2 / len(pairs)) / math.sqrt(n)
    assert all(abs(float((one * other).mean())) < bound for one, other in pairs)
    assert abs(float((draws[0] * (0.1 * draws[0] + draws[1])).mean())) > bound  # control


def test_the_operating_system_never_gives_the_same_key() -> None:
    found = [stream.fingerprint for _ in range(50) for stream in every(Streams.from_os()).values()]
    assert len(set(found)) == 50 * len(NAMES)


def test_statements_tell_seeded_streams_from_private_ones() -> None:
    assert Streams.seeded(0).is_seeded is True
    assert Streams.seeded(0).statement == "seeded: not private"
    assert Streams.from_os().is_seeded is False
    assert Streams.from_os().statement == "keyed by the operating system"


@pytest.mark.parametrize("seed", [-1, 1.0, True, "5", None])
def test_bad_seeds_are_refused(seed: object) -> None:
    with pytest.raises(Refused, match="Expected seed"):
        Streams.seeded(seed)  # type: ignore[arg-type]


def test_masks_replay_and_noise_does_not() -> None:
    streams = Streams.seeded(12)
    for stream in (streams.mask, streams.projection, streams.init):
        assert torch.equal(stream.at(3).normal(9), stream.at(3).normal(9))
    for stream in (streams.noise, streams.sampling):
        child = stream.at(3)
        with pytest.raises(Refused, match="never replayed"):
            stream.at(3)
        child.at(0)
        with pytest.raises(Refused, match="never replayed"):
            child.at(0)
        with pytest.raises(Refused, match="whole number >= 0"):
            stream.at(-1)


def test_repr_shows_no_key() -> None:
    streams = Streams.seeded(13)
    for stream in every(streams).values():
        shown = repr(stream) + str(stream) + repr(streams) + stream.fingerprint
        for secret in (stream._key, stream._cipher_key):
            assert secret.hex()[:12] not in shown
            assert repr(secret) not in shown


def test_copies_are_refused() -> None:
    streams = Streams.seeded(14)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(Refused, match="repeat noise"):
            act(streams.noise)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(Refused, match="two runs would draw the same masks"):
            act(streams)


def test_streams_of_two_runs_share_no_key() -> None:
    """Each way gave two runs one projection, while their certificates are composed as those of independent runs."""
    first, second = Streams.from_os(), Streams.from_os()
    with pytest.raises(Refused, match=r"unchanged Streams.*got a new value for projection"):
        second.projection = first.projection
    with pytest.raises(Refused, match=r"Streams\.from_os\(\).*got a key of your own"):
        Streams(bytes(32), is_seeded=False)
    with pytest.raises(Refused, match="streams that another run has used"):
        Streams.with_mask(first.mask.public_key).check_unused()


def test_a_forked_process_is_refused() -> None:
    stream = Streams.from_os().mask
    stream.normal(10)
    torch.zeros(1_000_000).cos()  # torch's threads are there
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about any fork with threads
        child = os.fork()
    if child == 0:
        outcome = b""
        for act in (
            lambda: stream.normal(1),
            lambda: stream.add_normal_(torch.zeros(1), 1.0),
            lambda: stream.uniform64(1),
            lambda: stream.at(0),
        ):
            try:
                act()
                outcome += b"drew "
            except Refused:
                outcome += b"refused "
        # Many: an operation that torch shared out among its threads would wait for them for ever.
        outcome += b"new " if len(Streams.from_os().noise.normal(200_000)) == 200_000 else b""
        os.write(write, outcome)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"refused refused refused refused new "
    assert len(stream.normal(1)) == 1


def test_no_call_touches_global_generators(threads: int) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    stream = Streams.from_os().mask
    stream.normal(100_000)
    stream.add_normal_(torch.zeros(10), 1.0)
    stream.bernoulli(100, 0.5)
    stream.choice(5, 100)
    stream.permutation(50)
    stream.at(1).normal(3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()
    assert before[2] == random.getstate()
    state = torch.get_rng_state()
    one = Streams.from_os().noise.normal(5)
    torch.set_rng_state(state)
    assert not torch.isin(one, Streams.from_os().noise.normal(5)).any()
