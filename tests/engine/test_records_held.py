"""The tensors of a dataset are private wherever it holds them."""

from __future__ import annotations

import array
import contextvars
import functools
import importlib
import itertools
import sys
import types
import weakref
from abc import ABC
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import discreet
import loop
from discreet import methods
from discreet.core.check import Refused
from discreet.engine.dataset.held_tensors import KnownMemory, tensors_held_by
from discreet.stages.sampling import OwnLoader


class Slots:
    __slots__ = ("__hidden", "shown")

    def __init__(self, held: Any) -> None:
        self.shown, self.__hidden = 1, held


class Box:
    def __init__(self, held: Any) -> None:
        self.held = held


class Cycle:
    def __init__(self, held: Any) -> None:
        self.me, self.held = self, held


def _deep(held: Any) -> Any:
    for _ in range(50):
        held = Box([held])
    return held


def _rows(held: Any) -> Any:
    yield from held


TABLE = UNRELATED = torch.zeros(1)  # the first is set by tests


class ReadsGlobal:
    unrelated = 1

    def __getitem__(self, index: int) -> Any:
        return next(TABLE[i] for i in [index]), self.UNRELATED  # type: ignore[attr-defined]


def _reads_global(held: Any) -> Any:
    global TABLE
    TABLE = held
    return ReadsGlobal()


def _reads_global_by_a_function(held: Any) -> Any:
    return Box(_row_of(_reads_global(held)))


def _row_of(inner: Any) -> Any:
    return lambda index: inner[index]


def _generates_from_global(held: Any) -> Iterator[Any]:
    _reads_global(held)
    return (TABLE[index] for index in range(3))


def _class_attribute(held: Any) -> Any:
    class Holds:
        rows = held

    class Inherits(Holds):
        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

    return Inherits()


def _default(held: Any) -> Any:
    def row(index: int, rows: Any = held, *, more: Any = None) -> Any:
        return rows[index], more

    return Box(row)


@functools.lru_cache
def _cached(name: str) -> Any:
    return _TABLES[name]


_TABLES: dict[str, Any] = {}


def _in_a_cache(held: Any) -> Any:
    _cached.cache_clear()
    _TABLES["a"] = held
    _cached("a")
    _TABLES.clear()
    return lambda index: _cached("a")[index]


def _loader(held: Any) -> Any:
    return DataLoader(TensorDataset(held), batch_size=2)


STORE = types.ModuleType("store_of_records")
INNER = types.ModuleType("store_of_records.inner")
STORE.inner = INNER  # type: ignore[attr-defined]
KEPT: list[Any] = []


class Holder(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Identity())
        self.inner[0].register_buffer("rows", held)


