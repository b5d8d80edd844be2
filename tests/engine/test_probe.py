"""Which axis is the record, which calls a pass makes, and on what inputs that is learned."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import Bare, losses_of, parameter
from torch import Tensor, nn

from discreet.core.check import Refused
from discreet.engine.engine import Engine
from discreet.engine.proof.axes import LARGE, SMALL, AxisSearch, same_for_every_size
from discreet.engine.proof.generic_values import separating
from discreet.engine.proof.passes import DRAWS, Draw
from discreet.engine.proof.probe import Probe
from discreet.engine.trace.capture import Marks, RecordAxis, Tracked, replace, tensors_in

# Axes -------------------------------------------------------------------------------------------------------


def axis_of(make: Any) -> RecordAxis | None:
    """Where a function of the records puts them: shown for few, for many, and with some of the many replaced."""
    many = torch.randn(LARGE, 4)
    search = AxisSearch(make(many[:SMALL]), make(many), "x")
    for half in separating(LARGE):
        search.compare(make(many), make(torch.where(half.unsqueeze(1), torch.randn(LARGE, 4), many)), half)
    return search.found()


def test_each_record_is_replaced_and_comes_back() -> None:
    """The passes of a probe go round: after all sets every record is as it was at first."""
    assert torch.stack(separating(LARGE)).sum(0).tolist() == [2] * LARGE


FOUND: list[tuple[str, Any, RecordAxis | None]] = [
    ("rows", lambda x: x, RecordAxis(0)),
    ("columns", lambda x: x.t(), RecordAxis(1)),
    ("in the middle", lambda x: x.t().unsqueeze(2).expand(4, -1, 7), RecordAxis(1)),
    ("batch * time", lambda x: x.unsqueeze(1).expand(-1, 6, -1).reshape(-1, 4), RecordAxis(0)),
    ("time * batch", lambda x: x.repeat(6, 1), RecordAxis(0, minor=True)),
    ("last, time * batch", lambda x: x.repeat(6, 1).t(), RecordAxis(1, minor=True)),
    ("a constant", lambda x: torch.ones(3, 5), None),
    ("nothing but the size", lambda x: torch.zeros(len(x), 2), RecordAxis(0)),
    ("equal rows of each record", lambda x: torch.zeros(2 * len(x), 3), RecordAxis(0)),
    ("equal blocks side by side", lambda x: torch.eye(2).repeat(len(x), 1), RecordAxis(0)),
    ("equal blocks, records inside", lambda x: torch.eye(2).repeat_interleave(len(x), 0), RecordAxis(0, minor=True)),
    ("whole numbers", lambda x: (x * 100).long(), RecordAxis(0)),
]


@pytest.mark.parametrize(("name", "make", "expected"), FOUND, ids=[name for name, _, _ in FOUND])
def test_the_record_axis_is_found(name: str, make: Any, expected: RecordAxis | None) -> None:
    assert axis_of(make) == expected


MIXED: list[tuple[str, Any, str]] = [
    ("a mean", lambda x: x - x.mean(0), "moves entries of the others"),
    ("a product of all pairs", lambda x: x @ x.t(), r"shape \(3, 3\) for 3 records"),
    ("one number for all", lambda x: x.sum(), "entries of no record's own"),
    ("reversed", lambda x: x.flip(0), "moves entries of the others"),
    ("rows in an order that nothing shows", lambda x: torch.arange(2.0 * len(x)), "an order that nothing shows"),
    ("a row more", lambda x: torch.cat([x, x[:1]]), "for 3 records"),
    ("another number of axes", lambda x: x if len(x) == SMALL else x.unsqueeze(0), "for 3 records"),
    ("interleaved", lambda x: torch.cat([x[::2], x[1::2]]), "moves entries of the others"),
]


@pytest.mark.parametrize(("name", "make", "reason"), MIXED, ids=[name for name, _, _ in MIXED])
def test_what_mixes_records_is_refused(name: str, make: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        axis_of(make)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2), st.booleans())
def test_splitting_puts_the_record_first(records: int, entries: int, axis: int, minor: bool) -> None:
    """Entry f of record n lies at n * F + f, or at f * N + n."""
    shape = [2, 3, 4]
    shape[axis] = records * entries
    tensor = torch.arange(2 * 3 * 4 * records * entries // [2, 3, 4][axis]).view(shape)
    split = RecordAxis(axis, minor).split(tensor, records)
    for n in range(records):
        for f in range(entries):
            at = f * records + n if minor else n * entries + f
            assert torch.equal(split[n].select(axis, f), tensor.select(axis, at))


def test_values_of_a_record_must_not_move_with_the_number_of_records() -> None:
    x = torch.randn(LARGE, 4)
    for make in (
        lambda x: x,
        lambda x: x.repeat(6, 1),
        lambda x: torch.ones(3),
        lambda x: x + 1e-6 * torch.randn_like(x),
    ):
        same_for_every_size(make(x[:SMALL]), make(x))
    for make in (lambda x: x / len(x), lambda x: torch.ones(3) * len(x), lambda x: x.repeat(6, 1) / len(x)):
        with pytest.raises(Refused, match="the same in a batch of any size"):
            same_for_every_size(make(x[:SMALL]), make(x))
    masked = torch.full((LARGE, 4), -float("inf"))
    same_for_every_size(masked[:SMALL], masked)


# Random inputs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_draws_change_exactly_one_record(draw: Draw) -> None:
    constant = torch.randn(2, 2)
    tree = {
        "x": torch.zeros(9, 3),
        "ids": [torch.zeros(9, 4, dtype=torch.long)],
        "m": torch.zeros(9, 2).bool(),
        "c": constant,
    }
    flags, generator = (True, True, True, False), torch.Generator().manual_seed(0)
    drawn = draw.inputs(tree, flags, 3 * 2, generator)
    grown = draw.extended(drawn, flags, 2 * 2, generator)
    assert grown["c"] is drawn["c"] is constant
    for small, large in zip(tensors_in(drawn), tensors_in(grown), strict=True):
        if small is not constant:
            assert large.shape[0] == 10
            assert torch.equal(small, large[:6])
    moved = draw.replaced(grown, flags, 3, 2, generator)
    for before, after in zip(tensors_in(grown), tensors_in(moved), strict=True):
        if before is not constant:
            changed = (before != after).flatten(1)
            can_change = before.dtype is not torch.long or draw.span > 1  # a single id has no other to change to
            assert changed.all(1).tolist() == [can_change and row in (6, 7) for row in range(10)]
    assert int(moved["ids"][0].min()) >= draw.low
    assert int(moved["ids"][0].max()) < draw.low + draw.span
    assert not draw.positive or float(moved["x"].min()) >= 0


def test_vocabularies_of_two_and_lengths_above_zero() -> None:
    """Ids up to 3 overflow a table of two; a length of zero gives 0 / 0: other draws are tried."""

    def run(own: Bare, ids: Tensor, lengths: Tensor) -> Tensor:
        seen = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
        words = own.words(ids) * seen.unsqueeze(2)
        return words.sum(1) / seen.sum(1, keepdim=True)

    model = Bare(run, words=nn.Embedding(3, 4))
    engine = Engine(model)
    engine.begin(7)
    engine.backward(losses_of(model(torch.randint(0, 3, (7, 5)), torch.randint(1, 6, (7,)))))
    assert bool(engine.norms().isfinite().all())


def test_boxes_whose_corners_are_in_order() -> None:
    """A negative width is no row of a table: whole numbers that are the same along the last axis are tried."""

    def run(own: Bare, boxes: Tensor) -> Tensor:
        return own.corners(boxes).sum((1, 2)) + own.widths(boxes[..., 1] - boxes[..., 0]).sum(1)

    engine = Engine(Bare(run, corners=nn.Embedding(9, 4), widths=nn.Embedding(9, 4)))
    left = torch.randint(0, 4, (7, 5, 1))
    engine.begin(7)
    engine.backward(losses_of(engine.model(torch.cat([left, left + 3], -1))))
    assert bool(engine.norms().isfinite().all())


def test_the_failure_that_came_most_often_is_told() -> None:
    told = iter([IndexError("of one draw")])

    def run(own: Bare, ids: Tensor) -> Tensor:
        raise next(told, LookupError("of all others"))

    model = Bare(run, words=nn.Embedding(9, 4))
    root = Tracked("words.weight", model.words.weight)
    with pytest.raises(LookupError, match="of all others"):
        Probe(model, [root], ((torch.zeros(3, 4, dtype=torch.long),), {}), [True]).learn()


# Following a pass -------------------------------------------------------------------------------------------


def test_marks_follow_what_carries_records() -> None:
    weight = nn.Parameter(torch.ones(3))
    tracked = {id(weight): Tracked("w", weight)}
    x, other = torch.randn(3), torch.randn(3)
    marks = Marks(tracked, [x])
    assert marks.on([other, x])
    assert not marks.on([other, weight])
    made = x + 1
    assert marks.follow(torch.add, (x, 1), [x], made)
    assert marks.on([made])
    assert not marks.follow(Tensor.size, (x,), [x], x.size())
    assert marks.on([(made * weight)])  # needs a gradient, and is no parameter
    room = torch.zeros(3)
    assert marks.follow(Tensor.__setitem__, (room, 0, made), [room, made], None)
    assert marks.on([room])


def test_marks_keep_nothing_alive() -> None:
    x = torch.randn(3)
    marks = Marks({}, [x])
    marks.follow(torch.add, (x, 1), [x], x + 1)
    gc.collect()
    alive = [reference() for reference in marks.marked.values()]
    assert sum(tensor is not None for tensor in alive) == 1


def test_containers() -> None:
    from typing import NamedTuple

    class Pair(NamedTuple):
        a: Tensor
        b: list[Tensor]

    tree = ({"k": Pair(torch.ones(1), [torch.ones(2), 3])}, [torch.ones(3)], "text", None)  # type: ignore[list-item]
    assert [t.numel() for t in tensors_in(tree)] == [1, 2, 3]
    doubled = replace(tree, lambda t: 2 * t)
    assert isinstance(doubled[0]["k"], Pair)
    assert [float(t.sum()) for t in tensors_in(doubled)] == [2, 4, 6]
    assert doubled[2:] == ("text", None)


def script_of(model: nn.Module, *inputs: Tensor) -> Any:
    roots = [Tracked(name, p) for name, p in model.named_parameters()]
    return Probe(model, roots, (inputs, {}), [True] * len(inputs)).learn()[0]


def test_a_script_says_what_a_pass_does() -> None:
    def run(own: Bare, x: Tensor) -> Tensor:
        return torch.tanh(x @ own.weight.t()).flatten(1) * own.scale.exp()

    script = script_of(Bare(run, weight=parameter(5, 4), scale=parameter()), torch.randn(2, 3, 4))
    assert [(call.func.__name__, call.derives) for call in script.calls] == [
        ("t", True),
        ("matmul", False),
        ("exp", True),
        ("mul", False),
    ]
    product = script.calls[1]
    assert product.axes == (RecordAxis(0), None)
    assert product.output == RecordAxis(0)
    assert [step.func.__name__ for step in script.path] == ["tanh", "flatten"]
    assert script.outputs == [RecordAxis(0)]


def test_what_is_spread_over_the_records_is_no_parameter_any_more() -> None:
    def run(own: Bare, x: Tensor) -> Tensor:
        token = own.token.unsqueeze(0).expand(len(x), -1)
        return torch.cat([token.reshape(len(x), 2, 2), x.view(len(x), 2, 2)], 1).flatten(1)

    script = script_of(Bare(run, token=parameter(4)), torch.randn(2, 4))
    assert [(call.func.__name__, call.derives) for call in script.calls] == [("unsqueeze", True), ("expand", False)]


def test_a_script_is_learned_once_for_each_form_of_input(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = []
    whole = Probe.learn

    def learn(self: Probe) -> Any:
        learned.append(1)
        return whole(self)

    monkeypatch.setattr(Probe, "learn", learn)
    model = Bare(lambda own, x, flag=False: own.net(x), net=nn.Linear(4, 3))
    engine = Engine(model)

    def passes(x: Tensor, **settings: Any) -> int:
        engine.begin(len(x))
        engine.backward(losses_of(model(x, **settings)))
        return len(learned)

    assert passes(torch.randn(7, 4)) == 1
    assert passes(torch.randn(2, 4)) == 1  # another number of records
    assert passes(torch.randn(7, 2, 4)) == 2  # another shape
    assert passes(torch.randn(7, 4), flag=True) == 3  # another plain argument
    model.eval()
    assert passes(torch.randn(7, 4)) == 4  # another mode
    assert passes(torch.randn(2, 4)) == 4
    assert passes(torch.randn(1, 4)) == 4


def test_a_model_that_is_probed_ends_in_the_mode_and_state_it_had() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    script_of(model, torch.randn(2, 4))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


class _Adapter(nn.Module):
    """A low-rank adapter that starts at zero; `mix` hides a mean over the records behind the zeros."""

    def __init__(self, mix: bool) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(4, 3), nn.Linear(4, 2), nn.Linear(2, 3, bias=False)
        self.mix = mix
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        low = self.down(x)
        return self.base(x) + self.up(low - low.mean(0) if self.mix else low)


def test_parameters_that_start_at_zero() -> None:
    for model in (nn.Linear(4, 2), _Adapter(mix=False)):
        if isinstance(model, nn.Linear):
            nn.init.zeros_(model.weight)
            nn.init.zeros_(model.bias)
        before = [own.detach().clone() for own in model.parameters()]
        engine, x = Engine(model), torch.randn(6, 4)
        engine.begin(6)
        engine.backward((model(x) - 1).square().sum(1))
        assert float(engine.norms().min()) > 0
        same = zip(before, model.parameters(), strict=True)
        assert all(torch.equal(old, new) for old, new in same)


def test_zeros_hide_no_mixing() -> None:
    model, x = _Adapter(mix=True), torch.randn(6, 4)
    engine = Engine(model)
    engine.begin(6)
    with pytest.raises(Refused, match="keep the records apart"):
        model(x)


@pytest.mark.parametrize("writes", [False, True])
def test_what_a_model_writes_over_is_copied(writes: bool) -> None:
    """A mean over the records shows in the output of the layer, although the model then writes over it."""

    class Overwritten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.layer(x - x.mean(0))
            outputs: Tensor = self.last(x)
            return outputs + (0.0 * hidden.zero_() if writes else 0.0 * hidden).sum(1, keepdim=True)

    model = Overwritten()
    roots = [Tracked(name, tensor) for name, tensor in model.named_parameters()]
    with pytest.raises(Refused, match="to keep the records apart"):
        Probe(model, roots, ((torch.randn(7, 4),), {}), (True,)).learn()
