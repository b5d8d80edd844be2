"""Which tensors count as public: those that existed before a record was read, and those that the user declares."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import classifier, each, rows, train
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset

import discreet
from discreet import Private
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Recipe
from discreet.stages.sampling import Horizon, OwnLoader


class Stashing(Dataset[Any]):
    """A dataset that keeps a statistic of what it loads."""

    def __init__(self) -> None:
        self.x, self.y = rows(6).tensors
        self.sums: list[Tensor] = []
        self.total = torch.zeros(6)
        self.seen: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        STASH.append(self.x[index] * 2)
        return self.x[index], self.y[index]


STASH: list[Tensor] = []


def test_what_a_dataset_puts_aside_while_it_loads_is_not_public() -> None:
    STASH.clear()
    with pytest.raises(Refused, match="no watched call made"):
        train(body=lambda p, m, x, y: p.step(each(m(x - STASH[-1]), y)), data=Stashing())


def test_nor_what_it_puts_aside_at_construction() -> None:
    STASH.clear()
    with pytest.raises(Refused, match="a tensor of the dataset"):
        train(body=lambda p, m, x, y: p.step(each(m(x - STASH[0]), y)), data=Stashing())


def test_nor_what_it_adds_to_a_tensor_that_existed() -> None:
    total = torch.zeros(6)

    class Adding(Stashing):
        def __getitem__(self, index: int) -> Any:
            total.add_(self.x[index])
            return self.x[index], self.y[index]

    with pytest.raises(Refused, match=r"changed after the first batch|a tensor of the dataset"):
        train(body=lambda p, m, x, y: p.step(each(m(x - total), y)), data=Adding())


class Weighted(Stashing):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.ones(3)


def test_a_constant_of_the_dataset_has_words_of_its_own() -> None:
    data = Weighted()

    def losses(p: Private, m: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> bool:
        return p.step(F.cross_entropy(m(x), y, weight=weights, reduction="none"))

    with pytest.raises(Refused, match=r"a tensor of the dataset at .*discreet\.public\(tensor\)"):
        train(body=lambda p, m, x, y: losses(p, m, x, y, data.weights), data=data)
    train(body=lambda p, m, x, y: losses(p, m, x, y, discreet.public(data.weights)), data=data)


def test_records_in_a_dataset_of_datasets_are_not_public() -> None:
    parts = [rows(6), rows(6)]
    with pytest.raises(Refused, match="a tensor of the dataset"):
        train(
            body=lambda p, m, x, y: p.step(each(m(x - parts[1].tensors[0].mean(0)), y)),
            data=ConcatDataset([ConcatDataset(parts)]),
        )


def own_loop(batches: Any, body: Any, between: Any = None) -> Private:
    model = classifier()
    recipe = replace(Recipe(method="x", bounder=FlatClip(1.0)), sampling=OwnLoader())
    plan = recipe.bind(noise=1.0, horizon=Horizon.of(records=40, batch=10, steps=3), delta=1e-5)
    private = Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, None, streams=Streams.seeded(1))
    try:
        made = between() if between is not None else None
        for x, y in private.over(batches):
            body(private, model, x, y, made)
    finally:
        private.close()
    return private


def test_batches_that_are_still_to_come_are_not_public() -> None:
    x, y = rows(6).tensors
    batches = [(x[i : i + 10].clone(), y[i : i + 10].clone()) for i in (0, 10, 20)]
    with pytest.raises(Refused, match="a tensor of the dataset"):
        own_loop(batches, lambda p, m, x, y, made: p.step(each(m(x - batches[2][0].mean(0)), y)))


def test_what_a_generator_holds_is_not_public() -> None:
    held = {}

    def generated() -> Any:
        x, y = rows(6).tensors
        for i in (0, 10, 20):
            yield x[i : i + 10].clone(), y[i : i + 10].clone()

    source = generated()
    first = next(source)
    held["x"] = source.gi_frame.f_locals["x"]
    with pytest.raises(Refused, match="a tensor of the dataset"):
        own_loop(source, lambda p, m, x, y, made: p.step(each(m(x - held["x"].mean(0)), y)))
    assert len(first) == 2


def test_tensors_made_between_construction_and_loop_are_public() -> None:
    x, y = rows(6).tensors
    batches = [(x[i : i + 10].clone(), y[i : i + 10].clone()) for i in (0, 10, 20)]
    body = lambda p, m, x, y, made: p.step(each(m(x - made), y))  # noqa: E731
    assert own_loop(batches, body, between=lambda: torch.full((6,), 0.5)).updates == 3


# Declared -------------------------------------------------------------------------------------------------------


def distilling(*, declared: bool) -> Private:
    model = classifier()
    teacher = copy.deepcopy(model)
    if declared:
        discreet.public(teacher)

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        with torch.no_grad():
            target = teacher(x).softmax(1)
        losses = each(outputs, y) - 0.1 * (target * outputs.log_softmax(1)).sum(1)
        model.log = losses.mean().item()
        if private.step(losses):
            with torch.no_grad():
                for own, new in zip(teacher.parameters(), model.parameters(), strict=True):
                    own.lerp_(new, 0.1)

    return train(model, body, steps=4)


def test_an_entry_of_an_expanded_tensor_is_public() -> None:
    """Its memory has one number, and its stride is zero."""
    half = torch.full((1,), 0.5).expand(4)[:1]

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) * half)

    assert train(body=body).updates == 4


def test_a_teacher_is_public_if_it_is_declared() -> None:
    with pytest.raises(Refused, match=r"changed after the first batch.*discreet\.public\(tensor_or_module\)"):
        distilling(declared=False)
    assert distilling(declared=True).updates == 4


def test_a_declared_tensor_stays_public() -> None:
    average: dict[str, Tensor] = {}

    def kept(weight: Tensor) -> Tensor:
        average["weight"] = discreet.public(weight * 0.5)
        return average["weight"]

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        weight = average.get("weight")
        weight = kept(model.head.weight.detach()) if weight is None else weight
        if private.step(each(model(x), y) + 0.01 * F.linear(x, weight).square().sum(1)):
            kept(model.head.weight.detach())

    assert train(body=body, steps=4).updates == 4


def test_tensors_of_the_batch_cannot_be_declared() -> None:
    def by_mean(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        private.step(losses / discreet.public(losses.detach().mean()))

    def by_batch(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        discreet.public(x)
        private.step(each(model(x), y))

    for body in (by_mean, by_batch):
        with pytest.raises(Refused, match="a tensor that does not come from the records"):
            train(body=body)


def test_records_cannot_be_written_into_a_declared_tensor() -> None:
    centre = discreet.public(torch.zeros(6))

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x - centre), y)
        centre[:3].lerp_(x.mean(0)[:3], 0.1)
        private.step(losses)

    with pytest.raises(Refused, match="values of the records written"):
        train(body=body)


def test_declaring_a_module_is_no_word_for_others() -> None:
    discreet.public(nn.Linear(2, 2))
    with pytest.raises(Refused, match="changed after the first batch"):
        distilling(declared=False)


# torch.empty ----------------------------------------------------------------------------------------------------


def by_columns(own: Any, x: Tensor) -> Tensor:
    out = torch.empty(len(x), 6)
    out[:, 0] = x[:, 1]
    out[:, 1:4] = x[:, :3] * 2
    out[:, 4:].copy_(x[:, 4:])
    return out


def by_steps(own: Any, x: Tensor) -> Tensor:
    out = x.new_empty(6, len(x))
    out[0] = 0.5
    for i in range(1, 6):
        out[i] = torch.tanh(out[i - 1] + x[:, i])
    return out.t()


def public_rows(own: Any, x: Tensor) -> Tensor:
    table = torch.empty(6)
    table[0::2] = 1.0
    table[1::2] = torch.linspace(0, 1, 3)
    return x * table


@pytest.mark.parametrize("run", [by_columns, by_steps, public_rows], ids=lambda run: run.__name__)
def test_empty_memory_that_is_filled_by_slices_is_accepted(run: Any) -> None:
    assert train(classifier(run), fixed=False, steps=3).updates == 3


def half_filled(own: Any, x: Tensor) -> Tensor:
    out = torch.empty(len(x), 6)
    out[:, :5] = x[:, :5]
    return out


def filled_by_a_mask(own: Any, x: Tensor) -> Tensor:
    out = torch.empty(len(x), 6)
    out[x > 0] = 1.0
    return out


def filled_with_others(own: Any, x: Tensor) -> Tensor:
    out = torch.empty(len(x), 6)
    out[:, :3] = x[:, :3]
    out[:, 3:] = x.flip(0)[:, 3:]
    return out


def filled_in_another_order(own: Any, x: Tensor) -> Tensor:
    out = torch.empty(len(x), 6)
    out[:, :3] = x[:, :3]
    for i in range(len(x)):
        out[i, 3:] = x[len(x) - 1 - i, 3:]
    return out


@pytest.mark.parametrize("run", [half_filled, filled_by_a_mask, filled_with_others, filled_in_another_order])
def test_empty_memory_that_is_not_filled_properly_is_refused(run: Any) -> None:
    with pytest.raises(Refused, match=r"torch\.empty|flip at|indexing|write|records"):
        train(body=lambda p, m, x, y: p.step(each(m(run(None, x)), y)))


def test_a_trained_tensor_outside_of_the_model() -> None:
    """Its gradient would be the sum over the records, without bound and without noise."""
    centres = nn.Linear(3, 3)

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(centres(model(x)), y))

    with pytest.raises(Refused, match=r"of shape \[3, 3\] that needs a gradient and is not in the model"):
        train(body=body)
    assert centres.weight.grad is None
    centres.requires_grad_(False)
    assert train(body=body).progress.step == 4


def test_a_teacher_without_gradients_is_accepted() -> None:
    teacher = nn.Linear(6, 3)

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            wanted = teacher(x)
        private.step((model(x) - wanted).square().sum(1))

    assert train(body=body).progress.step == 4
