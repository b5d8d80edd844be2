"""One call by itself: which records are replaced, which sizes are made smaller, and how moves are shown."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.engine.proof import verdicts
from discreet.engine.proof.call_proof import prove
from discreet.engine.proof.forms import call_forms
from discreet.engine.proof.forms.call_forms import Opaque, Reading, provable, provable_small
from discreet.engine.proof.forms.provable_call import ALL_FOLLOW, UnprovableError, choices_of_numbers
from discreet.engine.proof.forms.small_sizes import MOVES, SIZE_FREE, smaller
from discreet.engine.proof.generic_values import separating
from discreet.engine.proof.lineage import MIXED, PUBLIC, Lineage, Origin
from discreet.engine.record_watch import RecordWatch
from discreet.engine.trace.capture import RecordAxis, tensors_in


@pytest.mark.parametrize("records", [1, 2, 3, 5, 6, 7, 64, 67, 70, 71, 500])
def test_of_any_two_records_each_is_replaced_without_the_other(records: int) -> None:
    sets = torch.stack([torch.zeros(records, dtype=torch.bool), *separating(records)])
    alone = (sets.unsqueeze(2) & ~sets.unsqueeze(1)).any(0)
    assert bool((alone | torch.eye(records, dtype=torch.bool)).all())


def test_few_sets_are_enough() -> None:
    assert [len(separating(records)) for records in (1, 5, 67, 70, 71)] == [0, 4, 8, 8, 9]


# Smaller sizes --------------------------------------------------------------------------------------------

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def x(*sizes: int) -> Tensor:
    return torch.randn(7, *sizes)


SPATIAL: dict[str, Callable[[], Made]] = {
    "conv1d": lambda: (F.conv1d, (x(12, 40), torch.randn(20, 12, 5), torch.randn(20)), {"stride": 2}),
    "conv2d": lambda: (F.conv2d, (x(16, 20, 20), torch.randn(32, 16, 3, 3)), {"padding": 1}),
    "groups": lambda: (F.conv2d, (x(16, 20, 20), torch.randn(32, 4, 3, 3), torch.randn(32), 1, 1, 2, 4), {}),
    "depthwise": lambda: (F.conv2d, (x(16, 20, 20), torch.randn(16, 1, 7, 7)), {"padding": "same", "groups": 16}),
    "conv3d": lambda: (F.conv3d, (x(6, 9, 9, 9), torch.randn(5, 6, 2, 3, 1), None, (1, 2, 1)), {}),
    "transposed": lambda: (F.conv_transpose2d, (x(8, 9, 9), torch.randn(8, 6, 4, 4), torch.randn(6), 2, 1), {}),
    "transposed groups": lambda: (F.conv_transpose1d, (x(8, 9), torch.randn(8, 3, 4)), {"groups": 4, "stride": 3}),
    "max pool": lambda: (torch.max_pool2d, (x(16, 20, 20), 3, 2, 1), {}),
    "dilated max pool": lambda: (torch.max_pool1d, (x(16, 20), 3, 2, 1, 2), {}),
    "average pool": lambda: (F.avg_pool2d, (x(16, 20, 20), (2, 3)), {"ceil_mode": True}),
    "adaptive pool": lambda: (F.adaptive_avg_pool2d, (x(16, 20, 13), (3, 1)), {}),
    "interpolate": lambda: (F.interpolate, (x(16, 5, 5),), {"scale_factor": 2, "mode": "bilinear"}),
    "group norm": lambda: (F.group_norm, (x(32, 6, 6), 8, torch.randn(32), torch.randn(32)), {}),
    "one group": lambda: (F.group_norm, (x(32, 6, 6), 1), {}),
    "pad": lambda: (F.pad, (x(16, 6, 6), (0, 0, 0, 0, 4, 4)), {}),
    "pad images": lambda: (F.pad, (x(16, 20, 20), (2, 2, 1, 1)), {"mode": "reflect"}),
    "chunk": lambda: (Tensor.chunk, (x(6, 12), 3, 2), {}),
    "chunk in two sizes": lambda: (Tensor.chunk, (x(6, 7), 3), {"dim": -1}),
    "windows": lambda: (torch.roll, (x(8, 8, 20), (-2, -2), (1, 2)), {}),
    "other type": lambda: (Tensor.to, (x(20, 9), torch.float64), {}),
    "several times": lambda: (Tensor.repeat_interleave, (x(20, 9), 3, 0), {}),
    "copies": lambda: (Tensor.repeat, (x(20, 9), 1, 2, 1), {}),
    "half of all": lambda: (Tensor.__getitem__, (x(12, 8), (..., slice(None, 4))), {}),
    "slice of tokens": lambda: (Tensor.__getitem__, (x(6, 12), (slice(None), slice(None, -1))), {}),
    "one token": lambda: (Tensor.__getitem__, (x(6, 12), (slice(None), 0, None)), {}),
    "unbind": lambda: (Tensor.unbind, (x(3, 20), 1), {}),
    "unflatten": lambda: (Tensor.unflatten, (x(6, 12), 2, (3, 4)), {}),
    "tokens": lambda: (Tensor.view, (x(20, 12), -1, 12), {}),
    "heads": lambda: (Tensor.view, (x(20, 12), 7, 20, -1, 4), {}),
    "one row": lambda: (torch.reshape, (x(20, 12), (7, 240)), {}),
    "pixels": lambda: (Tensor.reshape, (x(6, 20, 20), torch.Size([7, 6, 400, 1])), {}),
    "tokens of records": lambda: (Tensor.view, (rows(20, 9), 7, 20, 9), {}),
    "expansion": lambda: (Tensor.expand, (x(1, 20), -1, 30, 20), {}),
    "expansion by size": lambda: (Tensor.expand, (x(1, 20), torch.Size([7, 30, 20])), {}),
    "split": lambda: (Tensor.split, (x(20, 12), 4), {"dim": 2}),
    "split with a rest": lambda: (torch.split, (x(20, 13), 5, -1), {}),
    "split in sizes": lambda: (torch.split, (x(20, 13), [6, 5, 2], -1), {}),
    "layer norm": lambda: (F.layer_norm, (x(5, 30), (30,), torch.randn(30), torch.randn(30)), {}),
}


def read(func: Any, args: Any, kwargs: Any) -> Reading:
    reading = Reading(7)

    def find(tensor: Tensor) -> Origin:
        return Origin(RecordAxis(0), 1) if tensor is args[0] else Origin(PUBLIC, 2)

    reading.read_call(args, kwargs, find)
    return reading


@pytest.mark.parametrize("number", [np.longdouble(2), np.clongdouble(2)], ids=lambda one: type(one).__name__)
def test_numbers_that_python_does_not_have_are_opaque(number: Any) -> None:
    """`item` returns the number itself, so it was read without end."""
    assert read(torch.mul, (x(3), number), {}).opaque is Opaque.OTHER


@pytest.mark.parametrize("make", SPATIAL.values(), ids=SPATIAL)
def test_smaller_sizes_show_the_same(make: Callable[[], Made]) -> None:
    func, args, kwargs = make()
    reading = read(func, args, kwargs)
    small, whole = provable_small(func, args, kwargs, reading), provable(func, args, kwargs, reading, exact=False)
    assert small is not None
    entries = [sum(torch.Size(leaf.shape(1)).numel() for leaf in call.leaves) for call in (small, whole)]
    assert entries[0] < entries[1]
    assert prove(small).outputs == prove(whole).outputs == (RecordAxis(0),) * len(prove(small).outputs)


@pytest.mark.parametrize(("queries", "keys", "fewer"), [(9, 3, (4, 2)), (8, 1, (2, 1)), (12, 12, (4, 4))])
def test_attention_keeps_heads_that_share_a_key(queries: int, keys: int, fewer: tuple[int, int]) -> None:
    args = x(queries, 20, 8), x(keys, 20, 8), x(keys, 20, 8)
    reading, settings = Reading(7), {"enable_gqa": True}
    reading.read_call(args, settings, lambda tensor: Origin(RecordAxis(0), 1))
    small = provable_small(F.scaled_dot_product_attention, args, settings, reading)
    assert small is not None
    assert [leaf.shape(67)[1] for leaf in small.leaves] == [fewer[0], fewer[1], fewer[1]]
    assert prove(small).outputs == (RecordAxis(0),)


def test_rows_of_a_table_are_proven_narrower() -> None:
    """As mixtures of experts take their weights: the proof of such a call took 26 seconds and a gigabyte."""
    table, numbers = torch.randn(3, 20, 9), torch.arange(14) % 3
    rows = {id(table): PUBLIC, id(numbers): RecordAxis(0)}
    reading = Reading(7)
    reading.read_call((table, numbers), {}, lambda tensor: Origin(rows[id(tensor)], 1))
    small = provable_small(Tensor.__getitem__, (table, numbers), {}, reading)
    assert small is not None
    assert [leaf.shape(67) for leaf in small.leaves] == [[3, 4, 4], [134]]
    whole = provable(Tensor.__getitem__, (table, numbers), {}, reading, exact=False)
    assert prove(small).outputs == prove(whole).outputs == (RecordAxis(0),)


@pytest.mark.parametrize(
    ("table", "index"),
    [
        (x(20, 9), torch.arange(7)),  # rows of records
        (torch.randn(3, 20, 9), torch.tensor([True, False, True])),
        (torch.randn(3, 20, 9), [0, 2]),
        (torch.randn(3, 20, 9), (slice(None), torch.arange(14))),
        (x(20, 9), (slice(None), slice(None, torch.tensor(3)))),
        (x(20, 9), (slice(None), 1, slice(2))),
    ],
    ids=["records", "condition", "list", "second axis", "bound in a tensor", "all axes named"],
)
def test_other_indices_keep_their_sizes(table: Tensor, index: Any) -> None:
    reading = Reading(7)
    reading.read_call((table, index), {}, lambda t: Origin(RecordAxis(0) if t.shape[:1] == (7,) else PUBLIC, 1))
    assert provable_small(Tensor.__getitem__, (table, index), {}, reading) is None


@pytest.mark.parametrize(
    "index", [(slice(None), slice(None, -1)), (slice(None), 2), slice(0, 7), (slice(None), None)], ids=str
)
def test_smaller_indices_say_how_many_rows_a_record_has(index: Any) -> None:
    """Without it, rows that come in a number that the proof did not see would be taken for those of records."""
    inputs = x(6, 12)
    reading = Reading(7)
    reading.read_call((inputs, index), {}, lambda tensor: Origin(RecordAxis(0), 1))
    found = verdicts.verdict_of_reading(Tensor.__getitem__, (inputs, index), {}, reading)
    whole = prove(provable(Tensor.__getitem__, (inputs, index), {}, reading, exact=False))
    assert provable_small(Tensor.__getitem__, (inputs, index), {}, reading) is not None
    assert (found.outputs, found.factors) == (whole.outputs, whole.factors) == ((RecordAxis(0),), (1,))


def key_of(func: Any, args: Any, *, where: dict[int, Any] | None = None) -> Any:
    """What the proof of a call at smaller sizes depends on."""
    reading = Reading(7, values=func not in verdicts.SIZED)
    reading.read_call(args, {}, lambda tensor: Origin((where or {}).get(id(tensor), RecordAxis(0)), 1))
    small = provable_small(func, args, {}, reading)
    assert small is not None
    return small.key()


def test_all_places_between_the_first_and_the_last_share_a_proof() -> None:
    """A loop over the tokens makes a call for each; `tokens` of Mamba's took most of its set-up."""
    keys = [key_of(Tensor.__getitem__, (x(20, 9), (slice(None), place))) for place in (0, 19, -1, -20, 3, 14, -2)]
    first, last, *_ = keys
    assert keys[2:4] == [last, first]
    assert keys[4] == keys[5] == keys[6]
    assert len({first, last, keys[4]}) == 3
    assert key_of(Tensor.__getitem__, (x(5, 4), (slice(None), 4))) == last


