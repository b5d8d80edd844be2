"""Values of the records that leave the tensors and come back: as a number, as a choice, as an error, as a size.

No way of reading is noticed by itself. Every batch must make its losses by the same calls with the same numbers, so
that what comes back differs from batch to batch, and is refused before or at the step in which it differs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import each, rows, train
from torch import Tensor
from torch.utils.data import Dataset

from discreet.core.check import Refused

SAME = "same calls with the same numbers|each record stands alone"


def by_the_loss_before(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    private.step(losses * getattr(model, "scale", 1.0))
    model.scale = 1 / (losses.mean().item() + 1e-3)


def clamped_at_the_loss_before(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    private.step(losses.clamp(max=getattr(model, "most", 100.0)))
    model.most = float(losses.detach().max())


def in_a_thread(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    with ThreadPoolExecutor(1) as pool:
        largest = pool.submit(lambda: x.abs().max().item()).result()
    private.step(each(model(x), y) / largest)


def by_an_operator(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x), y) / torch.ops.aten.item(x.abs().max()))


def skips_a_corrupt_batch(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    """The third step has a label that does not exist."""
    outputs = model(x)
    try:
        losses = F.cross_entropy(outputs, y + 9 * (private.progress.step == 2), reduction="none")
    except (IndexError, RuntimeError):
        losses = outputs.sum(1) * 0
    private.step(losses)


def counts_outliers(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    outliers = len(x[(x - x.mean(0)).abs().amax(1) > 1])
    private.step(each(model(x), y) * (outliers + 1))


def one_of_two_tensors(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    weights = WEIGHTS[int(getattr(model, "last", 0.0) > 0)]
    private.step(losses * weights.sum())
    model.last = losses.mean().item()


def one_of_two_ready_losses(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    none = losses * 0
    private.step(losses if private.progress.step < 2 else none)


def two_numbers_of_one_hash(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x), y) * (-1.0 if private.progress.step < 2 else -2.0))


WEIGHTS = torch.ones(3), torch.zeros(3)
BODIES = [
    *(by_the_loss_before, clamped_at_the_loss_before, in_a_thread, by_an_operator, skips_a_corrupt_batch),
    *(counts_outliers, one_of_two_tensors, one_of_two_ready_losses, two_numbers_of_one_hash),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_value_that_comes_back_is_refused(body: Any) -> None:
    assert hash(-1.0) == hash(-2.0)  # why the last body is here
    with pytest.raises(Refused, match=SAME):
        train(body=body, steps=4)


def _summed(outputs: Tensor, y: Tensor, *, cut: bool, copy: bool) -> Tensor:
    """Outputs that lie apart in memory, copied to lie side by side, also where gradients are not wanted."""
    apart = outputs[:, ::2]
    if cut:
        with torch.no_grad():
            apart = apart.contiguous()
    elif copy:
        apart = apart.contiguous()
    return each(outputs, y) + apart.sum(1)


def copied_by_a_value(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    """Kernels go by strides: a copy rounds the sums of all records otherwise."""
    private.step(_summed(model(x), y, cut=False, copy=not private.is_rehearsal and x.max().item() > 0))


def cut_by_a_value(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(_summed(model(x), y, cut=not private.is_rehearsal and x.max().item() > 0, copy=False))


def cut_for_one_record(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(_summed(model(x), y, cut=len(x) == 1, copy=True))


def copied_by_the_record_before(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    """Batches of one record: 4.8 clips."""
    private.step(_summed(model(x), y, cut=False, copy=getattr(model, "largest", -1.0) > 0))
    if not private.is_rehearsal:
        model.largest = max(getattr(model, "largest", -1.0), x.max().item())


def copied_for_one_record(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(_summed(model(x), y, cut=False, copy=len(x) == 1))


def copied_for_several_records(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(_summed(model(x), y, cut=False, copy=len(x) > 1))


def written_without_a_gradient(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    outputs, room = model(x), torch.empty(len(x), 1)
    with torch.set_grad_enabled(private.is_rehearsal or x.max().item() < 0):
        room[:, 0] = outputs[:, 0]
    private.step(each(outputs, y) + room[:, 0])


COPIES = [
    *((copied_by_a_value, 11), (cut_by_a_value, 11), (cut_for_one_record, 11), (written_without_a_gradient, 11)),
    *((copied_by_the_record_before, 1), (copied_for_one_record, 11), (copied_for_several_records, 11)),
]


@pytest.mark.parametrize(("body", "size"), COPIES, ids=[body.__name__ for body, _ in COPIES])
def test_a_copy_that_a_value_decides_is_refused(body: Any, size: int) -> None:
    """Leaving one record out moved the sum by up to 39 clips."""
    with pytest.raises(Refused, match=SAME):
        train(body=body, steps=2, micro_batch=size)


def test_memory_of_one_record_may_be_contiguous() -> None:
    """Its transpose is; that of several records is copied."""

    def turned(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        outputs = model(x).t().contiguous().t()
        private.step(each(outputs, y))

    def twice(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        turned = outputs.t().contiguous()
        private.step(each(outputs + turned.t().contiguous() + outputs[:, :3].contiguous(), y))

    for body in (turned, twice):
        for size in (1, 2, 11):
            assert train(body=body, steps=2, micro_batch=size).progress.step == 2


class Texts(Dataset[Any]):
    """Records with a part that is no tensor."""

    def __init__(self) -> None:
        self._x, self._y = rows(6).tensors

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> Any:
        text = " ".join(f"{value:.3f}" for value in self._x[index].tolist())
        return {"x": self._x[index], "text": text}, self._y[index]


def encoded(private: Any, model: Any, batch: Any, y: Tensor) -> None:
    texts = batch["text"]
    private.step(each(model(torch.tensor([[float(text.split()[0])] * 6 for text in texts])), y))


def divided_by_a_number_in_the_text(private: Any, model: Any, batch: Any, y: Tensor) -> None:
    private.step(each(model(batch["x"]), y) / max(float(text.split()[0]) for text in batch["text"]))


@pytest.mark.parametrize("body", [encoded, divided_by_a_number_in_the_text], ids=lambda body: body.__name__)
def test_parts_of_a_batch_that_are_no_tensors(body: Any) -> None:
    with pytest.raises(Refused, match=f"{SAME}|computed from the tensors of the batch"):
        train(body=body, steps=4, data=Texts(), inputs=lambda batch: (batch[0]["x"],))


# Calls that mix records on few values only -------------------------------------------------------------------


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x * x.all(0),
        lambda x: x * torch.all(x),
        lambda x: x * (~torch.isin(x, x[:, :1])),
        lambda x: x + 5 * x[torch.arange(len(x) - 1, -1.0, -1.0, dtype=torch.long)],
    ],
    ids=["all over records", "all", "isin", "reversed by floats"],
)
def test_calls_that_look_innocent_on_random_values(mixed: Any) -> None:
    with pytest.raises(Refused, match="each record stands alone"):
        train(body=lambda private, model, x, y: private.step(each(model(mixed(x)), y)), steps=2)


class ClipGradient(torch.autograd.Function):
    """The usual idiom: a view in the forward pass, a norm over the batch in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (2 / gradients[0].norm()).clamp(max=1)


