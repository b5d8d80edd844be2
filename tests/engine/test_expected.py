"""The compiled handler of calls that come again; test_known_calls.py compares it with the one in Python."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from discreet.core.check import Refused
from discreet.engine.proof.calls.expected import ExpectedCalls, InterpretedCalls
from discreet.engine.proof.lineage_table import LineageTable
from discreet.engine.record_watch import RecordWatch
from discreet.engine.trace.capture import RecordAxis

compiled = pytest.mark.skipif(ExpectedCalls is InterpretedCalls, reason="the installation found no compiler")


def batch(watch: RecordWatch, *calls: Any, scale: float = 1.0, records: int = 12) -> Tensor:
    """Open a batch, and make calls one after the other."""
    watch.close()
    made = torch.randn(records, 6) * scale
    watch.open([(made, RecordAxis(0))], records)
    for call in calls:
        made = call(made)
    return made


@pytest.fixture
def watch() -> Any:
    with closing(RecordWatch(nn.Linear(6, 6))) as opened:
        yield opened


@pytest.fixture
def given_to_python(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions whose calls the compiled handler left to Python."""
    found: list[Any] = []
    watched = RecordWatch.watched

    def note(self: RecordWatch, func: Any, *rest: Any) -> Any:
        found.append(func)
        return watched(self, func, *rest)

    monkeypatch.setattr(RecordWatch, "watched", note)
    return found


@compiled
def test_calls_that_come_again_need_no_python(watch: RecordWatch, given_to_python: list[Any]) -> None:
    chain = (torch.relu, lambda h: h * 2.0, lambda h: h[:, 1:5], lambda h: torch.cat([h, h], dim=1), torch.abs)
    batch(watch, *chain)
    batch(watch, *chain)
    given_to_python.clear()
    batch(watch, *chain)
    assert given_to_python == []
    batch(watch, torch.relu, lambda h: h * 3.0)  # another number
    assert given_to_python == [Tensor.mul]


@compiled
def test_draws_and_writes_that_come_again_need_no_python(watch: RecordWatch, given_to_python: list[Any]) -> None:
    chain = (lambda h: F.dropout(h, 0.5), lambda h: h.mul_(2.0), torch.rand_like, torch.relu_)
    for _ in range(2):
        batch(watch, *chain)
    given_to_python.clear()
    batch(watch, *chain)
    assert given_to_python == []


def test_other_draws_before_an_expected_one_show(watch: RecordWatch) -> None:
    def drawn(*calls: Any) -> int:
        return watch.table.find(batch(watch, *calls, lambda h: F.dropout(h, 0.5))).digest

    usual = [drawn() for _ in range(3)]
    assert drawn(lambda h: (torch.rand(6), h)[1]) != usual[0]
    assert usual == [drawn()] * 3


@pytest.mark.parametrize("strides", [(6, 1), (1, 12)])
def test_an_expected_draw_looks_at_strides(watch: RecordWatch, strides: tuple[int, int]) -> None:
    def drawn(h: Tensor) -> Tensor:
        return torch.rand_like(torch.empty_strided(h.shape, own).copy_(h))

    own, digests = (6, 1), []
    for stride in [(6, 1), (6, 1), (6, 1), strides]:
        own = stride
        digests.append(watch.table.find(batch(watch, drawn)).digest)
    assert digests[:3] == [digests[0]] * 3
    assert (digests[3] == digests[0]) == (strides == (6, 1))


def test_an_expected_write_moves_the_other_views(watch: RecordWatch) -> None:
    def through_a_view(h: Tensor) -> Tensor:
        whole = h.clone()
        whole[:, :2].mul_(3.0)
        return whole

    def through_another(h: Tensor) -> Tensor:
        whole = h.clone()
        whole[:, 2:4].mul_(3.0)
        return whole

    digests = [watch.table.find(batch(watch, through_a_view)).digest for _ in range(4)]
    assert digests == [digests[0]] * 4
    assert watch.table.find(batch(watch, through_another)).digest != digests[0]