@pytest.mark.parametrize("place", [0, 3, 19, -1])
def test_the_place_of_an_index_does_not_follow_the_number_of_records(place: int) -> None:
    inputs, reading = x(20, 9), Reading(7)
    index = (slice(None), place)
    reading.read_call((inputs, index), {}, lambda tensor: Origin(RecordAxis(0), 1))
    found = verdicts.verdict_of_reading(Tensor.__getitem__, (inputs, index), {}, reading)
    assert (found.outputs, found.factors) == ((RecordAxis(0),), (1,))
    assert not found.numbers.follow(0)


def test_a_record_is_not_any_place() -> None:
    inputs = x(20)
    reading = Reading(7)
    reading.read_call((inputs, (3, slice(None))), {}, lambda tensor: Origin(RecordAxis(0), 1))
    assert provable_small(Tensor.__getitem__, (inputs, (3, slice(None))), {}, reading) is None
    found = verdicts.verdict_of_reading(Tensor.__getitem__, (inputs, (3, slice(None))), {}, reading)
    assert not found.keeps_apart


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1), (20, 20)], ids=str)
def test_images_of_all_sizes_share_a_proof(sizes: tuple[int, int]) -> None:
    weight = torch.randn(32, 16, 3, 3)
    public = {id(weight): PUBLIC}
    own = key_of(F.conv2d, (x(16, *sizes), weight, None, 1, 1), where=public)
    assert own == key_of(F.conv2d, (x(16, 9, 9), weight, None, 1, 1), where=public)


