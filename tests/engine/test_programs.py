"""Two ways to make losses: whatever the comparison of programs sees, their digests see as well."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from steps import classifier, each, train
from torch import Tensor, nn

from discreet.core.check import Refused
from discreet.engine.proof.lineage import Origin
from discreet.engine.proof.program import ProgramComparison
from discreet.engine.record_watch import RecordWatch
from discreet.engine.trace.capture import RecordAxis

MODEL = nn.Linear(6, 6)
CONSTANTS = torch.ones(6), torch.zeros(6)


def slices_in_other_order(x: Tensor, flag: bool) -> Tensor:
    out = torch.empty(len(x), 2, 6)
    out[:, int(flag)] = x
    out[:, int(not flag)] = x * x
    return out


def empty_memory_filled_by_views(x: Tensor, flag: bool) -> Tensor:
    out = torch.empty(len(x), 2, 6)
    out[:, int(flag)].copy_(x)
    out[:, int(not flag)].copy_(x * x)
    return out


def a_slice_of_other_length(x: Tensor, flag: bool) -> Tensor:
    out = torch.empty(len(x), 6)
    out[:] = x
    out[:, : 2 + flag] = 0.0
    return out


def views_that_are_written(x: Tensor, flag: bool) -> Tensor:
    out = x.clone()
    out[:, int(flag)].zero_()
    return out


class First(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def made(times: float) -> type[torch.autograd.Function]:
    class Scaled(First):
        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * times

    return Scaled


FUNCTIONS = made(1.0), made(2.0)


class Level(enum.IntEnum):
    LOW, HIGH = 1, 2


def a_parameter_that_is_frozen(x: Tensor, flag: bool) -> Tensor:
    MODEL.weight.requires_grad = flag
    weights = torch.cat([MODEL.weight, MODEL.bias[None]])
    MODEL.weight.requires_grad = True
    return x @ weights.t()


Program = Callable[[Tensor, bool], Tensor]
PROGRAMS: list[Program] = [
    *(slices_in_other_order, empty_memory_filled_by_views, a_slice_of_other_length, views_that_are_written),
    a_parameter_that_is_frozen,
    lambda x, flag: x * (2.0 if flag else 3.0),
    lambda x, flag: x * (-1 if flag else -2),
    lambda x, flag: x * (0.0 if flag else -0.0),
    lambda x, flag: x * (1 if flag else True),
    lambda x, flag: x * (1 if flag else 1.0),
    lambda x, flag: x * np.float32(1 + flag),
    lambda x, flag: x * Level(1 + flag),
    lambda x, flag: (x * (1j if flag else 2j)).real,
    lambda x, flag: x.double() if flag else x.half(),
    lambda x, flag: x.sin() if flag else x.cos(),
    lambda x, flag: x[:, 1:] if flag else x[:, :5],
    lambda x, flag: x.max(1)[int(flag)] * 1.0,
    lambda x, flag: x.chunk(2, 1)[int(flag)],
    lambda x, flag: x * CONSTANTS[flag],
    lambda x, flag: F.linear(x, MODEL.weight, MODEL.bias if flag else None),
    lambda x, flag: FUNCTIONS[flag].apply((x @ MODEL.weight).sin().view(-1, 6)),
    lambda x, flag: (x.sin() if flag else x.cos()) + x,
]


def origin_of(run: Program, watch: RecordWatch, *, flag: bool, records: int = 5) -> Origin:
    x = torch.ones(records, 6)
    watch.open([(x, RecordAxis(0))], records)
    try:
        losses = run(x, flag)
        with watch.paused():
            return watch.table.find(losses)
    finally:
        watch.close()


@pytest.mark.parametrize("run", PROGRAMS)
def test_a_digest_covers_all_that_is_compared(run: Program) -> None:
    watch = RecordWatch(MODEL)
    one, again, other = (origin_of(run, watch, flag=flag) for flag in (True, True, False))
    assert ProgramComparison((5, 5)).same(one, again)
    assert one.digest == again.digest
    assert not ProgramComparison((5, 5)).same(one, other)
    assert one.digest != other.digest


# The same in a loop ---------------------------------------------------------------------------------------


def late(private: Any) -> bool:
    """What a value of a record could say, after a step in which it said nothing."""
    return not private.is_rehearsal and private.progress.step >= 1


def writes_in_other_order(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    outputs, flag = model(x), late(private)
    out = torch.empty(len(x), 2, 3)
    out[:, int(flag)] = outputs
    out[:, int(not flag)] = outputs.detach() * 0
    private.step(each(out[:, 0], y))


def an_enum_of_another_value(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    kind: Any = enum.Enum("kind", {"ONE": int(not late(private))}, type=int)
    private.step(each(model(x), y) * kind.ONE)


class Hidden(complex):
    def __repr__(self) -> str:
        return "a number"

    __str__ = __repr__


def a_number_that_hides_its_value(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step((each(model(x), y) * Hidden(int(not late(private)))).real)


class HiddenList(list[Any]):
    def __iter__(self) -> Any:
        return iter([1, 2])


def a_list_that_hides_its_values(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x.flip(HiddenList([1]) if late(private) else HiddenList([]))), y))


class HiddenFloat(np.float64):
    def item(self) -> float:  # type: ignore[override]
        return 1.0


def a_numpy_number_that_hides_its_value(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x), y) * HiddenFloat(not late(private)))


BODIES = [
    *(writes_in_other_order, an_enum_of_another_value, a_number_that_hides_its_value, a_list_that_hides_its_values),
    a_numpy_number_that_hides_its_value,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_value_that_is_hidden_from_the_comparison_is_refused(body: Any) -> None:
    with pytest.raises(Refused, match=r"same calls with the same numbers|each record stands alone"):
        train(body=body, steps=3)


def test_a_parameter_that_a_value_freezes_for_a_moment_is_refused() -> None:
    def run(own: Any, x: Tensor) -> Tensor:
        own.scale.weight.requires_grad = not own.is_frozen
        weights = torch.cat([own.scale.weight, own.scale.bias[None]])
        own.scale.weight.requires_grad = True
        return x @ weights.t()[:, :6]

    model = classifier(run)
    model.scale, model.is_frozen = nn.Linear(6, 6), False

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        model.is_frozen = late(private)
        private.step(each(model(x), y))

    with pytest.raises(Refused):
        train(model, body, steps=3)


# Values that no proof of a call has tried -------------------------------------------------------------------

RARE = torch.tensor([2])


@pytest.mark.parametrize(
    "weigh",
    [
        lambda x, y: 1 - torch.isin(RARE, y).float(),
        lambda x, y: torch.isin(torch.arange(3), y).float().mean(),
        lambda x, y: 1.0 - torch.isin(700, y).float(),
        lambda x, y: 1 - torch.histc(x, 1, min=1e7, max=1e8).clamp(max=1),
        lambda x, y: 1 - torch.histc(x, len(x), min=1e7, max=1e8).clamp(max=1),
    ],
    ids=["one class", "classes", "a number", "histogram", "histogram with a bin for each record"],
)
def test_a_look_for_values_that_were_not_tried_is_refused(weigh: Any) -> None:
    with pytest.raises(Refused, match=r"each record stands alone|same numbers"):
        train(body=lambda private, model, x, y: private.step(each(model(x), y) * weigh(x, y)), steps=2)


@pytest.mark.parametrize(
    "weigh",
    [
        lambda x, y: (~torch.isin(y, RARE)).float(),
        lambda x, y: torch.ones(3).to(x).sum() + torch.ones(2).type_as(x).sum(),
        lambda x, y: x.new_ones(()) + x.new_zeros(3).sum(),
        lambda x, y: x[:0].sum() + torch.ones(1, 6).expand_as(x).sum(1),
    ],
    ids=["of a record in a list", "type of a record", "new tensors", "sizes of a record"],
)
def test_a_look_at_types_and_sizes_is_accepted(weigh: Any) -> None:
    train(body=lambda private, model, x, y: private.step(each(model(x), y) * weigh(x, y)), steps=2)


# Slices that reach farther than the batches of a proof ----------------------------------------------------------


def written(index: slice, *, public: bool) -> Program:
    def run(x: Tensor, flag: bool) -> Tensor:
        target = torch.ones(len(x)) if public else x.sum(1)
        target[index] = 0.0
        return x.sum(1) * target

    return run


FAR = [slice(-70), slice(70), slice(70, None), slice(-70, None), slice(None, -70, 2), slice(np.int64(-70))]


@pytest.mark.parametrize("index", FAR, ids=str)
@pytest.mark.parametrize("public", [False, True], ids=["records", "public"])
def test_slices_that_reach_far(index: slice, public: bool) -> None:
    watch = RecordWatch(MODEL)
    origin = origin_of(written(index, public=public), watch, flag=True, records=100)
    assert origin.blame is not None


@pytest.mark.parametrize(
    "run",
    [
        lambda x, flag: x.repeat(1, 20)[:, :100] * torch.ones(len(x), 120)[:, :100],
        lambda x, flag: x[: len(x)] * torch.ones(len(x))[: len(x)].unsqueeze(1),
        lambda x, flag: x.repeat(1, 20)[..., -70:],
    ],
    ids=["another axis", "all records", "dots"],
)
def test_slices_that_leave_every_record_alone(run: Program) -> None:
    watch = RecordWatch(MODEL)
    assert origin_of(run, watch, flag=True, records=100).blame is None


# Refused with words of their own ------------------------------------------------------------------------------

COMPILED = torch.compile(each, backend="eager")


def transformed(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    gradients = torch.func.vmap(torch.func.grad(lambda row: (row**2).sum()))(x)
    private.step(each(model(x), y) + gradients.sum(1))


def compiled(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(COMPILED(model(x), y))


def random_slopes(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x), y))


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # of torch.compile, which reads the code of the watch
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    ("body", "words"),
    [(transformed, "inside torch.func.grad"), (compiled, "inside a compiled function"), (random_slopes, "F.rrelu")],
    ids=["transformed", "compiled", "random slopes"],
)
def test_what_cannot_be_followed_is_refused_with_words(body: Any, words: str) -> None:
    model = classifier((lambda own, x: F.rrelu(x, training=True)) if body is random_slopes else None)
    with pytest.raises(Refused, match=words):
        train(model, body, steps=2)