@compiled
def test_ctrl_c_in_a_look_up_is_not_lost(watch: RecordWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def writes(h: Tensor) -> Tensor:
        return h.clone().mul_(2)  # from here on tensors are looked up in Python

    made = [batch(watch, writes, torch.relu) for _ in range(3)]
    calls, find = [0], LineageTable.find

    def interrupted(self: LineageTable, tensor: Tensor) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        return find(self, tensor)

    hidden = batch(watch, writes)
    monkeypatch.setattr(LineageTable, "find", interrupted)
    with pytest.raises(KeyboardInterrupt):
        torch.relu(hidden)
    assert calls[0] == 1
    assert watch.table.find(torch.relu(hidden)) is not None
    assert len(made) == 3


@compiled
def test_an_error_of_a_call_is_the_callers(watch: RecordWatch, given_to_python: list[Any]) -> None:
    def rows(ids: Tensor) -> Tensor:
        return F.embedding(ids, torch.ones(2, 2))

    for _ in range(3):
        batch(watch, torch.sigmoid, Tensor.long, rows)
    given_to_python.clear()
    with pytest.raises(IndexError):
        batch(watch, torch.sigmoid, Tensor.long, rows, scale=float("nan"))
    assert given_to_python == []
    looked_up = batch(watch, torch.sigmoid, Tensor.long, rows)
    assert watch.table.find(looked_up).lineage == RecordAxis(0)


@compiled
def test_nothing_is_leaked(watch: RecordWatch) -> None:
    def named(h: Tensor) -> Tensor:
        return torch.sum(h, dim=1, keepdim=True)

    chain = (torch.relu, lambda h: h * 2.0, lambda h: h[:, 1:], lambda h: torch.cat([h, h], 1), named)

    def counts() -> tuple[int, ...]:
        gc.collect()
        objects = (torch.relu, torch.cat, Tensor, RecordAxis, watch, watch.calls, watch.table, None, True, 2.0)
        return len(gc.get_objects()), *(sys.getrefcount(one) for one in objects)

    for _ in range(5):
        batch(watch, *chain)
    before = counts()
    for _ in range(300):
        batch(watch, *chain)
    assert max(now - then for then, now in zip(before, counts(), strict=True)) < 100


@compiled
def test_flags_are_kept_in_the_handler(watch: RecordWatch) -> None:
    """The compiled handler reads what Python writes."""
    assert not watch.is_paused
    with watch.paused():
        assert watch.is_paused
        assert type(watch.is_paused) is bool
    batch(watch)
    assert watch.is_open
    watch.close()
    assert not watch.is_open


@compiled
def test_a_list_that_changes_while_it_is_looked_up(watch: RecordWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def writes(h: Tensor) -> Tensor:
        return h.clone().mul_(2)  # from here on tensors are looked up in Python

    for _ in range(3):
        batch(watch, writes, lambda h: torch.cat([h * 1.0, h * 2.0], 1))
    hidden = batch(watch, writes)
    given, find = [hidden * 1.0, hidden * 2.0], LineageTable.find

    def emptied(self: LineageTable, tensor: Tensor) -> Any:
        given.clear()
        return find(self, tensor)

    monkeypatch.setattr(LineageTable, "find", emptied)
    with pytest.raises((RuntimeError, ValueError)):
        torch.cat(given, 1)


@compiled
@pytest.mark.parametrize("name", ["calls", "table", "usual", "recorder", "forward"])
def test_a_part_that_is_gone_crashes_nothing(watch: RecordWatch, name: str) -> None:
    for _ in range(3):
        hidden = batch(watch, torch.relu)
    own = getattr(watch, name)
    delattr(watch, name)
    with suppress(AttributeError):
        torch.relu(hidden)
    setattr(watch, name, own)
    assert torch.relu(hidden).shape == (12, 6)


@compiled
def test_keywords_in_another_mapping_are_given_on(watch: RecordWatch) -> None:
    watch.close()
    made = watch.__torch_function__(torch.sum, (), (torch.ones(2, 3),), MappingProxyType({"dim": 1}))
    assert made.shape == (2,)


@compiled
def test_ctrl_c_beside_an_error_is_not_lost(watch: RecordWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(ids: Tensor) -> Tensor:
        return F.embedding(ids, torch.ones(2, 2))

    def interrupted(self: RecordWatch, error: Exception) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        batch(watch, torch.sigmoid, Tensor.long, rows)
    monkeypatch.setattr(RecordWatch, "explain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch(watch, torch.sigmoid, Tensor.long, rows, scale=float("nan"))


def test_a_mode_that_was_refused_is_refused_again(watch: RecordWatch) -> None:
    """A loop that goes on after a refusal."""

    class Own(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x = torch.randn(12, 6)
    with Own():
        for _ in range(2):
            with pytest.raises(Refused, match="a mode of"):
                watch.open([(x, RecordAxis(0))], 12)


_BLOCKED = """
import sys
sys.modules["discreet.engine.proof.calls._expected"] = sys.modules["discreet.engine.model._state"] = None
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_without_a_compiler() -> None:
    """Python alone refuses what compiled code refuses; the frames of callers are counted alike."""
    tests = Path(__file__).parent
    files = [str(tests / "test_unseen.py"), str(tests / "test_untouched.py"), str(tests / "test_expected.py")]
    command = [sys.executable, "-c", _BLOCKED, *files, "-k", "not without_a_compiler and not slow"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tests.parents[1], check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
