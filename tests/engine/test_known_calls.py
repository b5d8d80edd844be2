"""Calls that come again are not judged a second time: what changes from batch to batch is noticed all the same.

Each loop is innocent for four steps, so that its calls are known, and then does something else with the same calls.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import Bare
from steps import classifier, each, train, words
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import discreet
from discreet.core.check import Refused
from discreet.engine.proof.judgement import KnownCall, WatchedCall, judged
from discreet.engine.proof.lineage import PublicRows
from discreet.engine.proof.provable_call import tensors_of_result
from discreet.engine.record_watch import RecordWatch

QUIET_STEPS = 4
Hidden = Callable[[Any, Tensor, bool], Tensor]


def roles(model: Any, x: Tensor, late: bool) -> Tensor:
    doubled, shifted = x * 2, x + 1
    return doubled - (shifted if not late else doubled)


def writes_the_mean(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    first = hidden.relu()
    if late:
        hidden.add_(x.mean(0))
    return first + hidden.relu()


def writes_a_view(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    half = hidden[:, :3]
    if late:
        half.copy_(half.flip(0))
    return hidden.relu()


def writes_by_numpy(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    if late:
        hidden.numpy()[:] = hidden.numpy().mean(0)
    return hidden.relu()


def writes_by_out(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden, other = x * 2, x.flip(0)
    if late:
        torch.mul(other, 2, out=hidden)
    return hidden.relu()


def other_memory(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden, other = x * 2, x.flip(0)
    if late:
        hidden.set_(other)
    return hidden.relu()


def other_number(model: Any, x: Tensor, late: bool) -> Tensor:
    return x * (2.0 if not late else 3.0)


def other_kind_of_number(model: Any, x: Tensor, late: bool) -> Tensor:
    return x * (1 if not late else True)


def zero_of_another_sign(model: Any, x: Tensor, late: bool) -> Tensor:
    return torch.copysign(x, 0.0 if not late else -0.0)


def other_axis(model: Any, x: Tensor, late: bool) -> Tensor:
    return x.softmax(-1 if not late else -2)


def no_gradients(model: Any, x: Tensor, late: bool) -> Tensor:
    with torch.set_grad_enabled(not late):
        return x * model.scale


def autocast(model: Any, x: Tensor, late: bool) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=late):
        return (x @ torch.ones(6, 6)).float()


def another_thread(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    if late:
        with ThreadPoolExecutor(1) as pool:
            hidden = pool.submit(lambda: x * 2).result()
    return hidden.relu()


def another_type(model: Any, x: Tensor, late: bool) -> Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if late else before)
    try:
        scale = torch.ones(6) * 2
    finally:
        torch.set_default_dtype(before)
    return (x * scale).float()


def hooked(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    if late:
        hidden.register_hook(lambda gradient: gradient / gradient.norm())
    return hidden.relu()


def saved_otherwise(model: Any, x: Tensor, late: bool) -> Tensor:
    if not late:
        return (x * 2).exp()
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one * 0):
        return (x * 2).exp()


class _Mean(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) if func is not torch.relu else args[0] * 0 + args[0].mean(0)


def another_mode(model: Any, x: Tensor, late: bool) -> Tensor:
    if not late:
        return torch.relu(x * 2)
    with _Mean():
        return torch.relu(x * 2)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 3


def another_backward(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    seen = hidden.view_as(hidden)
    return (seen if not late else _Scaled.apply(hidden)).relu()  # type: ignore[no-untyped-call]


def cut_off(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    if late:
        hidden.detach_()
    return x + hidden.relu()


def repeats_otherwise(model: Any, x: Tensor, late: bool) -> Tensor:
    runs = [0]

    def region(hidden: Tensor) -> Tensor:
        runs[0] += 1
        return (hidden * (1.0 if runs[0] == 1 or not late else 3.0)).exp()  # which is saved, and so made again

    made: Tensor = checkpoint(region, x * 2, use_reentrant=False)
    return made


def region_of_known_calls(model: Any, x: Tensor, late: bool) -> Tensor:
    """The region's second run makes fewer of the calls that are known from outside of it."""
    hidden, runs = (x * 2).relu() * 2, [0]

    def region(given: Tensor) -> Tensor:
        runs[0] += 1
        made = (given * 2).relu()
        return made * 2 if runs[0] == 1 or not late else made

    again: Tensor = checkpoint(region, x, use_reentrant=False)
    return hidden + again


def draws_in_another_order(model: Any, x: Tensor, late: bool) -> Tensor:
    turned = x.t().contiguous().t() if late else x.t().t()
    return F.dropout(turned, 0.5)


def permutes_records(model: Any, x: Tensor, late: bool) -> Tensor:
    order = torch.arange(len(x))
    return x[discreet.public(order.roll(1) if late else order + 0)]


def by_the_size(model: Any, x: Tensor, late: bool) -> Tensor:
    return x * (2.0 if not late else 24.0 / len(x))


