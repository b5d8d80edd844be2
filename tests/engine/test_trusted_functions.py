"""Attempts to break the trust in functions by name: moves, element-wise calls, sizes, reductions, places.

Lists of trust: `_MOVES` and `SIZE_FREE` (call_forms.py), `ELEMENTWISE` (settings.py), `QUIET`, `FILLS` and `INDEXING`
(watched_functions.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from steps import classifier, each, rows, train
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet import Private
from discreet.core.check import Refused
from discreet.engine.record_watch import RecordWatch
from discreet.engine.trace.capture import RecordAxis

Run = Callable[[Tensor], Tensor]


def wrote(x: Tensor, index: Any, value: Any) -> Tensor:
    out = x * 1
    out[index] = value
    return out


def places(x: Tensor) -> Tensor:
    return torch.arange(len(x)).float()


MOVES: dict[str, Run] = {
    "rows by a mask": lambda x: x * x[x[:, 0] > 0].mean(),
    "rows by values": lambda x: x + x[x.argmax(0)[0]],
    "rows by a list": lambda x: x + x[[1, 0, *range(2, len(x))]],
    "rows backwards": lambda x: x + x[list(range(len(x)))[::-1]],
    "rows at random": lambda x: x + x[torch.randperm(len(x))],
    "rows by numpy": lambda x: x[np.arange(len(x))[::-1].copy()],
    "repeat": lambda x: x + x.repeat(2, 1)[1 : len(x) + 1],
    "expand": lambda x: x + x[:1].expand(len(x), -1),
    "expand one": lambda x: x + x[0].expand(len(x), 6),
    "narrow": lambda x: x + x.narrow(0, 0, 1),
    "select": lambda x: x + x.select(0, 0),
    "unbind": lambda x: x + x.unbind(0)[0],
    "chunk": lambda x: x + x.chunk(len(x))[0],
    "split": lambda x: x + x.split(1)[0],
    "unfold": lambda x: x + x.unfold(0, 2, 1)[:1].mean((0, 2)),
    "transpose": lambda x: x + x.t().mean(1),
    "permute": lambda x: x.permute(1, 0).reshape(len(x), 6),
    "contiguous": lambda x: x.t().contiguous().view(len(x), 6),
    "squeeze": lambda x: x + x.unsqueeze(0).mean(1).squeeze(),
    "reshape": lambda x: x.reshape(6, -1).t(),
}
REDUCTIONS: dict[str, Run] = {
    "cross product along an axis of size 3": lambda x: torch.cross(x.view(-1, 2, 3), x.view(-1, 2, 3) + 1).flatten(1),
    "max of an axis": lambda x: x / x.max(0).values,
    "max of all": lambda x: x / x.max(),
    "max of two": lambda x: torch.max(x, x.flip(0)),
    "min by name": lambda x: x / torch.min(x, dim=0)[0],
    "any of an axis": lambda x: x * (x > 9).any(0),
    "any of all": lambda x: x * (x > 9).any(),
    "all of two axes": lambda x: x * (x > 9).all((0, 1)),
    "sum without an axis": lambda x: x + x.sum(dim=None),
    "norm": lambda x: x / x.norm(2),
    "norm of an axis": lambda x: x / torch.norm(x, dim=0),
    "layer_norm over records": lambda x: F.layer_norm(x.t(), (len(x),)).t(),
    "normalize": lambda x: F.normalize(x, dim=0),
    "softmax": lambda x: x.softmax(0),
    "attention over records": lambda x: F.scaled_dot_product_attention(x, x, x),
    "linear with records as weights": lambda x: F.linear(x, x).sum(1, keepdim=True) + x,
    "loss": lambda x: x * F.mse_loss(x, x * 0),
    "sort": lambda x: x.sort(0).values,
    "cat": lambda x: torch.cat([x[1:], x[:1]]),
    "stack": lambda x: torch.stack([x, x.roll(1, 0)]).mean(0),
    "cumsum in place": lambda x: (x * 1).cumsum_(0),
}
ELEMENTWISE: dict[str, Run] = {
    "add in place": lambda x: (x * 1).add_(x.mean(0)),
    "add to": lambda x: (x * 1).__iadd__(x.sum(0)),
    "out=": lambda x: torch.add(x, x.mean(0), out=torch.zeros_like(x)),
    "out= of rows": lambda x: torch.mul(x, x.flip(0), out=torch.zeros(len(x), 6)),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x.roll(1, 0)),
    "full_like": lambda x: x * torch.full_like(x, float(x.max())),
    "masked_fill": lambda x: x.masked_fill(x > x.median(), 0),
    "clamp": lambda x: x.clamp(max=x.max()),
    "clamp in place": lambda x: (x * 1).clamp_(max=x.mean()),
    "pow": lambda x: x.abs().pow(x.mean(0)),
    "where of three": lambda x: torch.where(x > x.mean(), x, 0.0),
    "where of one": lambda x: x + x[torch.where(x[:, 0] > 0)[0][:1]].sum(),
    "eq": lambda x: x * (x == x.max()),
    "writing by a mask": lambda x: wrote(x, x > x.mean(), 0.0),
    "writing a record": lambda x: wrote(x, 0, x[1]),
    "writing at random": lambda x: wrote(x, torch.randperm(len(x)), x),
}
SIZES: dict[str, Run] = {
    "len of a mask": lambda x: x * (len(x[x[:, 0] > 0]) + 1),
    "shape of a mask": lambda x: x * (x[x > 0].shape[0] / 10),
    "numel": lambda x: x * x[x > 0].numel(),
    "size of nonzero": lambda x: x * x.nonzero().size(0),
    "len of where": lambda x: x * len(torch.where(x > 0)[0]),
    "len of unique": lambda x: x * len(x.argmax(1).unique()),
    "shape of unique": lambda x: x * torch.unique(x.round(), return_counts=True)[0].shape[0],
    "unique_consecutive": lambda x: x * len(x.argmax(1).unique_consecutive()),
    "masked_select": lambda x: x * len(x.masked_select(x > 0)),
    "argwhere": lambda x: x * torch.argwhere(x > 0).shape[0],
    "bincount": lambda x: x * len((100 * x[:, 0].abs()).long().bincount()),
    "repeat_interleave": lambda x: x * len(x.argmax(1).repeat_interleave(x.argmax(1))),
}
PLACES: dict[str, Run] = {
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "fill_diagonal_": lambda x: (x * 1).fill_diagonal_(0.0),
    "the first is zero": lambda x: wrote(x, 0, 0.0),
    "the last is zero": lambda x: wrote(x, -1, 0.0),
    "every other is zero": lambda x: wrote(x, slice(None, None, 2), 0.0),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([0]), 0.0),
    "cat with places": lambda x: torch.cat([x[:, 1:], places(x).unsqueeze(1)], 1),
    "bmm with places": lambda x: torch.bmm(x.unsqueeze(1), places(x).view(-1, 1, 1) * torch.eye(6)).squeeze(1),
    "places with axes": lambda x: x * (1 + torch.arange(len(x))[:, None]),
    "rows by places with axes": lambda x: x + x[torch.arange(len(x) - 1, -1, -1)[:, None]].squeeze(1),
    "other rows by places with axes": lambda x: x + x[torch.arange(len(x))[:, None] // 2].squeeze(1),
    "a table by places": lambda x: x * torch.linspace(1, 2, 99)[torch.arange(len(x))[:, None]],
    "index_add of places": lambda x: x.index_add(
        0, torch.arange(len(x)), torch.linspace(0, 1, len(x)).unsqueeze(1).expand(-1, 6)
    ),
}


def rest_of(part: Run) -> Run:
    """Adds what lies beyond the batches of a proof to every record, in one call: `part` gives it."""
    return lambda x: x + torch.einsum("nd,md->n", x * 0 + 1, part(x)).unsqueeze(1)


def far_ones(x: Tensor) -> Tensor:
    columns: Tensor = torch._C._nn.im2col(x.t().reshape(1, 6, -1, 1), [3, 1], [80, 1], [80, 0], [1, 1])
    return columns.view(6, 3, -1).sum(1).t()


THIRDS = torch.ones(1, 1, 3)
# Nothing happens in the batches of a proof, which have at most 67 records.
FAR: dict[str, Run] = {
    "roll": lambda x: x.roll(2010, 0),
    "roll by an operator": lambda x: torch.ops.aten.roll(x, [2010], [0]),
    "roll by an overload": lambda x: torch.ops.aten.roll.default(x, [2010], [0]),
    "triu by an operator": lambda x: torch.ops.aten.triu(x, -70),
    "convolution by an operator": lambda x: torch.ops.aten.conv1d(x.t().unsqueeze(1), THIRDS, None, [1], [80], [80])[
        :, 0
    ].t(),
    "convolution by its kernel": lambda x: torch._convolution(
        x.t().unsqueeze(1), THIRDS, None, [1], [80], [80], False, [0], 1, False, False, False, False
    )[:, 0].t(),
    "windows by their kernel": far_ones,
    "the second part": rest_of(lambda x: torch.tensor_split(x, [70])[1]),
    "the lower part": rest_of(lambda x: x.vsplit([70])[1]),
    "a copied slice": rest_of(lambda x: torch.slice_copy(x, 0, 70, 2**60)),
    "high differences": rest_of(lambda x: x.diff(n=70, dim=0)),
}
ATTEMPTS = MOVES | REDUCTIONS | ELEMENTWISE | SIZES | PLACES

INNOCENT: dict[str, Run] = {
    "places as an index": lambda x: x + x[torch.arange(len(x)), x.argmax(1)].unsqueeze(1),
    "places with axes as an index": lambda x: x + x[torch.arange(len(x))[:, None], torch.arange(6)],
    "fake labels": lambda x: x * F.cross_entropy(x, torch.zeros(len(x)).long(), reduction="none").unsqueeze(1),
    "a column is zero": lambda x: wrote(x, (slice(None), 0), 0.0),
    "a table": lambda x: x @ torch.linspace(0, 1, 36).view(6, 6).tril(),
    "a mask of positions": lambda x: (x.unsqueeze(2) * x.unsqueeze(1)).tril().sum(2),
    "cat with a constant": lambda x: torch.cat([torch.full((len(x), 1), 0.5), x[:, 1:]], 1),
    "cat with noise": lambda x: torch.cat([torch.randn(len(x), 1), x[:, 1:]], 1),
    "dropout": lambda x: F.dropout(x, 0.3),
    "rows of a token": lambda x: torch.cat([torch.linspace(0, 1, 6).expand(len(x), 1, 6), x.unsqueeze(1)], 1).mean(1),
    "out=": lambda x: torch.add(x, 1, out=torch.zeros_like(x)),
    "operators": lambda x: torch.ops.aten.mul(torch.ops.aten.slice(x, 1, 0, 2**63 - 1), 100),
}


def watched(run: Run, sizes: tuple[int, ...] = (7, 5, 12)) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 6)
    watch = RecordWatch(model)
    try:
        for records in sizes:
            x = torch.randn(records, 6)
            watch.open([(x, RecordAxis(0))], records)
            watch.finish(model(run(x)).square().sum(1))
            watch.close()
    finally:
        watch.close()


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:Using torch.cross without specifying the dim arg")
@pytest.mark.parametrize("run", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_no_attempt_is_accepted(run: Run) -> None:
    with pytest.raises(Refused):
        watched(run)


@pytest.mark.parametrize("run", FAR.values(), ids=FAR.keys())
def test_no_attempt_on_records_far_away_is_accepted(run: Run) -> None:
    """One record moved the sum by up to 184 clips."""
    with pytest.raises(Refused):
        watched(run, (14, 9, 170))


@pytest.mark.parametrize("sizes", [(7, 5, 12), (6, 3, 2, 1)])
@pytest.mark.parametrize("run", INNOCENT.values(), ids=INNOCENT.keys())
def test_innocent_forms_are_accepted(run: Run, sizes: tuple[int, ...]) -> None:
    watched(run, sizes)


def _transcripts(last: int) -> TensorDataset:
    """Records of four steps over three classes, with two targets and padding that is no class."""
    targets = torch.ones(40, 3, dtype=torch.long)
    targets[:, 2], targets[7, 0] = -1, last
    return TensorDataset(torch.randn(40, 4, 6), targets)


def _ctc(private: Private, model: nn.Module, x: Tensor, targets: Tensor) -> None:
    scores = model(x).transpose(0, 1).log_softmax(2)
    steps, used = (torch.full((len(x),), length) for length in (4, 2))
    private.step(F.ctc_loss(scores, targets, steps, used, reduction="none"))


def test_targets_of_ctc_that_are_no_classes() -> None:
    """Torch reads the scores of other records there: a record moved the losses of 20 others."""
    assert train(classifier(), _ctc, _transcripts(2), steps=2).progress.step == 2
    for last in (3, -1):
        with pytest.raises(Refused, match=r"targets of F.ctc_loss from 0 to 2"):
            train(classifier(), _ctc, _transcripts(last), steps=12)


def _sampled(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
    outputs = model(x)
    places = torch.stack([x[:, 0], outputs[:, 0].tanh()], 1)[:, None, None]
    images = outputs[:, None, None, :].expand(-1, 1, 3, 3)
    private.step(F.grid_sample(images, places, padding_mode="border", align_corners=False).sum((1, 2, 3)))


def test_coordinates_that_are_not_finite() -> None:
    """NaN made torch read far away, and ended the process."""
    x, y = torch.randn(40, 6), torch.zeros(40)
    assert train(classifier(), _sampled, TensorDataset(x, y), steps=2).progress.step == 2
    for place in (torch.nan, 3.3e38):  # finite, but not in pixels
        x[7, 0] = place
        with pytest.raises(Refused, match=r"finite coordinates for F.grid_sample"):
            train(classifier(), _sampled, TensorDataset(x, y), steps=12)


def _eigenvalues(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x), y) * torch.linalg.eigvals(x[:, :4].view(-1, 2, 2)).abs().sum(1))


def test_eigenvalues_of_matrices_that_are_not_finite() -> None:
    """NaN ended the process, also in the proof of the call."""
    x, y = rows(6).tensors
    assert train(classifier(), _eigenvalues, TensorDataset(x, y), steps=2).progress.step == 2
    x[7, 0] = torch.nan
    with pytest.raises(Refused, match=r"finite matrices for torch.linalg.eigvals"):
        train(classifier(), _eigenvalues, TensorDataset(x, y), steps=12)


@pytest.mark.parametrize(
    "made",
    [
        lambda h: torch.segment_reduce(h, "sum", lengths=torch.full((len(h), 1), 3), axis=1)[:, 0],
        lambda h: torch.ops.aten.grid_sampler_2d(h[:, None, None], h[:, None, None, :2], 0, 1, False).sum((1, 2, 3)),
        lambda h: torch.ops.aten.tanh_backward(h, h).sum(1),
        lambda h: torch.ops.aten.linalg_eigvals(h[:, :, None] * h[:, None]).abs().sum(1),
    ],
    ids=["segments", "grid", "backward", "eigenvalues"],
)
def test_kernels_that_read_by_numbers_are_refused(made: Callable[[Tensor], Tensor]) -> None:
    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(made(model(x)))

    with pytest.raises(Refused, match="that torch does not check"):
        train(classifier(), body, steps=1)
