"""Losses that depend on the number of records are refused before anything is released."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from steps import classifier, each, rows, train
from torch import Tensor

import discreet
from discreet import Private
from discreet.accounting import ledger
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.engine.record_watch import RecordWatch
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Recipe
from discreet.stages.sampling import FullBatch, Horizon, OwnLoader

Change = Callable[[Tensor, Tensor], Tensor]


def written(losses: Tensor, x: Tensor) -> Tensor:
    scale = torch.zeros(6)
    scale[:] = len(x)
    return losses * scale[0]


def written_to_records(losses: Tensor, x: Tensor) -> Tensor:
    other = losses * 1
    other[other > -1] = len(x)
    return losses + other


DIVISIONS: dict[str, Change] = {
    "len": lambda losses, x: losses / len(x),
    "shape": lambda losses, x: losses / x.shape[0],
    "inverse": lambda losses, x: losses * (1 / len(x)),
    "root": lambda losses, x: losses * len(x) ** -0.5,
    "log": lambda losses, x: losses / math.log(len(x)),
    "log of another": lambda losses, x: losses / math.log(len(x) + 3),
    "one less": lambda losses, x: losses / (len(x) - 0.5),
    "affine": lambda losses, x: losses * (1 - len(x) / 1000),
    "power": lambda losses, x: losses * 0.99 ** len(x),
    "exponent": lambda losses, x: losses ** (1 + 1 / len(x)),
    "table": lambda losses, x: losses * (1.0 if len(x) > 9 else 0.5),
    "all entries": lambda losses, x: losses / x.numel(),
    "sum of ones": lambda losses, x: losses / torch.ones(len(x)).sum(),
    "tensor": lambda losses, x: losses / torch.tensor(len(x)),
    "shape as tensor": lambda losses, x: losses / torch.tensor(x.shape)[0],
    "full": lambda losses, x: losses / torch.full((), len(x)),
    "rows of full": lambda losses, x: losses * torch.full((len(x),), float(len(x))),
    "new_full": lambda losses, x: losses * x.new_full((len(x),), 1 / len(x)),
    "last place": lambda losses, x: losses / (torch.arange(len(x))[-1] + 1),
    "last place with axes": lambda losses, x: losses / (torch.arange(len(x))[:, None][-1, 0] + 1),
    "first of ones": lambda losses, x: losses * F.normalize(torch.ones(len(x)), dim=0)[:1],
    "first of a spread sum": lambda losses, x: losses * torch.ones(len(x)).sum().expand(len(x))[:1],
    "entry of a table": lambda losses, x: losses * torch.linspace(1, 2, 99)[len(x)],
    "sum of squares": lambda losses, x: losses / torch.ones(len(x) ** 2).sum(),
    "softmax of zeros": lambda losses, x: losses * torch.zeros(len(x)).softmax(0),
    "normalised ones": lambda losses, x: losses * F.normalize(torch.ones(len(x)), dim=0),
    "trace": lambda losses, x: losses * torch.eye(len(x)).trace(),
    "slope": lambda losses, x: F.leaky_relu(-losses, len(x)),
    "clamp": lambda losses, x: losses.clamp(max=float(len(x))),
    "written": written,
    "written to records": written_to_records,
}


@pytest.mark.parametrize("change", DIVISIONS.values(), ids=DIVISIONS.keys())
def test_the_first_step_is_not_released(change: Change) -> None:
    """Batches of one size, and one step."""
    steps: list[bool] = []

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        steps.append(private.step(change(each(model(x), y), x)))

    with pytest.raises(Refused, match=r"same calls with the same numbers|the number of records"):
        train(body=body, steps=1)
    assert not any(steps)


def test_in_forward_too() -> None:
    with pytest.raises(Refused, match=r"number of records|same calls with the same numbers"):
        train(classifier(lambda own, x: x / len(x)), steps=1)


def in_augment(batch: Any) -> Any:
    x, y = batch
    return x * (1 / len(x)), y


def test_in_augment_too() -> None:
    with pytest.raises(Refused, match="same calls with the same numbers"):
        train(augment=in_augment, steps=1)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("micro_batch", [2, 5, 100])
def test_with_views_and_small_micro_batches(views: int, micro_batch: int) -> None:
    body = lambda private, model, x, y: private.step(each(model(x), y) / len(x))  # noqa: E731
    with pytest.raises(Refused, match="same calls with the same numbers"):
        train(body=body, steps=1, views=views, micro_batch=micro_batch)


def full_batch(records: int, micro_batch: int, change: Change) -> Private:
    model = classifier()
    recipe = Recipe(method="x", bounder=FlatClip(1.0)).using(sampling=FullBatch())
    plan = recipe.bind(noise=1.0, horizon=Horizon.of(records=records, batch=records, steps=2), delta=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = Private(
        model, optimizer, plan, rows(6, records=records), micro_batch=micro_batch, streams=Streams.seeded(1)
    )
    try:
        for x, y in private:
            private.step(change(each(model(x), y), x))
    finally:
        private.close()
    return private


def test_a_micro_batch_of_one_record_is_compared() -> None:
    """Two records, then one: the divisor differs, and one record moves the sum by 1.5 clips."""
    with pytest.raises(Refused, match="same calls with the same numbers"):
        full_batch(3, 2, DIVISIONS["len"])


def test_the_full_batch_is_rehearsed() -> None:
    with pytest.raises(Refused, match="same calls with the same numbers"):
        full_batch(20, 100, DIVISIONS["len"])
    assert full_batch(20, 100, lambda losses, x: losses).updates == 2


def test_micro_batches_of_one_record_have_nothing_to_divide_by() -> None:
    assert full_batch(5, 1, DIVISIONS["len"]).updates == 2


MEAN = np.zeros(6, dtype=np.float32)  # state that a loop keeps from one batch to the next


def by_an_array(losses: Tensor, x: Tensor) -> Tensor:
    return losses * x.new_tensor(MEAN).sum()


def by_a_function(losses: Tensor, x: Tensor) -> Tensor:
    scale = x.detach().clone()
    scale.apply_(lambda value: float(MEAN[0]))
    return losses * scale[:, 0]


@pytest.mark.parametrize("change", [by_an_array, by_a_function])
def test_micro_batches_of_one_record_bring_nothing_of_earlier_ones(change: Change) -> None:
    """One record moved the sum by 13 clips, through the moving average that later batches subtract."""
    with pytest.raises(Refused, match="each record stands alone"):
        full_batch(5, 1, change)


def second_mean(losses: Tensor, x: Tensor) -> Tensor:
    """Over columns, or for one record over rows."""
    return losses * x.view(-1, 1, 2, 3)[..., :2].squeeze().mean(1).view(-1, 2)[:, 0]


def last_mean(losses: Tensor, x: Tensor) -> Tensor:
    return losses * x.view(-1, 1, 2, 3)[..., :2].squeeze().relu().mean(-2).view(-1, 2)[:, 0]


def test_a_record_that_loses_its_axis_when_it_is_alone() -> None:
    """`squeeze()` drops the axis of one record: axis 1 is then another one, and one record moves the sum by 1.6."""
    with pytest.raises(Refused, match=r"lost the axis of its one record.*squeeze\(-1\)"):
        full_batch(5, 4, second_mean)
    assert full_batch(5, 4, last_mean).updates == 2
    assert full_batch(8, 4, second_mean).updates == 2


def share_of_columns(losses: Tensor, x: Tensor) -> Tensor:
    """Sizes (N, 1, 6); for one record (6, 1), whose last axis has one entry."""
    return losses * x.squeeze().unsqueeze(1).softmax(-1).view(-1, 6)[:, 0]


def share_of_one(losses: Tensor, x: Tensor) -> Tensor:
    """Sizes (N, 1, 6); for one record (1, 6), whose second axis is another one."""
    return losses * x.unsqueeze(1).squeeze(0).softmax(1).view(-1, 6)[:, 0]


def share_before_the_record(losses: Tensor, x: Tensor) -> Tensor:
    """Sizes (3, 2, N, 1); for one record the third axis from the end is the first."""
    turned = x.view(-1, 2, 3, 1).permute(2, 1, 0, 3).squeeze(2)
    return losses * turned.softmax(-3).view(3, 2, -1, 1)[0, 0, :, 0]


@pytest.mark.parametrize("change", [share_of_columns, share_of_one, share_before_the_record])
def test_axes_that_take_the_place_of_another_for_one_record(change: Change) -> None:
    """The share of another axis is 1 where it should not be: one record moves the sum by up to 3 clips."""
    with pytest.raises(Refused, match=r"for one record|lost the axis of its one record"):
        full_batch(5, 4, change)
    assert full_batch(8, 4, change).updates == 2


# The user's own loader ----------------------------------------------------------------------------------------


def over(batches: Any, body: Any, steps: int = 2) -> tuple[Private, list[int]]:
    model = classifier()
    recipe = replace(Recipe(method="x", bounder=FlatClip(1.0)), sampling=OwnLoader())
    plan = recipe.bind(noise=1.0, horizon=Horizon.of(records=40, batch=10, steps=steps), delta=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = Private(model, optimizer, plan, None, streams=Streams.seeded(1))
    sizes = []
    try:
        for batch in private.over(batches):
            sizes.append(len(batch[0]))
            body(private, model, *batch)
    finally:
        private.close()
    return private, sizes


def own_batches(count: int = 2) -> list[Any]:
    x, y = rows(6).tensors
    return [(x[i * 10 : i * 10 + 10], y[i * 10 : i * 10 + 10]) for i in range(count)]


def test_an_own_loader_is_rehearsed() -> None:
    private, sizes = over(own_batches(), lambda p, m, x, y: p.step(each(m(x), y)))
    assert private.updates == 2
    assert sizes == [14, 9, 10, 10]
    with pytest.raises(Refused, match="same calls with the same numbers"):
        over(own_batches(), lambda p, m, x, y: p.step(each(m(x), y) / len(x)), steps=1)


def test_batches_with_names_are_rehearsed() -> None:
    batches = [(x, y, ["name"] * len(x)) for x, y in own_batches()]
    private, sizes = over(batches, lambda p, m, x, y, names: p.step(each(m(x), y)))
    assert private.updates == 2
    assert sizes == [14, 9, 10, 10]


# What may change ----------------------------------------------------------------------------------------------


def drawn_by_python(private: Any, model: Any, x: Tensor, y: Tensor, said: Any) -> None:
    private.step(each(model(x * said(random.uniform(0.9, 1.1))), y))


def drawn_by_numpy(private: Any, model: Any, x: Tensor, y: Tensor, said: Any) -> None:
    private.step(each(model(x * said(float(np.random.randn()))), y))


def drawn_by_torch(private: Any, model: Any, x: Tensor, y: Tensor, said: Any) -> None:
    private.step(each(model(x * said(int(torch.randint(1, 1000, ())))), y))


def flipped(private: Any, model: Any, x: Tensor, y: Tensor, said: Any) -> None:
    model.count = getattr(model, "count", 0) + 1
    private.step(each(model(x.flip(1) if said(model.count % 2 == 0) else x), y))


def cropped(private: Any, model: Any, x: Tensor, y: Tensor, said: Any) -> None:
    model.count = getattr(model, "count", 0) + 1
    start = said(model.count % 3)
    private.step(each(model(F.pad(x[:, start : said(start + 4)], (1, 1))), y))


def scheduled(private: Any, model: Any, x: Tensor, y: Tensor, said: Any) -> None:
    model.count = getattr(model, "count", 0) + 1
    private.step(each(model(x), y) * said(math.cos(model.count / 10)))


CHANGING = [drawn_by_python, drawn_by_numpy, drawn_by_torch, flipped, cropped, scheduled]


@pytest.mark.parametrize("body", CHANGING, ids=lambda body: body.__name__)
def test_what_changes_from_batch_to_batch_must_be_declared(body: Any) -> None:
    """Where a number or a choice comes from cannot be seen: the user says that it is public."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    assert train(body=lambda *own: body(*own, discreet.public), fixed=False, steps=5).updates == 5
    with pytest.raises(Refused, match=r"same calls with the same numbers.*discreet\.public"):
        train(body=lambda *own: body(*own, lambda value: value), fixed=False, steps=5)