def test_what_is_broadcast_has_a_proof_of_its_own() -> None:
    whole = key_of(torch.add, (x(2, 3), x(2, 3)))
    assert whole == key_of(torch.add, (x(20, 30), x(20, 30)))
    assert whole != key_of(torch.add, (x(20, 30), x(20, 1)))
    assert whole != key_of(torch.add, (x(20, 30), x(1, 30)))


def rows(each: int, *sizes: int) -> Tensor:
    return torch.randn(7 * each, *sizes)


MIXING: dict[str, Callable[[], Made]] = {
    "gather from others": lambda: (torch.gather, (x(20, 9), 0, torch.zeros(7, 20, 9, dtype=torch.long)), {}),
    "gather the first rows": lambda: (torch.gather, (rows(8, 9), 1, rows(2, 9).long() * 0), {}),
    "roll": lambda: (torch.roll, (x(20, 9), 1, 0), {}),
    "roll all entries": lambda: (torch.roll, (x(20, 9), 1), {}),
    "flip": lambda: (torch.flip, (x(20, 9), (0,)), {}),
    "repeat without order": lambda: (Tensor.repeat, (x(20), 1, 2), {}),
    "one of all records": lambda: (Tensor.__getitem__, (x(20, 9), 3), {}),
    "last record": lambda: (Tensor.__getitem__, (x(20, 9), (..., -1, slice(None), 0)), {}),
    "write by place": lambda: (Tensor.__setitem__, (x(20), torch.arange(7) < 3, 0.0), {}),
    "places first": lambda: (Tensor.view, (x(20, 9), 20, -1), {}),
    "rows of two records": lambda: (Tensor.reshape, (x(6, 4), (8, 21)), {}),
    "pieces of records": lambda: (Tensor.split, (x(6, 4), 3), {}),
    "mean of all": lambda: (torch.mean, (x(2, 3), 0), {}),
}