def a_failed_call(model: Any, x: Tensor, late: bool) -> Tensor:
    hidden = x * 2
    try:
        torch.where(x > 0, x, torch.ones(5 if late else 6))
    except RuntimeError:
        hidden = hidden * 3
    return hidden.relu()


ATTACKS: list[Hidden] = [
    *(roles, writes_the_mean, writes_a_view, writes_by_numpy, writes_by_out, other_memory, other_number),
    *(other_kind_of_number, zero_of_another_sign, other_axis, no_gradients, autocast, another_thread, another_type),
    *(another_mode, draws_in_another_order, permutes_records, a_failed_call),
]
ON_OUTPUTS: list[Hidden] = [  # which need a gradient
    *(hooked, saved_otherwise, another_backward, cut_off, repeats_otherwise, region_of_known_calls)
]


def scaled_classifier() -> nn.Module:
    torch.manual_seed(0)
    return Bare(lambda own, x: own.head(x), head=nn.Linear(6, 3), scale=nn.Parameter(torch.ones(6), False))


def run(make: Hidden, *, is_late: bool, fixed: bool = True) -> int:
    """Train on what `make` makes of the records; how many steps came to their end."""
    done = 0

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        nonlocal done
        late = is_late and private.progress.step >= QUIET_STEPS
        outputs = make(model, model(x), late) if make in ON_OUTPUTS else model(make(model, x, late))
        private.step(each(outputs, y))
        done = private.progress.step

    try:
        train(scaled_classifier(), body, steps=QUIET_STEPS + 2, fixed=fixed)
    except Refused:
        return done
    return done


@pytest.mark.parametrize("make", ATTACKS + ON_OUTPUTS, ids=lambda make: make.__name__)
def test_known_calls_hide_nothing(make: Hidden) -> None:
    assert run(make, is_late=False) == QUIET_STEPS + 2  # accepted as long as nothing changes
    assert run(make, is_late=True) == QUIET_STEPS


def test_known_sizes_hide_nothing() -> None:
    """Batches of many sizes come again, and a number that follows the size is refused in each of them."""
    assert run(by_the_size, is_late=False, fixed=False) == QUIET_STEPS + 2
    assert run(by_the_size, is_late=True, fixed=False) <= QUIET_STEPS + 1


@pytest.fixture
def judgements(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that were judged."""
    found: list[Any] = []

    def noted(call: WatchedCall, made: list[Tensor]) -> Any:
        found.append(call.func)
        return judged(call, made)

    monkeypatch.setattr("discreet.engine.record_watch.judged", noted)
    return found


def test_later_steps_judge_nothing(judgements: list[Any]) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3))
    counts: list[int] = []

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y))
        counts.append(len(judgements))

    train(model, body, steps=5)
    assert counts[0] > 0
    assert counts[-3:] == [counts[2]] * 3


class Attention(nn.Module):
    """Tokens with positions, masks, parts of several results, and dropout."""

    def __init__(self, length: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.length, self.embed, self.places = length, nn.Embedding(1000, 8), nn.Embedding(length, 8)
        self.inside, self.norm, self.head = nn.Linear(8, 24), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids) + self.places(torch.arange(self.length))
        query, key, value = self.inside(hidden).chunk(3, -1)
        mask = torch.ones(self.length, self.length).tril().bool()
        scores = (query @ key.transpose(1, 2) / 8**0.5).masked_fill(~mask, -1e9)
        hidden = self.norm(F.dropout(scores.softmax(-1), 0.1) @ value + hidden)
        outputs: Tensor = self.head(hidden.mean(1) * (ids != 0).float().mean(1, keepdim=True))
        return outputs


def _all_of(rows: PublicRows | None) -> Any:
    return rows and (rows, rows.ways, rows.draws, rows.used)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("task", ["words", "twelve words", "rows"])
def test_what_is_known_is_what_would_be_judged(monkeypatch: pytest.MonkeyPatch, task: str, fixed: bool) -> None:
    """The second look at every known call gives what the first one gave."""
    plain, compared = RecordWatch._again, [0]

    def again(self: RecordWatch, call: WatchedCall, known: KnownCall) -> Any:
        result = plain(self, call, known)
        made = tensors_of_result(result)
        found = judged(call, made)
        parents = tuple(call.reading.origins)
        digest = hash((call.form.digest, *[origin.digest for origin in parents]))
        assert list(found.places) == [origin.lineage for origin in known.origins]
        assert found.blame is None
        rows = found.rows or [None] * len(made)
        assert [_all_of(own) for own in rows] == [_all_of(origin.rows) for origin in known.origins]
        assert [origin.digest for origin in known.origins] == [digest + i for i in range(len(made))]
        assert all(origin.parents == parents for origin in known.origins)
        compared[0] += 1
        return result

    monkeypatch.setattr(RecordWatch, "_again", again)
    model, data = classifier(lambda own, x: (x * 2).relu() + x), None
    if task != "rows":  # twelve words: as many as records, so that positions may follow their number
        length = 6 if task == "words" else 12
        model, data = Attention(length), words(length)
    train(model, data=data, steps=8, fixed=fixed)
    assert compared[0] > 10
