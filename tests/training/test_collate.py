"""A `collate_fn`, or a batched fetch, in which records meet is refused; one that treats them alike is accepted."""

from __future__ import annotations

import datetime
import math
import random
import re
from collections import UserDict, defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import loop
from discreet import Private, methods
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.stages.sampling import FixedSize
from discreet.training.collate import CollateAlike, CollateEach, OneByOne, _joined, check_apart, check_data_apart, kept
from discreet.training.loader import with_tensors as replace_tensors

RECORDS = [(torch.randn(4, generator=torch.Generator().manual_seed(i)), i % 2) for i in range(loop.RECORDS)]


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return len(RECORDS)

    def __getitem__(self, index: int) -> Any:
        return RECORDS[index]


def stacked(records: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in records]), torch.tensor([y for _, y in records])


def standardised(records: list[Any]) -> Any:
    x, y = stacked(records)
    return (x - x.mean(0)) / (x.std(0) + 1), y


def centred_by_numpy(records: list[Any]) -> Any:
    x, y = stacked(records)
    return x - torch.from_numpy(x.numpy().mean(0)), y


def mixup(records: list[Any]) -> Any:
    x, y = stacked(records)
    return 0.7 * x + 0.3 * x[torch.randperm(len(x))], y


def mixup_of_neighbours(records: list[Any]) -> Any:
    x, y = stacked(records)
    return x + 0.1 * x.roll(1, 0), y


def mixup_by_python(records: list[Any]) -> Any:
    others = random.sample(records, len(records))
    return stacked([(x + 0.5 * z, y) for (x, y), (z, _) in zip(records, others, strict=True)])


def with_a_mean(records: list[Any]) -> Any:
    x, y = stacked(records)
    return {"x": x, "y": y, "mean": x.mean(0)}


def with_a_list(records: list[Any]) -> Any:
    x, y = stacked(records)
    return x, y, [f"{float(one.sum() - x.mean()):.3f}" for one in x]


def sorted_by_value(records: list[Any]) -> Any:
    return stacked(sorted(records, key=lambda record: float(record[0][0])))


MIXING = [standardised, centred_by_numpy, mixup, mixup_of_neighbours, mixup_by_python, with_a_mean, with_a_list]


@pytest.mark.parametrize("collate", [*MIXING, sorted_by_value], ids=lambda one: one.__name__)
def test_mixing_is_refused_at_construction(collate: Any) -> None:
    line = f"{__file__}:{collate.__code__.co_firstlineno}"
    with pytest.raises(
        Refused, match=f"collate_fn at {re.escape(line)}.*move with the other records.*public constants"
    ):
        loop.private(dataset=Rows(), collate_fn=collate)


def test_a_partial_function_and_an_object_are_named() -> None:
    class Collator:
        def __call__(self, records: list[Any]) -> Any:
            return standardised(records)

    for collate in (partial(standardised), Collator()):
        with pytest.raises(Refused, match=re.escape(__file__) + r":\d+"):
            loop.private(dataset=Rows(), collate_fn=collate)


def padded_to_the_longest(records: list[Any]) -> Any:
    ids = nn.utils.rnn.pad_sequence([x[: 1 + int(y)] for x, y in records], batch_first=True)
    return ids, torch.tensor([y for _, y in records])


def test_padding_to_the_longest_is_refused_with_the_remedy() -> None:
    with pytest.raises(Refused, match=r"padding to the longest.*pad every record to one public length"):
        loop.private(dataset=Rows(), collate_fn=padded_to_the_longest)


# What is accepted -----------------------------------------------------------------------------------------------


def jittered(records: list[Any]) -> Any:
    x, y = stacked(records)
    return x + 0.1 * torch.randn_like(x), y


def jittered_one_by_one(records: list[Any]) -> Any:
    rows = [x + torch.from_numpy(np.random.normal(size=4)).float() * random.random() for x, _ in records]
    return torch.stack(rows), torch.tensor([y for _, y in records])


def rejecting(records: list[Any]) -> Any:
    """What a record draws depends on the record, and shifts the draws of the next."""
    rows = []
    for x, _ in records:
        noise = torch.randn(4)
        while float((noise * x).sum()) < 0:
            noise = torch.randn(4)
        rows.append(x + noise)
    return torch.stack(rows), torch.tensor([y for _, y in records])


def unrepeatable(records: list[Any]) -> Any:
    x, y = stacked(records)
    return x + torch.from_numpy(np.random.default_rng().normal(size=x.shape)).float(), y


