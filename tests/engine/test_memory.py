"""Memory of the engine: it is used again without a trace, let go of early, and estimated before it is taken."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from discreet.core.check import Refused
from discreet.engine import memory
from discreet.engine.engine import Engine
from discreet.engine.factors import convolution
from discreet.engine.factors import linear as outer
from discreet.engine.factors import parts as factors
from discreet.engine.memory import LEAST, bytes_a_record, micro_batch_for


def cnn() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(4, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.Tanh(), nn.Conv2d(6, 5, 3, stride=2)
    return nn.Sequential(*layers, nn.Flatten(2), nn.Linear(9, 7), nn.Flatten(), nn.Linear(35, 3)).double()


def answer(engine: Engine, x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    engine.begin(len(x))
    engine.backward(F.cross_entropy(engine.model(x), y, reduction="none"))
    norms, totals = engine.norms(), engine.zeros()
    engine.add_weighted(weights.view(1, 1, -1), totals)
    engine.discard()
    return norms[0], totals[0]


def truth(model: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for one, label in zip(x, y, strict=True):
        loss = F.cross_entropy(model(one.unsqueeze(0)), label.unsqueeze(0))
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    grads = torch.stack(rows)
    return grads.norm(dim=1), weights @ grads


def batch(records: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(records, 4, 8, 8, dtype=torch.float64)
    return x, torch.randint(0, 3, (records,)), torch.rand(records, dtype=torch.float64)


@pytest.mark.parametrize("grouped", [True, False])
def test_memory_that_is_used_again_leaves_no_trace(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 7, 11, 2 and 7 records through one engine, each against autograd; three records at a time."""
    monkeypatch.setattr(convolution, "GROUPED_RECORDS", 3)
    monkeypatch.setattr(convolution, "PATCH_ELEMENTS", 3000)
    monkeypatch.setattr(convolution, "FEW_POSITIONS", 0)
    monkeypatch.setattr(convolution, "GROUPED_CHANNEL_PAIRS", 1 << 30 if grouped else 0)
    monkeypatch.setattr(outer, "GRAM_RATIO", 0.0)
    model = cnn()
    engine = Engine(model)
    for records in (7, 11, 2, 7):
        x, y, weights = batch(records)
        expected, (norms, totals) = truth(model, x, y, weights), answer(engine, x, y, weights)
        assert torch.allclose(norms, expected[0], rtol=1e-9)
        assert torch.allclose(totals, expected[1], rtol=1e-9, atol=1e-12)


def test_activations_are_let_go_of_when_their_gradients_are_there() -> None:
    """What a convolution saw is gone after the backward pass: its per-sample gradients took its place."""
    kept: list[weakref.ref[Tensor]] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = cnn()

        def forward(self, x: Tensor) -> Tensor:
            hidden = x * 2
            kept.append(weakref.ref(hidden))
            scores: Tensor = self.net(hidden)
            return scores

    model = Watched()
    engine = Engine(model)
    x, y, _ = batch(5)
    engine.script((x,), {}, 5)
    kept.clear()
    engine.begin(5)
    losses = F.cross_entropy(model(x), y, reduction="none")
    assert kept[0]() is not None
    engine.backward(losses)
    del losses
    gc.collect()
    assert kept[0]() is None
    assert bool(engine.norms().isfinite().all())


def test_bytes_of_a_perceptron_are_counted() -> None:
    """Linear(6, 5): the input of 6 and the output's gradient of 5 are kept, and the bias's gradient of 5."""
    engine = Engine(nn.Linear(6, 5))
    script = engine.script((torch.zeros(4, 6),), {}, 4)
    assert script.kept_bytes == 4 * (6 + 5 + 5)
    assert script.saved_bytes == 4 * 6


