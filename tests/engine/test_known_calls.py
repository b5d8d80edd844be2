"""Calls that come again are not judged a second time: what changes from batch to batch is noticed all the same.

Each loop is innocent for four steps, so that its calls are known, and then does something else with the same calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import Bare
from steps import classifier, each, train, words
from test_random_programs import CLEAN, STATISTICS
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import discreet
from discreet.core.check import Refused
from discreet.engine.proof.calls.expected import ExpectedCalls, InterpretedCalls
from discreet.engine.proof.calls.judgement import WatchedCall, judged
from discreet.engine.proof.calls.known_calls import KnownCall
from discreet.engine.proof.forms.call_forms import Reading
from discreet.engine.proof.forms.provable_call import ALL_FOLLOW, tensors_of_result
from discreet.engine.proof.lineage import PublicRows
from discreet.engine.proof.verdicts import SIZED, settings_for
from discreet.engine.proof.watched_functions import is_quiet
from discreet.engine.record_watch import RecordWatch
from discreet.engine.surroundings import Generators
from discreet.engine.trace.capture import RecordAxis, name_of

QUIET_STEPS = 4
Hidden = Callable[[Any, Tensor, bool], Tensor]


def roles(model: Any, x: Tensor, late: bool) -> Tensor:
    doubled, shifted = x * 2, x + 1
    return doubled - (shifted if not late else doubled)


def takes_the_mean(model: Any, x: Tensor, late: bool) -> Tensor:
    doubled, mean = x * 2, x.mean(0, keepdim=True).expand_as(x)
    return doubled - (x if not late else mean)  # the same call, on a tensor that mixes records


def another_place(model: Any, x: Tensor, late: bool) -> Tensor:
    """Signs around the mean of the batch in place of signs: one record moved the sum by 8 clips."""
    own, centred = x.sign(), (x - x.mean(0)).sign()
    return (centred if late else own) * 2.0


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


def zero_of_another_sign_by_name(model: Any, x: Tensor, late: bool) -> Tensor:
    return torch.clamp(x, min=0.0 if not late else -0.0)


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
    *(
        roles,
        takes_the_mean,
        another_place,
        writes_the_mean,
        writes_a_view,
        writes_by_numpy,
        writes_by_out,
        other_memory,
        other_number,
    ),
    *(
        other_kind_of_number,
        zero_of_another_sign,
        zero_of_another_sign_by_name,
        other_axis,
        no_gradients,
        autocast,
        another_thread,
        another_type,
    ),
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


@pytest.fixture(params=["compiled", "interpreted"])
def handler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Calls that come again are made by the compiled handler, or by the one in Python."""
    if request.param == "compiled":
        _skip_without_compiler()
    else:
        monkeypatch.setattr(RecordWatch, "__torch_function__", RecordWatch.watched)
    return str(request.param)


def _skip_without_compiler() -> None:
    if issubclass(RecordWatch, InterpretedCalls):
        pytest.skip("the installation found no compiler")


@pytest.mark.usefixtures("handler")
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


