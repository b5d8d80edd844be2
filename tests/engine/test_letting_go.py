"""Memory is let go of early, and never too early: sums are the same, and belong to one step each."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from discreet.core.check import Refused
from discreet.core.world import World
from discreet.engine import checkpointed, selfcheck
from discreet.engine import lazy_zeros as room
from discreet.engine.engine import Engine
from discreet.engine.factors.gradients import Weighting
from discreet.engine.factors.groups import UnitRows
from discreet.engine.factors.parts import Factors
from discreet.engine.layout import Mask
from discreet.stages.aggregation import Aggregation
from discreet.stages.clipping import FlatClip
from discreet.stages.selection import Order

RECORDS, WIDTH = 6, 13


@pytest.fixture(autouse=True)
def small_sums_are_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_LARGE", 1)  # byte


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(WIDTH, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 5), nn.Conv1d(4, 3, 2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(12, 2))


def records() -> Tensor:
    return torch.randn(RECORDS, 4, WIDTH, generator=torch.Generator().manual_seed(1))


def passed(engine: Engine, x: Tensor, units: UnitRows | None = None) -> Engine:
    engine.begin(len(x), units=units)
    engine.backward(engine.model(x).square().sum(1))
    return engine


@pytest.mark.parametrize("kind", ["plain", "groups", "mask", "units", "not finite"])
def test_the_last_sum_is_the_sum(kind: str) -> None:
    engine, x = Engine(network()), records()
    if kind == "not finite":
        x[2, 0, 0] = torch.nan
    units = UnitRows((1, 2, 3)) if kind == "units" else None
    size = len(engine.layout.names)
    groups = [list(range(0, size, 2)), list(range(1, size, 2))] if kind == "groups" else None
    mask = Mask(tuple(index % 3 != 0 for index in range(size))) if kind == "mask" else None
    sums = []
    for is_last in (False, True):
        norms = passed(engine, x, units).norms(groups, mask)
        totals = engine.zeros(2)
        engine.add_weighted(torch.stack([1 / norms, 1 / (1 + norms)]), totals, groups, mask, is_last=is_last)
        sums.append(totals)
    assert bool(sums[0].any())
    assert torch.equal(*sums)


def test_each_parameter_is_let_go_of_as_soon_as_it_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    add, alive, left = Weighting.add, weakref.WeakSet[Any](), []

    def counted(own: Weighting, index: int, factors: Factors, total: Tensor) -> None:
        left.append(len(alive))
        add(own, index, factors, total)

    engine = passed(Engine(network()), records())
    gradients: Any = engine._gradients
    alive.update(gradients.factors())
    monkeypatch.setattr(Weighting, "add", counted)
    gc.disable()
    try:
        engine.add_weighted(torch.ones(1, 1, RECORDS), engine.zeros(), is_last=True)
    finally:
        gc.enable()
    assert left == list(range(len(engine.layout.names), 0, -1))


def test_what_was_summed_last_is_refused_afterwards() -> None:
    """Neither zeros for norms, nor records that count twice."""
    engine, total = passed(Engine(network()), records()), None
    total = engine.zeros()
    engine.add_weighted(torch.ones(1, 1, RECORDS), total, is_last=True)
    before = total.clone()
    for ask in (
        engine.norms,
        engine.finite,
        lambda: engine.per_sample(0, 1),
        lambda: engine.add_weighted(torch.ones(1, 1, RECORDS), total),
    ):
        with pytest.raises(Refused, match="sum them last, and once"):
            ask()
    assert torch.equal(total, before)


def clipped(engine: Engine, cuts: list[int]) -> Tensor:
    """The sum of one step over its micro-batches, each record clipped."""
    aggregation = Aggregation(FlatClip(1e-2), 1.0, engine, None, Order.FREEZE_THEN_CLIP)
    for some in records().split(cuts):
        passed(engine, some)
        aggregation.add()
    (total,) = aggregation.sums(World()).vectors
    return total.value


def test_micro_batches_meet_the_same_sums() -> None:
    """A second micro-batch that lost the sums of the first would halve them."""
    engine = Engine(network())
    whole, cut = clipped(engine, [RECORDS]), clipped(engine, [2, 1, 3])
    assert torch.allclose(cut, whole, rtol=1e-4, atol=1e-6)
    assert float(whole.norm()) <= RECORDS * 1e-2 * (1 + 1e-4)
    assert float(whole.norm()) > 1e-2


def test_every_step_has_sums_of_its_own() -> None:
    engine = Engine(network())
    first = clipped(engine, [RECORDS])
    kept = first.clone()
    again = clipped(engine, [RECORDS])
    assert again.data_ptr() != first.data_ptr()
    assert torch.equal(first, kept)
    assert torch.equal(again, first)  # it began with zeros


def test_an_empty_batch_has_sums_of_zero() -> None:
    (total,) = Aggregation(FlatClip(1.0), 1.0, Engine(network()), None, Order.FREEZE_THEN_CLIP).sums(World()).vectors
    assert total.value.shape == (Engine(network()).layout.size,)
    assert not bool(total.value.any())


def test_no_sums_before_the_first_micro_batch_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would stand beside its activations."""
    engine, made = Engine(network()), []
    zeros = Engine.zeros

    def noted(own: Engine, queries: int = 1, size: int | None = None) -> Tensor:
        made.append((size, own._gradients is not None))
        return zeros(own, queries, size)

    monkeypatch.setattr(Engine, "zeros", noted)
    clipped(engine, [RECORDS])
    assert [ready for size, ready in made if size is None] == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lazy_zeros(dtype: torch.dtype) -> None:
    one, other = (room.lazy_zeros(3, 17, dtype=dtype, device=torch.device("cpu")) for _ in range(2))
    assert one.dtype == dtype
    assert one.data_ptr() % 64 == 0
    assert torch.equal(one, torch.zeros(3, 17, dtype=dtype))
    one += 1
    assert not bool(other.any())


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted on Linux")
def test_lazy_zeros_take_memory_where_they_are_written_to() -> None:
    def used() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = used()
    total = room.lazy_zeros(2, 1 << 25, dtype=torch.float32, device=torch.device("cpu"))
    assert used() - before < total.nbytes // 4
    total[0] += 1
    assert total.nbytes // 2 <= used() - before + (16 << 20) < total.nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted on Linux")