class Attribute(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.rows = [held]


def _in_store(held: Any) -> Any:
    STORE.rows, STORE.public = held, UNRELATED  # type: ignore[attr-defined]
    INNER.rows, INNER.public = held, UNRELATED  # type: ignore[attr-defined]
    sys.modules.update({"store_of_records": STORE, "store_of_records.inner": INNER})
    return STORE


def _module_of_closure(held: Any) -> Any:
    store = _in_store(held)
    return lambda index: store.rows[index]


def _module_of_global(held: Any) -> Any:
    _in_store(held)
    return Box(lambda index: STORE.inner.rows[index])


def _imports(held: Any) -> Any:
    _in_store(held)

    def row(index: int) -> Any:
        import store_of_records  # type: ignore[import-not-found]

        return store_of_records.rows[index]

    return row


def _imports_inner(held: Any) -> Any:
    _in_store(held)

    def row(index: int) -> Any:
        import store_of_records.inner as inner  # type: ignore[import-not-found]

        return (lambda: inner.rows[index])()

    return row


def _imports_a_name(held: Any) -> Any:
    _in_store(held)

    def row(index: int) -> Any:
        from store_of_records.inner import missing, rows  # type: ignore[import-not-found]

        return rows[index] + missing

    return row


def _in_context(held: Any) -> Any:
    variable = contextvars.ContextVar[Any]("rows")
    variable.set(held)
    return lambda index: variable.get()[index]


def _weakly(refer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def made(held: Any) -> Any:
        KEPT[:] = [held]
        return Box(refer(held))

    return made


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "subsets": lambda t: Subset(Subset(Subset(TensorDataset(t), range(3)), range(3)), range(2)),
    "concatenated": lambda t: ConcatDataset([Subset(TensorDataset(t), range(2)), TensorDataset(torch.zeros(1))]),
    "slots": Slots,
    "mapping": lambda t: {"a": ({"b": [t]},)},
    "set": lambda t: frozenset([t]),
    "cycle": Cycle,
    "deep": _deep,
    "objects": lambda t: np.array([None, Box(t)], dtype=object),
    "generator": _rows,
    "global": _reads_global,
    "global, by a function": _reads_global_by_a_function,
    "global, by a generator": _generates_from_global,
    "class attribute": _class_attribute,
    "closure": lambda t: Box(lambda index: t[index]),
    "default": _default,
    "partial": lambda t: Box(functools.partial(lambda rows, index: rows[index], t)),
    "partial, by name": lambda t: functools.partial(max, key=t),
    "bound method": lambda t: Box(TensorDataset(t).__getitem__),
    "bound method of C": lambda t: [t].__getitem__,
    "cache": _in_a_cache,
    "islice": lambda t: itertools.islice(_loader(t), 9),
    "map": lambda t: map(tuple, _loader(t)),
    "zip": lambda t: (batch for batch, _ in zip(_loader(t), itertools.count(), strict=False)),
    "enumerate": lambda t: enumerate(_loader(t)),
    "chain": lambda t: itertools.chain(_loader(t), _loader(t)),
    "cycle of C": lambda t: itertools.cycle(iter([t])),
    "module, closed over": _module_of_closure,
    "module inside a module": _module_of_global,
    "import": _imports,
    "import as": _imports_inner,
    "import of a name": _imports_a_name,
    "nn.Module": lambda t: Box(Holder(t)),
    "attribute of an nn.Module": Attribute,
    "script": lambda t: torch.jit.script(Holder(t)),
    "weak reference": _weakly(weakref.ref),
    "proxy": _weakly(weakref.proxy),
    "weak set": _weakly(lambda t: weakref.WeakSet([t])),
    "context": _in_context,
    "storage": lambda t: Box(t.untyped_storage()),
    "memory": lambda t: Box(memoryview(t.numpy())[::2]),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", WRAPPERS)
def test_tensors_are_found_at_any_depth(name: str) -> None:
    tensor, other = torch.ones(3, 2), torch.ones(3, 2)
    found = tensors_held_by(WRAPPERS[name](tensor), [tensor, other])
    assert any(one is tensor for one in found)
    assert not any(one is other for one in found)
    assert not any(one is UNRELATED for one in found)  # a global that no code of the dataset reads


def test_tensors_in_the_memory_of_an_array_are_found() -> None:
    array = np.ones((6, 4), dtype=np.float32)
    alias, part, other = torch.from_numpy(array), torch.from_numpy(array[2:, ::-1].copy()), torch.ones(6, 4)
    for held in (array, array[1:3], array[::-1], torch.from_numpy(array)[2]):
        found = tensors_held_by(Box(Box(Box(Box(held)))), [alias, part, other])
        assert any(one is alias for one in found)
        assert not any(one is part or one is other for one in found)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize(
    "make", [bytes, bytearray, lambda raw: array.array("f", raw)], ids=["bytes", "bytearray", "array"]
)
def test_tensors_in_the_memory_of_a_buffer_are_found(make: Callable[[bytes], Any]) -> None:
    held, other = (make(np.ones(50, dtype=np.float32).tobytes()) for _ in range(2))
    tensors = [torch.frombuffer(one, dtype=torch.float32) for one in (held, other)]
    found = tensors_held_by(Box([held]), tensors)
    assert [one is tensors[0] for one in found] == [True]


@pytest.mark.parametrize(
    "row",
    [
        "globals()['rows'][index]",
        "eval('rows')[index]",
        "sys.modules['store_of_records'].rows",
        "sys.modules.get('store_of_records').rows",
        "importlib.import_module('store_of_records').rows",
        "__import__('store_of_records').rows",
        "eval('store.rows')",
        "getattr(store, 'rows')",
        "vars(store)['rows']",
    ],
)
def test_names_that_are_text(row: str) -> None:
    tensor, other = torch.ones(3, 2), torch.ones(3, 2)
    scope = {"sys": sys, "importlib": importlib, "store": _in_store(tensor), "torch": torch, "np": np}
    if "store" not in row:
        scope["rows"] = tensor
    found = tensors_held_by(Box(eval(f"lambda index: {row}", scope)), [tensor, other])
    assert any(one is tensor for one in found)
    assert not any(one is other for one in found)


class Abstract(ABC):  # noqa: B024
    def __getitem__(self, index: int) -> Any:
        return vars(self), locals(), self.eval(), np.float32(STORE.inner.rows[index]), STORE.rows.sum()  # type: ignore[attr-defined]


class Compared:
    def reads(self) -> Any:
        return UNRELATED


def test_what_stands_beside_what_the_code_names_stays_public() -> None:
    """In a module that it reads other names of, in the model that is trained, and in classes that Python refers to."""
    _in_store(torch.ones(3))
    assert not isinstance(Compared(), Abstract)
    model = nn.Sequential(nn.Linear(2, 2), Attribute(torch.ones(2)))
    data: Any = Abstract()
    data.model, data.part = model, Box(model[1])
    private = tensors_held_by(data, [], model)
    assert any(one is STORE.rows for one in private)
    public = [UNRELATED, model[0].weight, model[1].rows[0]]
    assert not any(one is other for one in private for other in public)


def test_what_the_engine_refers_to_is_not_the_datas() -> None:
    tensor = torch.ones(3)
    assert not tensors_held_by([KnownMemory([tensor])], [tensor])


@pytest.mark.parametrize(
    "record_of", [lambda x: x, lambda x: {"x": [x]}, Box, Slots, Cycle, lambda x: Slots(Box((x,)))]
)
def test_what_a_record_is_a_view_of_is_found_once(record_of: Callable[[Tensor], Any]) -> None:
    table, other = torch.ones(5, 3), torch.ones(3)
    known = KnownMemory([table, other])
    assert [one is table for one in known.taken_by(record_of(table[2]))] == [True]
    assert known.taken_by(record_of(table[1])) == []


class FromArrays(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.x[index]), self.y[index]


@pytest.mark.parametrize("by_array", [False, True])
def test_the_whole_data_in_the_losses_is_refused(by_array: bool) -> None:
    x, y = loop.data().tensors
    everything = range(len(x))
    inner = FromArrays(x.numpy(), y) if by_array else TensorDataset(x, y)
    data = Subset(Subset(Subset(inner, everything), everything), everything)
    table = torch.from_numpy(x.numpy()) if by_array else x
    with pytest.raises(Refused, match="each record stands alone"):
        loop.train_with(data, lambda rows: rows / table.abs().max())


def test_tensors_beside_the_data_stay_public() -> None:
    x, y = loop.data().tensors
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
    data = Subset(Subset(TensorDataset(x, y), range(60)), range(60))
    assert loop.train_with(data, lambda rows: rows / scale) == loop.STEPS


class Settings(Dataset[tuple[Tensor, Tensor]]):
    """Reads a module of settings in which public tensors are, and the model."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.data = model, loop.data()

    def __len__(self) -> int:
        return loop.RECORDS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rows, labels = self.data[index]
        return rows.clone() * STORE.factor + torch.zeros(4) * np.pi, labels  # type: ignore[attr-defined]


def test_public_tensors_of_a_module_of_settings_stay_public(monkeypatch: pytest.MonkeyPatch) -> None:
    scale, model = torch.tensor([1.0, 2.0, 3.0, 4.0]), loop.model()
    monkeypatch.setattr(STORE, "factor", torch.tensor(1.0), raising=False)
    monkeypatch.setattr(STORE, "scale", scale, raising=False)
    assert loop.train_with(Settings(model), lambda rows: rows / scale, net=model) == loop.STEPS
    with pytest.raises(Refused, match="each record stands alone"):
        loop.train_with(Settings(model), lambda rows: rows * STORE.factor)  # type: ignore[attr-defined]


def test_globals_that_the_dataset_does_not_read_stay_public() -> None:
    global TABLE
    TABLE = loop.data().tensors[0]
    labels = loop.data().tensors[1]

    class Labelled(ReadsGlobal):
        UNRELATED = 1

        def __len__(self) -> int:
            return loop.RECORDS

        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[0], labels[index]

    assert loop.train_with(Labelled(), lambda rows: rows - UNRELATED) == loop.STEPS
    with pytest.raises(Refused, match="each record stands alone"):
        loop.train_with(Labelled(), lambda rows: rows - TABLE.mean(0))


class Listed(FromArrays):
    """Its records are copies."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index].clone(), self.y[index].clone()


HELD = r"a model that holds no records.* got 0\.bank in the memory of a tensor that the dataset holds"
BANKS: dict[str, Callable[[nn.Module, Tensor], None]] = {
    "buffer": lambda layer, x: layer.register_buffer("bank", x),
    "view": lambda layer, x: layer.register_buffer("bank", x[:, 1:]),
    "memory of an array": lambda layer, x: layer.register_buffer("bank", torch.from_numpy(x.numpy())),
    "frozen parameter": lambda layer, x: layer.register_parameter("bank", nn.Parameter(x, requires_grad=False)),
    "trained parameter": lambda layer, x: layer.register_parameter("bank", nn.Parameter(x[:3])),
}


@pytest.mark.parametrize("gives_views", [True, False])
@pytest.mark.parametrize("name", BANKS)
def test_a_model_that_holds_the_data_is_refused(name: str, gives_views: bool) -> None:
    """Centring by a buffer that was the data moved the sum of twenty records by 3.2 clips, prototypes by 5.2."""
    x, y = loop.data().tensors
    data: Any = FromArrays(x.numpy(), y) if gives_views else Listed(x, y)
    net = loop.model()
    BANKS[name](net[0], x)
    with pytest.raises(Refused, match=HELD):
        loop.train_with(data, lambda rows: rows, net=net)


def test_a_tensor_of_the_dataset_in_the_model_may_be_declared() -> None:
    """Vectors of a vocabulary that the dataset holds."""
    data: Any = loop.data()
    data.vectors = torch.ones(5, 3)
    net = loop.model()
    net[0].vectors = nn.Embedding.from_pretrained(data.vectors)
    with pytest.raises(Refused, match=r"got 0\.vectors\.weight in the memory"):
        loop.train_with(data, lambda rows: rows, net=net)
    discreet.public(data.vectors)
    assert loop.train_with(data, lambda rows: rows, net=net) == loop.STEPS


class Wrapper(nn.Module):
    """Names what is in the model, as wrappers for several processes do."""

    __module__ = "torch.nn.parallel.distributed"

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside, self.held = inside, list(inside.buffers())


class Trainer:
    """Gives batches by a method of its own, beside the model and the optimizer."""

    def __init__(self) -> None:
        self.data, net = loop.data(), loop.model()
        net.register_buffer("scale", torch.ones(4))
        which = loop.plan(methods.dp_sgd(clip=0.5).using(sampling=OwnLoader()))
        self.run = loop.private(net, which, dataset=None)
        self.model, self.optimizer = Wrapper(net), self.run.optimizer

    def batches(self) -> Iterator[Any]:
        yield self.data[:12]
        yield self.data[12:24]


def test_a_loader_may_know_the_model_and_its_optimizer() -> None:
    trainer = Trainer()
    for x, y in trainer.run.over(trainer.batches()):
        trainer.run.step(loop.losses(trainer.run.model, x * trainer.run.model.scale, y))
    assert trainer.run.progress.step