@pytest.mark.parametrize("make", MIXING.values(), ids=MIXING)
def test_no_smaller_size_hides_a_mixture(make: Callable[[], Made]) -> None:
    """The negative control of all rules: records of 2 to 20 entries, on which the calls mix them."""
    func, args, kwargs = make()
    with closing(RecordWatch(nn.Linear(1, 1))) as watch:
        watch.open([(tensor, RecordAxis(0)) for tensor in tensors_in(args) if tensor is not args[1]], 7)
        result = func(*args, **kwargs)
        made = args[0] if result is None else result
        is_mixed = watch.table.find(tensors_in(made)[0]).lineage is MIXED
        watch.close()
    assert is_mixed == (func is not Tensor.repeat)


def test_smaller_views_show_what_whole_ones_do() -> None:
    """Random cuts of random sizes, with the number of records as one of them, in a product, or not named."""
    draw, kept = random.Random(3), 0
    for _ in range(150):
        sizes = [draw.choice([1, 2, 3, 6, 7, 12]) for _ in range(draw.randint(1, 3))]
        inputs, left, target = x(*sizes), 7 * math.prod(sizes), list[int]()
        while left > 1 and len(target) < 4:
            target.append(draw.choice([size for size in (1, 2, 3, 6, 7, 12, 14, 42, left) if left % size == 0]))
            left //= target[-1]
        target[-1] *= left
        args = (inputs, *target) if draw.random() < 0.7 else (inputs, *target[:-1], -1)
        reading = read(Tensor.view, args, {})
        for numbers in choices_of_numbers(reading.multiples, 7):
            own = Reading(7, numbers)
            own.read_call(args, {}, lambda tensor: Origin(RecordAxis(0), 1))
            try:
                small = provable_small(Tensor.view, args, {}, own)
            except UnprovableError:
                with pytest.raises(UnprovableError):
                    prove(provable(Tensor.view, args, {}, own, exact=False))
                continue
            found = None if small is None else prove(small)
            if found is not None and found.keeps_apart:
                assert found.outputs == prove(provable(Tensor.view, args, {}, own, exact=False)).outputs, (sizes, args)
                kept += 1
    assert kept > 50