def test_lazy_zeros_write_to_no_memory_that_was_freed() -> None:
    """The allocator clears what it hands out again: with activations freed before, calloc would write to all of it."""
    program = """
import torch
from pathlib import Path
from discreet.core.peak_memory import give_back
from discreet.engine.lazy_zeros import lazy_zeros

def used():
    give_back()
    return int(Path("/proc/self/statm").read_text().split()[1])

pieces = [torch.ones(1 << 18) for _ in range(2)]
torch.ones(7 << 20)  # freed: from here on the allocator keeps pieces of this size
pieces += [torch.ones(1 << 18) for _ in range(200)]
last = torch.ones(1 << 18)  # below the top of the heap
del pieces
before = used()
total = lazy_zeros(1 << 25, dtype=torch.float32, device=torch.device("cpu"))
print(used() - before, bool(total.any()))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert int(found[0]) * resource.getpagesize() < 16 << 20
    assert found[1] == "False"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on Unix")
def test_a_forked_process_shares_no_sums() -> None:
    total = room.lazy_zeros(2, 1 << 12, dtype=torch.float32, device=torch.device("cpu"))
    total += 1
    child = os.fork()
    if child == 0:
        memory = ctypes.cast(total.data_ptr(), ctypes.POINTER(ctypes.c_float))
        memory[0] = 7.0
        os._exit(0)
    os.waitpid(child, 0)
    assert float(total[0, 0]) == 1.0


def test_a_proof_holds_no_tensor_behind() -> None:
    """Proofs run on 67 records, and on values that a call may fail on; they must not wait for the garbage collector."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(11, 2 * WIDTH), nn.Linear(2 * WIDTH, 3)

        def forward(self, ids: Tensor) -> Tensor:
            first, second = self.table(ids).split(WIDTH, dim=2)
            mixed: Tensor = self.last(torch.cat([first.transpose(0, 1), second.transpose(0, 1)], 2).mean(0))
            return mixed

    engine, ids = Engine(Lookup()), torch.randint(0, 11, (RECORDS, 4))
    engine.script((ids,), {}, RECORDS)

    def of_proofs() -> list[Tensor]:
        tensors = [own for own in gc.get_objects() if isinstance(own, Tensor)]
        return [own for own in tensors if own.dim() > 1 and 67 in own.shape]

    gc.collect()
    before = of_proofs()  # other tests may hold some
    gc.disable()
    try:
        engine.begin(RECORDS)
        engine.follow((ids,), RECORDS)
        engine.backward(engine.model(ids).square().sum(1))
        left = [tuple(own.shape) for own in of_proofs() if not any(own is old for old in before)]
    finally:
        gc.enable()
    assert left == []