def normalised_rows(records: list[Any]) -> Any:
    x, y = stacked(records)
    return F.normalize(x, dim=1), y


ACCEPTED = [stacked, jittered, jittered_one_by_one, rejecting, unrepeatable, normalised_rows]


@pytest.mark.parametrize("collate", ACCEPTED, ids=lambda one: one.__name__)
def test_functions_that_treat_records_alike_are_accepted(collate: Any) -> None:
    torch.manual_seed(0)
    run = loop.private(dataset=Rows(), collate_fn=collate)
    loop.train(run, most=2)
    assert run.updates == 2


def test_dictionaries_strings_and_none_are_accepted() -> None:
    def collate(records: list[Any]) -> Any:
        x, y = stacked(records)
        return {"x": x, "more": (y, [f"{int(label)}" for label in y], None), "scale": 2, "name": "rows"}

    run = loop.private(dataset=Rows(), collate_fn=collate, inputs=lambda batch: (batch["x"],))
    for batch in run:
        y, names, nothing = batch["more"]
        assert (len(names), nothing, batch["scale"]) == (len(y), None, 2)
        run.step(loop.losses(run.model, batch["x"], y))
        if run.progress.step == 2:
            break


class Named(dict[str, Any]):
    """A batch that is a dictionary with attributes."""

    length: int
    scale: Any


class Encoded(UserDict[str, Any]):
    """Like the BatchEncoding of a tokeniser."""

    def __init__(self, data: dict[str, Any], notes: Any = None) -> None:
        super().__init__(data)
        self.notes = notes


def test_classes_of_dictionaries_keep_their_type_and_attributes() -> None:
    def named(records: list[Any]) -> Named:
        x, y = stacked(records)
        batch = Named(x=x, y=y)
        batch.length, batch.scale = 4, x.abs().amax(1)
        return batch

    def encoded(records: list[Any]) -> Encoded:
        x, y = stacked(records)
        return Encoded({"x": x, "y": y}, notes=float(x.max()))

    for collate, kind in ((named, Named), (encoded, Encoded)):
        run = loop.private(dataset=Rows(), collate_fn=collate, inputs=lambda batch: (batch["x"],))
        for batch in run:
            assert type(batch) is kind
            if isinstance(batch, Named):
                assert batch.length == 4
                assert batch.scale.shape == (len(batch["x"]),)
            else:
                assert batch.notes is None  # it differs between records
            run.step(loop.losses(run.model, batch["x"], batch["y"]))
            if run.progress.step == 2:
                break


@dataclass
class Fields:
    x: Tensor
    y: Tensor


def test_an_attribute_of_the_whole_batch_is_refused() -> None:
    """Otherwise it would be that of one record, for all of them."""

    def in_a_dictionary(records: list[Any]) -> Any:
        x, y = stacked(records)
        batch = Named(x=x, y=y)
        batch.scale = float(x.max())
        return batch

    def beside_fields(records: list[Any]) -> Any:
        x, y = stacked(records)
        batch = Fields(x, y)
        batch.scale = float(x.max())  # type: ignore[attr-defined]
        return batch

    for collate in (in_a_dictionary, beside_fields):
        with pytest.raises(Refused, match=r"`scale` of (Named|Fields).*return it as an entry"):
            _joined([collate([record]) for record in RECORDS[:4]], collate(RECORDS[:1] * 2))
        with pytest.raises(Refused, match="entries move with the other records"):
            loop.private(dataset=Rows(), collate_fn=collate, inputs=lambda batch: (batch["x"],))


# The check itself -----------------------------------------------------------------------------------------------


def test_the_check_leaves_the_generators_as_they_were() -> None:
    state = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    check_apart(jittered_one_by_one, RECORDS[:6], "collate_fn")
    with pytest.raises(Refused):
        check_apart(mixup_by_python, RECORDS[:6], "collate_fn")
    assert torch.equal(torch.get_rng_state(), state[0])
    assert np.random.get_state()[1].tolist() == state[1]  # type: ignore[index]
    assert random.getstate() == state[2]


def test_the_check_spends_nothing_and_changes_no_record() -> None:
    def spoiling(records: list[Any]) -> Any:
        for x, _ in records:
            x.add_(1)
        return stacked(records)

    before = [x.clone() for x, _ in RECORDS]
    run: Private = loop.private(dataset=Rows(), collate_fn=spoiling)
    assert run.ledger.length == 0
    for (x, _), old in zip(RECORDS[1:], before[1:], strict=True):  # the first shows the shapes, as ever
        assert torch.equal(x, old)
    RECORDS[0][0].copy_(before[0])