def test_gather_and_writes_by_condition_are_proven_smaller() -> None:
    index, condition = torch.zeros(7, 20, 5, dtype=torch.long), x(20) > 0
    for func, args in ((torch.gather, (x(20, 9), 2, index)), (Tensor.__setitem__, (x(20, 9), condition, 0.0))):
        reading = Reading(7, values=func is torch.gather)
        reading.read_call(args, {}, lambda tensor: Origin(RecordAxis(0), 1))
        small = provable_small(func, args, {}, reading)
        assert small is not None
        assert all(size in (4, (1,)) for leaf in small.leaves for size in leaf.sizes)
        assert prove(small).outputs == prove(provable(func, args, {}, reading, exact=False)).outputs == (RecordAxis(0),)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("func", [torch.lstm, torch.gru, torch.rnn_tanh], ids=lambda func: func.__name__)
def test_recurrent_functions_are_proven_at_smaller_sizes(func: Any, both_ways: bool) -> None:
    kinds = {torch.lstm: nn.LSTM, torch.gru: nn.GRU, torch.rnn_tanh: nn.RNN}
    cell = kinds[func](9, 8, num_layers=2, batch_first=True, bidirectional=both_ways)
    states = [torch.zeros(4 if both_ways else 2, 7, 8) for _ in range(2 if func is torch.lstm else 1)]
    hidden = tuple(states) if func is torch.lstm else states[0]
    args = (x(20, 9), hidden, cell._flat_weights, True, 2, 0.0, True, both_ways, True)
    reading = Reading(7)
    rows = {id(args[0]): RecordAxis(0), **{id(state): RecordAxis(1) for state in states}}
    reading.read_call(args, {}, lambda tensor: Origin(rows.get(id(tensor), PUBLIC), 1))
    small = provable_small(func, args, {}, reading)
    assert small is not None
    assert small.leaves[0].shape(67) == [67, 3, 2]
    assert prove(small).outputs == (RecordAxis(0), *[RecordAxis(1)] * len(states))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda kind: kind.__name__)
def test_as_many_layers_as_records(kind: Any) -> None:
    """The state [2, 2, 8] may follow the records along either axis; read along the first one it crashed torch."""
    cell = kind(9, 8, num_layers=2, batch_first=True)
    watch = RecordWatch(cell)
    for records in (2, 7, 2):
        batch = torch.randn(records, 5, 9)
        watch.open([(batch, RecordAxis(0))], records)
        watch.finish(cell(batch)[0].sum((1, 2)))
        assert not watch.is_open  # accepted
        watch.close()


def test_states_of_layers_that_are_a_divisor_of_the_records() -> None:
    """Public states [4, 1, 8] at 8 records: the proof cannot read their size 4 as rows of few records."""
    cell = nn.LSTM(9, 8, num_layers=2, batch_first=True, bidirectional=True)
    watch, tokens = RecordWatch(cell), torch.randn(1, 5, 9)
    for records in (8, 4, 2):
        batch = torch.randn(records, 16)
        watch.open([(batch, RecordAxis(0))], records)
        watch.finish((batch + cell(tokens)[0][0, 0]).sum(1))
        watch.close()


def test_a_number_of_records_behind_a_condition() -> None:
    """Random conditions are all false for five records in one of 32 cases."""
    records = x()
    for _ in range(100):
        call = (Tensor.__setitem__, (records * 1, records > 0, 7), {})
        reading = Reading(7)
        reading.read_call(call[1], {}, lambda tensor: Origin(RecordAxis(0), 1))
        assert not prove(provable(*call, reading, exact=False)).keeps_apart


def test_the_number_of_records_stays() -> None:
    for make in SPATIAL.values():
        func, args, kwargs = make()
        small = provable_small(func, args, kwargs, read(func, args, kwargs))
        assert small is not None
        assert small.leaves[0].shape(67)[0] % 67 == 0