def test_the_self_check_holds_one_gradient_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, seen, most = selfcheck._GradientComparison, list[weakref.ref[Tensor]](), [0]
    met, met_sum = kind.meet, kind.meet_sum

    def count(truth: Tensor | None) -> None:
        if truth is not None:
            seen.append(weakref.ref(truth))
        most[0] = max(most[0], sum(one() is not None for one in seen))

    def counted(own: Any, truth: Tensor | None, *, record: int) -> None:
        count(truth)
        met(own, truth, record=record)

    def counted_sum(own: Any, truth: Tensor | None) -> None:
        count(truth)
        met_sum(own, truth)

    monkeypatch.setattr(kind, "meet", counted)
    monkeypatch.setattr(kind, "meet_sum", counted_sum)
    engine = Engine(network())
    engine.script((records(),), {}, RECORDS)
    assert len(seen) == len(engine.layout.names)  # the sum is close
    monkeypatch.setattr(kind, "is_close", lambda own, wholes: False)
    engine = Engine(network())
    engine.script((records(),), {}, RECORDS)
    assert len(seen) == (1 + 1 + 3) * len(engine.layout.names)
    assert most[0] <= 2


def test_checkpointed_regions_leave_nothing_behind() -> None:
    """Torch holds the input of a region in a graph, which the garbage collector cannot look into."""

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.inputs: list[weakref.ref[Tensor]] = []

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + 1
                self.inputs.append(weakref.ref(x))
                x = checkpoint(lambda h, own=block: h + own(h).tanh(), x, use_reentrant=False)
            return x.mean(1)

    model, x = Stack(), records()
    engine = Engine(model)
    engine.script((x,), {}, RECORDS)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            model.inputs.clear()
            engine.begin(RECORDS)
            engine.follow((x,), RECORDS)
            engine.backward(model(x).square().sum(1))
            norms = engine.norms()
            engine.add_weighted((1 / norms).unsqueeze(0), engine.zeros(), is_last=True)
            engine.discard()
            assert len(model.inputs) == 3
            assert [one() for one in model.inputs] == [None] * 3
    finally:
        gc.enable()


def test_freed_memory_is_looked_at_before_each_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in the forward pass and once in each of the two backward passes."""
    looks = [0]

    class Noted:
        def give_back_if_much(self) -> None:
            looks[0] += 1

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False).tanh()
            return x.mean(1)

    x = records()
    engine = Engine(Stack())
    engine.script((x,), {}, RECORDS)
    monkeypatch.setattr(checkpointed, "_FREED", Noted())
    passed(engine, x)
    assert looks == [6]
    engine.add_weighted(torch.ones(1, 1, RECORDS), engine.zeros(), is_last=True)
    assert looks == [9]