@pytest.fixture
def compared(handler: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every call that is looked up is judged, too, and both must agree; the names of these calls.

    The compiled handler makes the calls that Python would have made as known ones, and no others.
    """
    found: list[str] = []
    expected, note_or_judge, judge = RecordWatch._expected, RecordWatch._note_or_judge, RecordWatch._judge
    drawn, last, was_judged = Generators.read, [()], [False]

    def compare(self: RecordWatch, call: WatchedCall, made: list[Tensor], draws: Any) -> None:
        again = judged(call, made)
        parents = tuple(call.reading.origins) + draws
        digest = hash((call.form.digest, *[origin.digest for origin in parents]))
        settings = call.description
        if again.numbers is not ALL_FOLLOW:
            settings = settings_for(call.form, settings, again.numbers, call.reading.records)
        rows = self.generators.rows_of(draws, again.rows) or [None] * len(made)
        for i, (tensor, place, row) in enumerate(zip(made, again.places, rows, strict=True)):
            origin = self.table.find(tensor)
            if any(tensor is given for given in call.reading.tensors) and origin.func is not call.func:
                continue  # the call gave back what it got
            assert (origin.lineage, _all_of(origin.rows)) == (place, _all_of(row))
            assert (origin.digest, origin.parents, origin.settings) == (digest + i, parents, settings)
        found.append(name_of(call.func))

    def compare_expected(
        self: RecordWatch, known: Any, func: Any, args: Any, kwargs: Any, tensors: Any, run: Any = None
    ) -> Any:
        reading = Reading(self._records, values=func not in SIZED)
        read = reading.read_call(args, kwargs, self.table.find)
        call = WatchedCall(func, args, kwargs, reading, (func, read, self._surroundings.modes))
        assert self.calls.find(call) is known
        assert [id(one) for one in reading.tensors] == [id(one) for one in tensors]
        was_judged[0], last[0], started = False, (), self.table.clock
        result = run() if run is not None else expected(self, known, func, args, kwargs, tensors)
        if not was_judged[0] and self.table.clock == started + 1:
            compare(self, call, tensors_of_result(result), last[0])
        return result

    def compare_noted(self: RecordWatch, call: WatchedCall, known: KnownCall, result: Any, states: Any = None) -> None:
        was_judged[0], last[0] = False, ()
        made = tensors_of_result(result)
        call.written(made)
        note_or_judge(self, call, known, result, states)
        if not was_judged[0]:
            compare(self, call, made, last[0])

    def note_judged(self: RecordWatch, *given: Any) -> None:
        was_judged[0] = True
        judge(self, *given)

    def note_drawn(self: Generators, states: Any, call: WatchedCall) -> Any:
        last[0] = drawn(self, states, call)
        return last[0]

    fell: list[bool] = []  # for each call under way: whether it was given to Python

    def compare_compiled(self: RecordWatch, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named, known = kwargs or {}, self.calls.last.next
        is_on = self.is_open and not (self.is_paused or self.is_inside or self.is_backward or self.is_resumed)
        is_known = is_on and not is_quiet(func, args) and known is not None and known.func is func
        is_usual = is_known and self._surroundings.are_usual()
        tensors = known.is_called(args, named, self.table.find) if is_usual and known is not None else None
        fell.append(False)
        run = partial(ExpectedCalls.__torch_function__, self, func, types, args, kwargs)
        try:
            return run() if tensors is None else compare_expected(self, known, func, args, named, tensors, run)
        finally:
            is_compiled = not fell.pop()
            assert is_compiled == (tensors is not None) or not is_on or is_quiet(func, args)

    def note_fallen(self: RecordWatch, *given: Any) -> Any:
        fell[-1] = True
        return watched(self, *given)

    watched = RecordWatch.watched
    if handler == "compiled":
        monkeypatch.setattr(RecordWatch, "__torch_function__", compare_compiled)
        monkeypatch.setattr(RecordWatch, "watched", note_fallen)
    else:
        monkeypatch.setattr(RecordWatch, "_expected", compare_expected)
    monkeypatch.setattr(RecordWatch, "_note_or_judge", compare_noted)
    monkeypatch.setattr(RecordWatch, "_judge", note_judged)
    monkeypatch.setattr(Generators, "read", note_drawn)
    return found


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("task", ["words", "twelve words", "rows"])
def test_what_is_known_is_what_would_be_judged(compared: list[str], task: str, fixed: bool) -> None:
    model, data = classifier(lambda own, x: (x * 2).relu() + x), None
    if task != "rows":  # twelve words: as many as records, so that positions may follow their number
        length = 6 if task == "words" else 12
        model, data = Attention(length), words(length)
    train(model, data=data, steps=8, fixed=fixed)
    assert len(compared) > 10


def half_written(h: Tensor, model: Any, c: float) -> Tensor:
    out = h * 1.0
    left, right = out[:, :3], out[:, 3:]
    left.mul_(c)
    right += left
    return out + left.mean(1, keepdim=True)


def filled_with_draws(h: Tensor, model: Any, c: float) -> Tensor:
    return h + torch.zeros(len(h), 6).normal_().clamp_(-c, c) * torch.zeros_like(h).bernoulli_(0.5)


def masked_in_place(h: Tensor, model: Any, c: float) -> Tensor:
    out = h.clone()
    out[out > c] = 0.5
    out[:, 1] = torch.rand(len(h))
    return F.dropout(out.relu_(), 0.5, inplace=True)


def accumulated(h: Tensor, model: Any, c: float) -> Tensor:
    total, picked = torch.zeros_like(h), torch.zeros(6, dtype=torch.long)
    picked[2:] = 1
    for _ in range(2):
        total += F.dropout(h, 0.1) * picked
    return total.index_add_(1, torch.tensor([0, 2]), h[:, :2])


WRITING: list[Any] = [half_written, filled_with_draws, masked_in_place, accumulated]


def _mixing(draw: random.Random) -> Any:
    """The same calls as a clean step makes, on a tensor that mixes records."""
    statistic, step = draw.choice(STATISTICS), draw.choice(WRITING)
    return lambda h, model, c: step(h + 0 * h.nan_to_num(), model, c) + 1e-30 * statistic(h).nan_to_num()


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_that_draw_and_write(compared: list[str], seed: int) -> None:
    """What is looked up is what would be judged; and a call that mixes is found among known ones, at any place."""
    draw = random.Random(seed)
    steps = [draw.choice(CLEAN + WRITING * 4) for _ in range(draw.randint(2, 6))]
    numbers = [draw.choice([0.1, 0.7, 1.0]) for _ in steps]
    place, other = draw.randint(0, len(steps)), draw.randint(3, 9)
    model = nn.Linear(6, 6)
    with closing(RecordWatch(model)) as watch:
        for batch, records in enumerate((12, 12, other, 12, other, 12)):
            made = list(zip(steps, numbers, strict=True))
            is_last = batch == 5
            if is_last:
                made.insert(place, (_mixing(draw), 0.7))
            x = torch.randn(records, 6)
            watch.open([(x, RecordAxis(0))], records)
            h = x
            for step, number in made:
                h = step(h, model, number)
            with pytest.raises(Refused) if is_last else nullcontext():
                watch.finish(h.square().sum(1))
    assert len(compared) > 10


def test_what_is_drawn_or_written_is_not_judged_again(judgements: list[Any]) -> None:
    model, counts = nn.Linear(6, 6), list[int]()
    with closing(RecordWatch(model)) as watch:
        for _ in range(4):
            x = torch.randn(12, 6)
            watch.open([(x, RecordAxis(0))], 12)
            h = x
            for step in WRITING:
                h = step(h, model, 0.7)
            watch.finish(h.square().sum(1))
            counts.append(len(judgements))
    assert counts[0] > 20
    assert counts[1:] == [counts[1]] * 3


@pytest.mark.parametrize("records", [3, 12])
def test_calls_of_another_number_of_records_are_not_expected(records: int) -> None:
    """`torch.ones(3)` has a row for each record if there are three; what came after it is another chain."""
    model = nn.Linear(6, 6)
    with closing(RecordWatch(model)) as watch:
        for count in (12, 3, 12, 3, records):
            x = torch.randn(count, 3)
            watch.open([(x, RecordAxis(0))], count)
            made = torch.ones(3) * 2
            assert (watch.table.find(made).rows is None) == (count == 12)
            watch.close()