@pytest.mark.parametrize(
    "func",
    [torch.roll, torch.topk, torch.gather, torch.fft.fft, torch.quantile, F.fold, torch.bucketize, torch.diff],
    ids=lambda func: func.__name__,
)
def test_sizes_that_may_matter_stay(func: Callable[..., Any]) -> None:
    assert func not in SIZE_FREE
    assert smaller(func, (x(20),), {}, [], [], ALL_FOLLOW, 7) is None


def test_no_function_of_another_library_is_proven_at_smaller_sizes() -> None:
    for func in SIZE_FREE | MOVES:
        module = getattr(func, "__module__", None) or "torch"
        assert module.split(".")[0] in ("torch", "_operator", "builtins"), func


def test_a_convolution_over_records_is_seen_at_smaller_sizes() -> None:
    """The records lie where a convolution looks for pixels."""
    assert place(lambda h: F.conv1d(h.t().unsqueeze(0), torch.ones(3, 20, 3), padding=1), x(20)) is MIXED
    assert place(lambda h: F.avg_pool1d(h.t(), 3, 1, 1), x(20)) is MIXED
    assert place(lambda h: F.group_norm(h.unsqueeze(0), 7), x(20)) == RecordAxis(1)
    assert place(lambda h: F.group_norm(h.unsqueeze(0), 1), x(20)) is MIXED


def test_calls_that_differ_in_irrelevant_sizes_are_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    proven: list[Any] = []

    def counted(call: Any, *args: Any) -> Any:
        proven.append(call.func)
        return prove(call, *args)

    monkeypatch.setattr(verdicts, "prove", counted)
    monkeypatch.setattr(verdicts, "_FORMS", {})
    for width in (9, 12, 30):
        place(lambda h, width=width: F.conv2d(h, torch.ones(5, width, 3, 3)), x(width, width, width))
    assert proven == [F.conv2d]


# Moves ----------------------------------------------------------------------------------------------------


def place(run: Callable[[Tensor], Tensor], batch: Tensor) -> Lineage | RecordAxis:
    watch = RecordWatch(nn.Linear(1, 1))
    watch.open([(batch, RecordAxis(0))], len(batch))
    try:
        result = run(batch)
        with watch.paused():
            return watch.table.find(result).lineage
    finally:
        watch.close()


MOVED: dict[str, tuple[Callable[[Tensor], Tensor], Lineage | RecordAxis]] = {
    "merged": (lambda h: h.reshape(-1, 2), RecordAxis(0)),
    "merged, minor": (lambda h: h.t().reshape(-1), RecordAxis(0, minor=True)),
    "turned": (lambda h: h.t().unsqueeze(1), RecordAxis(2)),
    "windows": (lambda h: h.unfold(1, 2, 1), RecordAxis(0)),
    "columns": (lambda h: h[:, 1::2, None], RecordAxis(0)),
    "patches": (lambda h: F.unfold(h.view(-1, 1, 2, 3), 2, padding=1), RecordAxis(0)),
    "bits": (lambda h: h.view(torch.int32), RecordAxis(0)),
    "whole numbers": (lambda h: h.to(torch.int8).flatten(), RecordAxis(0)),
    "torn": (lambda h: h.reshape(6, -1), MIXED),
    "one record": (lambda h: h[:1], MIXED),
    "all but one": (lambda h: h[1:], MIXED),
    "windows over records": (lambda h: h.unfold(0, 2, 1), MIXED),
    "backwards": (lambda h: h[torch.arange(6, -1, -1)], MIXED),
}


@pytest.mark.parametrize(("run", "expected"), MOVED.values(), ids=MOVED)
def test_moves_show_whose_entries_went_where(run: Callable[[Tensor], Tensor], expected: Any) -> None:
    assert place(run, x(6)) == expected


def test_a_move_that_is_none_is_proven_like_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that looks at entries is not taken for a move, whatever the list says."""
    monkeypatch.setattr(call_forms, "MOVES", MOVES | {torch.cummax, torch.flip, torch.mean})
    monkeypatch.setattr(verdicts, "_FORMS", {})
    assert place(lambda h: torch.cummax(h, 0).values, x(6)) is MIXED
    assert place(lambda h: torch.cummax(h, 1).values, x(6)) == RecordAxis(0)
    assert place(lambda h: torch.flip(h, (0,)), x(6)) is MIXED
    assert place(lambda h: torch.mean(h, 0), x(6)) is MIXED