def declared(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    model.count = getattr(model, "count", 0) + 1
    private.step(each(model(x), y) * discreet.public(model.count))


def reshaped(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    h = model(x).view(len(x), 3, 1).expand(len(x), 3, 2).reshape(len(x) * 3, 2)
    weights = torch.ones(len(x)) * 0.5 + torch.zeros(1).expand(len(x))
    private.step(each(h.view(len(x), 3, 2).mean(2), y) * weights + x.new_zeros(len(x)))


def indexed(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    outputs = model(x)
    losses = -outputs.log_softmax(1)[torch.arange(len(x)), y]
    private.step(losses + torch.full((len(x),), 0.5)[: len(x)])


def indexed_as_in_transformers(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    places, keys = torch.arange(len(x))[:, None, None], torch.arange(3)[None, None]
    private.step(each(model(x)[places, keys].squeeze(1), y))


def lengths_that_are_multiples_of_the_batch(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    """Numbers of a public table are multiples of several sizes of a batch by chance."""
    table = torch.linspace(0.5, 1.0, 120)
    scale = table[:60].mean() + table.new_ones(()) + table.view(2, 60)[:, :24].amax(1).mean()
    private.step(each(model(x), y) * scale)


def first_of_equal_rows(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    """As prompt tuning of peft: the tokens are spread over the records, and those of the first are taken."""
    row = torch.linspace(0.5, 1.0, 3).unsqueeze(0).expand(len(x), -1).to(x.device)[:1]
    private.step(each(model(x) * row.repeat(len(x), 1), y))


INNOCENT = [declared, reshaped, indexed, indexed_as_in_transformers, first_of_equal_rows]
INNOCENT += [lengths_that_are_multiples_of_the_batch]


@pytest.mark.parametrize("body", INNOCENT, ids=lambda body: body.__name__)
def test_what_does_not_follow_the_batch_is_accepted(body: Any) -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    assert train(body=body, fixed=False, steps=5).updates == 5


def test_the_released_sum_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearsals add nothing."""

    def noiseless(*, rehearsed: bool) -> list[Tensor]:
        model = classifier()
        recipe = Recipe(method="x", bounder=FlatClip(1.0)).using(sampling=FullBatch())
        plan = recipe.bind(noise=1e-9, horizon=Horizon.of(records=21, batch=21, steps=1), delta=1e-5)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        private = Private(model, optimizer, plan, rows(6, records=21), streams=Streams.seeded(1))
        if not rehearsed:
            monkeypatch.setattr(RecordWatch, "needs_rehearsal", property(lambda watch: False))
        sizes = []
        for x, y in private:
            sizes.append(len(x))
            private.step(each(model(x), y))
        private.close()
        assert sizes == ([14, 9, 21] if rehearsed else [21])
        return [parameter.detach() for parameter in model.parameters()]

    after = noiseless(rehearsed=True)
    for one, other in zip(noiseless(rehearsed=False), after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_declared_choice_is_compared_for_two_sizes() -> None:
    """A new way to make losses is rehearsed, although batches have one size."""
    count = [0]

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        if discreet.public(private.progress.step > 1):
            losses = losses.tanh() / len(x)
        count[0] += private.step(losses)

    with pytest.raises(Refused, match="same calls with the same numbers"):
        train(body=body, steps=6)
    assert count[0] == 2  # two innocent steps, and none with the new losses


def test_a_batch_with_new_losses_is_given_again() -> None:
    """The records of the batch count once."""
    sizes: list[list[int]] = [[]]

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        if discreet.public(private.progress.step > 1):
            losses = losses.tanh()
        sizes[-1].append(len(x))
        if private.step(losses):
            sizes.append([])

    assert train(body=body, steps=5).updates == 5
    assert [sum(own) for own in sizes[:-1]] == [35, 12, 47, 12, 12]
    assert sizes[2] == [12, 14, 9, 12]


def test_declared_values_are_named_in_the_ledger_and_the_certificate(tmp_path: Path) -> None:
    """Each line once, with the first charge after it."""

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y) * discreet.public(1.0 + private.progress.step)
        if discreet.public(private.progress.step >= 2):
            losses = losses.tanh()
        private.step(losses)

    file = tmp_path / "ledger.jsonl"
    private = train(body=body, steps=4, ledger=file)
    noted = [entry.note.get("public", []) for entry in ledger.read(file).entries]
    here = Path(__file__).name
    assert [len([line for line in lines if line.startswith(here)]) for lines in noted] == [2, 0, 0, 0]
    said = private.spent().certified.assumptions
    assert sum("discreet.public(private.progress.step >= 2)" in text for text in said) == 1


def test_a_declaration_between_steps_is_named_with_the_next_charge(tmp_path: Path) -> None:
    """Also if lines inside of steps were named before, and if the line holds a slash."""
    file = tmp_path / "ledger.jsonl"

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y) / discreet.public(2.0)
        if private.step(losses) and private.progress.step == 2:
            discreet.public(torch.ones(3))

    train(body=body, steps=4, ledger=file)
    noted = [entry.note.get("public", []) for entry in ledger.read(file).entries]
    here = Path(__file__).name
    inside, outside = ([any(word in line for line in own) for own in noted] for word in ("(2.0)", "ones(3)"))
    assert inside == [True, False, False, False]
    assert outside == [False, False, True, False]
    assert all(line.startswith(f"{here}:") for own in noted for line in own if "(2.0)" in line or "ones(3)" in line)