def test_the_first_batch_is_checked_again() -> None:
    """Records that are equal show nothing at construction."""
    collate = CollateEach(standardised)
    same = [RECORDS[0]] * 6
    check_apart(standardised, same, "collate_fn")
    with pytest.raises(Refused, match="move with the other records"):
        collate(RECORDS[:3])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mixing_function_is_refused_in_workers(workers: int) -> None:
    class Late(Dataset[Any]):
        """Its first records are all alike."""

        def __len__(self) -> int:
            return loop.RECORDS

        def __getitem__(self, index: int) -> Any:
            return RECORDS[0 if index % (loop.RECORDS // 6 + 1) == 0 else index]

    run = loop.private(dataset=Late(), collate_fn=standardised, num_workers=workers)
    with pytest.raises(Refused, match="move with the other records"):
        loop.train(run)
    assert run.ledger.length == 0


class Fetched(Rows):
    """Records that are standardised when they are fetched together."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        x, y = standardised([RECORDS[number] for number in numbers])
        return list(zip(x, y, strict=True))


def test_a_batched_fetch_that_mixes_is_refused() -> None:
    with pytest.raises(Refused, match=r"__getitems__ at .*test_collate\.py:\d+"):
        loop.private(dataset=Fetched())
    loop.private(dataset=Subset(Rows(), range(50)))  # torch's own batched fetch


class Buffered:
    """A collate_fn that writes every batch to one array."""

    def __init__(self) -> None:
        self._rows = np.zeros((64, 4), dtype=np.float32)

    def __call__(self, records: list[Any]) -> Any:
        for row, (x, _) in zip(self._rows, records, strict=False):
            row[:] = x.numpy()
        return {"x": torch.from_numpy(self._rows[: len(records)]), "y": torch.tensor([y for _, y in records])}


def test_a_buffer_that_is_used_again_holds_no_other_record() -> None:
    """All rows were those of the first record, which moved the sum by 17 clips."""
    batch = CollateEach(Buffered())(RECORDS[:5])
    torch.testing.assert_close(batch["x"], torch.stack([x for x, _ in RECORDS[:5]]))


class Sequences(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(12, 4, generator=torch.Generator().manual_seed(index))


@pytest.mark.parametrize("kind", [list, tuple])
def test_records_as_long_as_the_batch_are_no_columns(kind: Any) -> None:
    """The mean over all records passed for that over columns, and one record moved the sum by 13 clips."""
    recipe = replace(methods.dp_sgd(clip=0.5), sampling=FixedSize(), relation=Neighbouring.REPLACE_ONE)
    options: Any = {"collate_fn": kind, "inputs": lambda batch: (torch.stack(list(batch)).mean(1),)}
    run = loop.private(which=loop.plan(recipe, records=12, batch=12), dataset=Sequences(), **options)

    def train() -> None:
        for batch in run:
            assert all(record.shape == (12, 4) for record in batch)
            run.step(run.model(torch.stack(list(batch)).mean(0))[:, 0])

    with closing(run), pytest.raises(Refused):
        train()


def test_lists_that_losses_do_not_use_are_accepted() -> None:
    def collate(records: list[Any]) -> Any:
        return (*stacked(records), [x.unsqueeze(1) for x, _ in records])

    run = loop.private(dataset=Rows(), collate_fn=collate)
    with closing(run):
        for x, y, columns in run:
            assert len(columns) == len(x)
            run.step(loop.losses(run.model, x, y))
    assert run.updates == loop.STEPS


ODD: dict[str, tuple[Any, Any]] = {
    "a fraction among whole numbers": (2**25 + 1, 0.5),
    "a tensor of another type": (torch.tensor(2**25 + 1), torch.tensor(0.5)),
    "an array of another type": (np.array([2**25 + 1]), np.array([0.5], np.float32)),
    "keys in another order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a key more": ({"a": 1}, {"a": 1, "b": 2}),
}


@pytest.mark.parametrize(("usual", "odd"), ODD.values(), ids=ODD)
def test_records_that_are_built_in_another_way(usual: Any, odd: Any) -> None:
    """The odd record decided the type, or the order, of all others: 5 to 7 clips for twelve records."""
    assert CollateAlike()([usual, usual]) is not None
    for records in ([usual, usual, odd], [odd, usual, usual]):
        with pytest.raises(Refused, match="records of one type, with the same keys"):
            CollateAlike()(records)


@pytest.mark.parametrize("name", ["a tensor of another type", "an array of another type", "keys in another order"])
def test_rows_of_a_collate_fn_that_are_built_in_another_way(name: str) -> None:
    usual, odd = ODD[name]
    with pytest.raises(Refused, match=r"records of one type|the same keys in every record, in one order"):
        CollateEach(default_collate)([usual] * 11 + [odd])  # behind those that `check_apart` looks at


# Records of classes of the user's --------------------------------------------------------------------------------


class Pair(NamedTuple):
    x: Tensor
    y: int


class Record:
    def __init__(self, x: Tensor, y: int) -> None:
        self.x, self.y = x, y


def named(x: Tensor, y: int) -> Named:
    record = Named(y=y)
    record.scale = x
    return record


OWN: dict[str, tuple[Any, Any]] = {
    "a tuple": (lambda x, y: (x, y), lambda batch: batch[0]),
    "a named tuple": (Pair, lambda batch: batch.x),
    "an object": (Record, lambda batch: batch.x),
    "a namespace": (lambda x, y: SimpleNamespace(x=x, y=y), lambda batch: batch.x),
    "a dataclass": (Fields, lambda batch: batch.x),
    "an attribute of a dictionary": (named, lambda batch: batch.scale),
    "a list in a namespace": (lambda x, y: SimpleNamespace(x=[x], y=y), lambda batch: batch.x[0]),
}


@pytest.mark.parametrize(("make", "get"), OWN.values(), ids=OWN)
def test_a_record_of_any_class_has_memory_of_its_own(make: Any, get: Any) -> None:
    """Named tuples and objects kept the buffer, which gave every row of a batch one record: 3 clips."""
    buffer = torch.ones(4)
    record = kept(make(buffer, 1))
    buffer.zero_()
    assert type(record) is type(make(buffer, 1))
    assert get(record).tolist() == [1.0] * 4


def test_one_object_that_is_filled_again_holds_no_other_record() -> None:
    """All rows were those of the last record: 31 clips."""

    class Refilled(Rows):
        record = Record(torch.zeros(4), 0)

        def __getitem__(self, index: int) -> Any:
            self.record.x, self.record.y = RECORDS[index]
            return self.record

    fetched = [OneByOne(Refilled())[index] for index in range(3)]
    assert [one.x.tolist() for one in fetched] == [x.tolist() for x, _ in RECORDS[:3]]


def test_a_record_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(Refused, match=r"_thread.lock, for which copy.deepcopy raises TypeError.*return tensors"):
        kept((torch.ones(1), Lock()))


class Standardised(NamedTuple("Standardised", [("x", Tensor), ("y", Any)])):
    """Its constructor standardises along the first axis: over a record, and over the records of a batch."""

    __slots__ = ()

    def __new__(cls, x: Tensor, y: Any) -> Self:
        return super().__new__(cls, x - x.mean(0), y)


class Filled(dict[str, Any]):
    def update(self, *args: Any, **entries: Any) -> None:
        dict.update(self, *args, **entries)
        self["x"] = self["x"] - self["x"].mean(0)


class Registered:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def centred(batch: list[Any], **_: Any) -> Tensor:
    rows = torch.stack([one.x for one in batch])
    return rows - rows.mean(0)


@pytest.mark.parametrize("make", [Standardised, lambda x, y: Filled(x=x, y=y), lambda x, y: (Registered(x), y)])
def test_code_of_the_records_classes_never_sees_a_batch(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`default_collate` runs constructors, and functions that users register, on all records: 3 clips."""
    monkeypatch.setitem(default_collate_fn_map, Registered, centred)
    records = [make(x, y) for x, y in RECORDS]
    with pytest.raises(Refused, match=r"a collation of types of your own.*move with the other records"):
        check_data_apart(records, None)


@pytest.mark.parametrize(
    "collate", [CollateAlike(), CollateEach(lambda rows: tuple.__new__(Standardised, stacked(rows)))]
)
def test_a_joined_batch_is_not_constructed_again(collate: Any) -> None:
    records = [Standardised(x, y) for x, y in RECORDS[:5]]
    batch = replace_tensors(collate(records), Tensor.clone)
    assert type(batch) is Standardised
    torch.testing.assert_close(batch.x, torch.stack([record.x for record in records]))


def test_a_registered_type_is_collated_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, Registered, lambda batch, **_: torch.stack([-one.x for one in batch]))
    x, y = CollateAlike()([(Registered(x), y) for x, y in RECORDS[:5]])
    torch.testing.assert_close(x, -torch.stack([x for x, _ in RECORDS[:5]]))
    assert y.tolist() == [y for _, y in RECORDS[:5]]


def with_scale(kind: type, scale: Any) -> Any:
    record = kind([*RECORDS[0]]) if issubclass(kind, list) else kind(zip("xy", RECORDS[0], strict=True))
    record.scale = scale
    return record


class Listed(list[Any]):
    scale: Any


@pytest.mark.parametrize("kind", [Named, Listed])
@pytest.mark.parametrize("scales", [(1.0, -1.0), ("a", "b"), (torch.ones(3), -torch.ones(3))])
def test_an_attribute_of_the_first_record_is_not_that_of_the_batch(kind: type, scales: tuple[Any, Any]) -> None:
    """`default_collate` copies the first record: 6 clips."""
    records = [with_scale(kind, scales[0]), with_scale(kind, scales[1])]
    with pytest.raises(Refused, match=r"a property of a record as an entry|`scale` of .* differs between records"):
        CollateAlike()(records)
    assert CollateAlike()([with_scale(kind, 1.0), with_scale(kind, 1.0)]).scale == 1.0


def test_the_default_of_a_dictionary_is_not_that_of_the_first_record() -> None:
    """Its `default_factory` is no entry and no attribute of Python's: 1.3 clips."""
    records = [defaultdict(partial(float, index), x=torch.ones(2)) for index in range(4)]
    with pytest.raises(Refused, match=r"move with the other records|`default_factory` of defaultdict"):
        CollateAlike()(records)
    assert CollateAlike()([defaultdict(list, x=torch.ones(2)) for _ in range(3)]).default_factory is list


class Equal:
    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    __hash__ = None  # type: ignore[assignment]


class Text(str):
    value: float


@pytest.mark.parametrize(
    ("first", "second"),
    [(-0.0, 0.0), (True, 1), (1.0, 1), (Equal(1), Equal(2)), (Text("a"), Text("a")), (-torch.zeros(3), torch.zeros(3))],
)
def test_constants_that_pass_for_equal_are_told_apart(first: Any, second: Any) -> None:
    """They became those of the first record: 5 to 7 clips."""
    values = iter([first, second, first])
    with pytest.raises(Refused, match=r"differ|without one row"):
        _joined([(torch.ones(1, 2), next(values)) for _ in range(2)], (torch.ones(2, 2), next(values)))


def test_equal_constants_of_common_types_are_accepted() -> None:
    values = (
        1,
        -0.0,
        math.nan,
        "a",
        None,
        torch.float32,
        np.float64(2),
        datetime.date(2020, 1, 1),
        Path("a"),
        (1, [2]),
    )
    rows = [(torch.ones(count, 2), kept(values)) for count in (1, 1, 2)]
    assert repr(_joined(rows[:2], rows[2])[1]) == repr(values)


def test_one_record_does_not_decide_the_strides_of_the_batch() -> None:
    """Beside one padded picture, `cat` made all contiguous that had their channels last: 4 clips."""
    last = torch.rand(1, 3, 5, 5).to(memory_format=torch.channels_last)
    other = torch.rand(1, 3, 5, 5)
    for rows in ([last, last], [last, other]):
        assert _joined(list(map(kept, rows)), torch.cat([last, last])).stride() == torch.rand(2, 3, 5, 5).stride()


def test_pictures_with_channels_last_are_accepted() -> None:
    """Rehearsals are contiguous, so that `x.contiguous()` was another call there."""

    def collate(records: list[Any]) -> Any:
        x, y = stacked(records)
        return x.view(-1, 1, 2, 2).expand(-1, 3, -1, -1).to(memory_format=torch.channels_last), y

    with closing(
        loop.private(dataset=Rows(), collate_fn=collate, inputs=lambda batch: (batch[0][:, 0].flatten(1),))
    ) as run:
        for x, y in run:
            run.step(loop.losses(run.model, x.contiguous()[:, 0].flatten(1), y))
    assert run.updates == loop.STEPS


def test_none_in_a_record_is_refused_in_words() -> None:
    with pytest.raises(Refused, match=r"records of tensors.*got a part that is None.*write a value in its place"):
        CollateAlike()([(torch.ones(2), None)] * 3)


class Batch:
    """As in PyTorch's documentation of `DataLoader`."""

    def __init__(self, records: list[Any]) -> None:
        self.x, self.y = stacked(records)


def test_a_batch_that_is_an_object_is_accepted() -> None:
    with closing(loop.private(dataset=Rows(), collate_fn=Batch, inputs=lambda batch: (batch.x,))) as run:
        for batch in run:
            run.step(loop.losses(run.model, batch.x, batch.y))
    assert run.updates == loop.STEPS