def test_a_function_that_returns_a_view() -> None:
    with pytest.raises(Refused, match="the backward pass of ClipGradient"):
        train(body=lambda p, model, x, y: p.step(each(ClipGradient.apply(model(x)), y)), steps=2)


# The number of records in places other than the record axis ----------------------------------------------------

TABLE = torch.arange(100.0)


@pytest.mark.parametrize(
    "weight",
    [
        lambda x: torch.ones_like(x[:, :1]).expand(-1, len(x)).sum(1),
        lambda x: F.interpolate(torch.ones_like(x)[:, None], size=len(x)).sum((1, 2)),
        lambda x: F.conv1d(x[:, None], torch.ones(1, 1, 3), padding=len(x)).square().sum((1, 2)),
        lambda x: TABLE[len(x)],
        lambda x: torch.softmax(torch.rand(len(x)) * 0, 0),
    ],
    ids=["expand", "interpolate", "padding", "table", "softmax of draws"],
)
def test_the_number_of_records_as_a_value(weight: Any) -> None:
    steps: list[bool] = []

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        steps.append(private.step(each(model(x), y) * weight(x)))

    with pytest.raises(Refused, match=f"{SAME}|number of records"):
        train(body=body, steps=1)
    assert not any(steps)


def test_stripes_on_random_weights() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        weights = (torch.rand(len(x)) < 2).float()
        weights[::2] = 0
        private.step(each(model(x), y) * weights)

    with pytest.raises(Refused, match=SAME):
        train(body=body, steps=2)