def test_micro_batches_follow_the_limit() -> None:
    engine, x = Engine(nn.Linear(600, 500)), torch.zeros(4, 600)
    script = engine.script((x,), {}, 4)
    each = bytes_a_record(script.saved_bytes, script.kept_bytes)
    assert micro_batch_for(engine, (x,), records=4, batch=1000) == 1000
    found = micro_batch_for(engine, (x,), records=4, batch=1000, limit_bytes=int(300 * each))
    assert found == 250  # four pieces of one size
    assert micro_batch_for(engine, (x,), records=4, batch=1000, limit_bytes=1) == LEAST
    assert micro_batch_for(engine, (x,), records=4, batch=3, limit_bytes=1) == 3
    with pytest.raises(Refused):
        micro_batch_for(engine, (x,), records=4, batch=0)


def test_the_machine_and_the_gradients_that_are_kept_limit_the_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, x = Engine(nn.Linear(600, 500)), torch.zeros(4, 600)
    script = engine.script((x,), {}, 4)
    each = bytes_a_record(script.saved_bytes, script.kept_bytes)
    assert script.largest == 500  # the bias: the weight is never made
    monkeypatch.setattr(memory, "memory_of", lambda device: int(4 * 300 * each))
    assert micro_batch_for(engine, (x,), records=4, batch=1000) == 250
    monkeypatch.setattr(memory, "memory_of", lambda device: None)
    assert micro_batch_for(engine, (x,), records=4, batch=1000) == 1000
    monkeypatch.setattr(factors, "KEEP_ELEMENTS", 500 * 400)
    assert micro_batch_for(engine, (x,), records=4, batch=1000) == 334  # three pieces


def test_the_memory_of_this_machine_is_known() -> None:
    assert (memory.memory_of(torch.device("cpu")) or 0) > 1 << 28
    assert memory.memory_of(torch.device("meta")) is None


def test_only_shapes_decide_the_micro_batch() -> None:
    """The example's values may be private."""
    engine = Engine(nn.Linear(600, 500))
    sizes = {
        micro_batch_for(engine, (torch.full((4, 600), value),), records=4, batch=500, limit_bytes=1 << 20)
        for value in (0.0, 1e30, float("nan"))
    }
    assert len(sizes) == 1


def test_many_records_are_cut_unless_they_are_small() -> None:
    wide, narrow = Engine(torch.nn.Linear(40_000, 2)), Engine(torch.nn.Linear(40, 2))
    assert micro_batch_for(wide, (torch.zeros(4, 40_000),), records=4, batch=5120) == 512
    assert micro_batch_for(narrow, (torch.zeros(4, 40),), records=4, batch=5120) == 5120


class Calls(TorchDispatchMode):
    """Counts the products that a pass makes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("by_matmul", [False, True])
def test_positions_that_lie_apart_are_multiplied_in_one_product(by_matmul: bool) -> None:
    """torch multiplies position by position where a weight without a gradient meets a transposed input."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            turned = self.first(x).transpose(0, 1)
            scores = turned @ self.second.weight.t() if by_matmul else self.second(turned)
            return scores.mean(0)

    torch.manual_seed(0)
    model, x, y = Turned(), torch.randn(5, 7, 4), torch.tensor([0, 1, 2, 0, 1])
    if by_matmul:
        model.second.bias.requires_grad_(False)
    engine = Engine(model)
    answer(engine, x, y, torch.ones(5, dtype=torch.float64))  # the probe has passes of its own
    engine.begin(5)
    with Calls() as calls:
        losses = F.cross_entropy(model(x), y, reduction="none")
    assert calls.found["bmm"] == 0
    engine.backward(losses)
    engine.discard()
    with Calls() as control:
        F.linear(x.transpose(0, 1), model.first.weight.detach(), model.first.bias)
    assert control.found["bmm"] == 1


def test_attention_keeps_a_record_together() -> None:
    """Queries, keys and values of one record are next to each other when attention reads them."""
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Flatten())
    seen: list[tuple[int, ...]] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func is F.scaled_dot_product_attention:
                seen.append(args[0].stride())
            return func(*args, **(kwargs or {}))

    x, y = torch.randn(3, 5, 8), torch.tensor([0, 1, 2])
    engine = Engine(model)
    with Watch():
        answer(engine, x, y, torch.ones(3, dtype=torch.float64))
    record, head, position, feature = seen[-1]
    assert record > position > head > feature
