"""Models and loops that keep records apart are accepted: a false refusal is a fault, too."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import LIST, Bare, Problem, losses_of, parameter
from steps import classifier, each, rows, train, words
from torch import Tensor, nn
from torch.distributions import Normal

import discreet
from discreet.engine.engine import Engine


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("problem", LIST, ids=str)
def test_every_model_is_accepted(problem: Problem) -> None:
    """Batches of several sizes, one of them a single record."""
    torch.manual_seed(0)
    model = problem.model()
    with closing(Engine(model)) as engine:
        for records in (7, 11, 1):
            args, kwargs = problem.inputs(records)
            engine.begin(records)
            engine.follow((args, kwargs), records, public=[t for t in args if t.shape[:1] != (records,)])
            engine.backward(losses_of(model(*args, **kwargs)))


# Forms of forward() ---------------------------------------------------------------------------------------


def gathered(own: Any, x: Tensor) -> Tensor:
    best = x.argmax(1)
    return x + x[torch.arange(len(x)), best].unsqueeze(1)


def filled_in_place(own: Any, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], 6)
    out[:, 0] = x[:, 1]
    out[:, 1:].copy_(x[:, :5])
    out[x > 1] = 0.5
    return out


def by_position(own: Any, x: Tensor) -> Tensor:
    steps = [x[:, i : i + 1] * i for i in range(6)]
    return torch.cat(steps, 1)


def windowed(own: Any, x: Tensor) -> Tensor:
    return x.unfold(1, 2, 1).mean(-1).repeat(1, 2)[:, :6]


def clipped(own: Any, x: Tensor) -> Tensor:
    return x * (1 / x.flatten(1).norm(dim=1).clamp(min=1)).view(-1, 1)


def sorted_rows(own: Any, x: Tensor) -> Tensor:
    values, order = x.sort(1)
    return values + order.float()


def top(own: Any, x: Tensor) -> Tensor:
    return x.topk(3, 1).values.repeat(1, 2)


def standardised_rows(own: Any, x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3)


def cumulated(own: Any, x: Tensor) -> Tensor:
    return x.cumsum(1) / torch.arange(1, 7)


def outer_rows(own: Any, x: Tensor) -> Tensor:
    return (x.unsqueeze(1) * x.unsqueeze(2)).sum(2)


def folded(own: Any, x: Tensor) -> Tensor:
    return x.reshape(-1, 2).pow(2).reshape(len(x), -1)


def folded_minor(own: Any, x: Tensor) -> Tensor:
    return x.t().reshape(-1).tanh().view(6, -1).t()


def noised(own: Any, x: Tensor) -> Tensor:
    return F.dropout(x + torch.randn_like(x) * 0.1, 0.2)


def quantised(own: Any, x: Tensor) -> Tensor:
    return x + ((x * 4).round() / 4 - x).detach()


def softmax_pool(own: Any, x: Tensor) -> Tensor:
    return x * torch.softmax(x, -1)


def masked(own: Any, x: Tensor) -> Tensor:
    mask = x > 0
    return torch.where(mask, x, x.new_zeros(())) / mask.sum(1, keepdim=True).clamp(min=1)


def own_scale(own: Any, x: Tensor) -> Tensor:
    return torch.where(x.abs().amax(1, keepdim=True) > 1.5, x / 255, x)


def looked_up(own: Any, x: Tensor) -> Tensor:
    return x + F.one_hot(x.argmax(1), 6) + torch.bucketize(x, torch.linspace(-1, 1, 5))


def fourier(own: Any, x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.rfft(x, dim=1)).flatten(1)[:, :6]


def einsummed(own: Any, x: Tensor) -> Tensor:
    return torch.einsum("ni,nj->nij", x, x).diagonal(dim1=1, dim2=2)


def chunked(own: Any, x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * b.sigmoid(), F.normalize(b, dim=-1)], -1)


def mesh(own: Any, x: Tensor) -> Tensor:
    grid = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"), -1).flatten(0, 1)
    return x + (x.view(-1, 2, 3).flatten(1) @ torch.ones(6, 2)) @ grid.float().t()


def pooled(own: Any, x: Tensor) -> Tensor:
    return F.interpolate(F.avg_pool1d(x.unsqueeze(1), 2), 6).squeeze(1)


FORMS = [
    *(gathered, filled_in_place, by_position, windowed, clipped, sorted_rows, top, standardised_rows, cumulated),
    *(outer_rows, folded, folded_minor, noised, quantised, softmax_pool, masked, own_scale, looked_up, fourier),
    *(einsummed, chunked, mesh, pooled),
]


@pytest.mark.parametrize("run", FORMS, ids=lambda run: run.__name__)
def test_forms_of_forward_are_accepted(run: Callable[..., Tensor]) -> None:
    assert train(classifier(run), fixed=False, steps=3).updates == 3


# Loops ----------------------------------------------------------------------------------------------------


def logs_the_loss(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    private.step(losses)
    model.log = f"{losses.detach().mean():.3f}", losses.mean().item()


def logs_before_the_step(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    model.log = losses.detach().mean().item(), losses.detach().numpy().max(), str(losses)
    private.step(losses)


def asserts_finite(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    assert torch.isfinite(losses).all()
    private.step(losses)


def accuracy(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    outputs = model(x)
    losses = each(outputs, y)
    model.log = (outputs.argmax(1) == y).float().mean().item()
    private.step(losses)


def evaluates_between(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        held_out = torch.randn(9, 6)
        model.log = model(held_out).argmax(1).bincount().tolist()
    model.train()
    private.step(each(model(x), y))


def evaluates_in_inference_mode(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    with torch.inference_mode():
        model.log = model(torch.randn(9, 6)).sum().item()
    private.step(losses)


def evaluates_after(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x), y))
    with torch.no_grad():
        model.log = (model(x).argmax(1) == y).float().mean().item()


def class_weights(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    weight = torch.tensor([0.2, 0.3, 0.5])
    private.step(F.cross_entropy(model(x), y, weight=weight, label_smoothing=0.1, reduction="none"))


def focal(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    private.step((1 - torch.exp(-losses)) ** 2 * losses)


def penalty(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    outputs = model(x)
    private.step(each(outputs, y) + 0.01 * outputs.square().sum(1) - 0.1 * outputs.softmax(1).amax(1))


def gaussian(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    mean, spread, _ = model(x).unbind(1)
    private.step(-Normal(mean, F.softplus(spread) + 0.1).log_prob(x[:, 0]))


def huber(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(F.huber_loss(model(x), x[:, :3], reduction="none").mean(1))


def two_heads(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x), y) + each(model(x * 0.5), y))


def noise_in_the_loop(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    x = x + 0.1 * torch.randn_like(x)
    keep = torch.rand(len(x), 1) < 0.8
    private.step(each(model(x * keep), y))


def under_a_device(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    with torch.device("cpu"):
        private.step(each(model(x + torch.zeros(6)), y))


def autocast(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(x)
    private.step(each(outputs.float(), y))


def poisson_noise(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x + torch.poisson(x.abs())), y))


def gamma_noise(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    scale = torch.distributions.Gamma(torch.ones(len(x), 1) * 2, torch.ones(len(x), 1)).sample()
    private.step(each(model(x * scale), y))


def ranking_of_own_scores(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    outputs = model(x)
    true = outputs.gather(1, y.unsqueeze(1))
    private.step(F.relu(1 - true + outputs).masked_fill(F.one_hot(y, 3).bool(), 0).sum(1))


def with_a_trained_temperature(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x) / 0.7, y).clamp(max=50.0))


def annealed(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    model.count = getattr(model, "count", 0) + 1
    private.step(each(model(x), y) * discreet.public(1 - model.count / 100))


def annealed_and_logged(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    model.count = getattr(model, "count", 0) + 1
    losses = each(model(x), y) * discreet.public(1 - model.count / 100)
    model.log = losses.mean().item()
    private.step(losses)


def declared_phase(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    model.count = getattr(model, "count", 0) + 1
    losses = each(model(x), y)
    if discreet.public(model.count > 2):
        losses = losses * 2
    model.log = losses.mean().item()
    private.step(losses)


def keeps_weights(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x), y))
    with torch.no_grad():
        model.kept = {name: p.clone().mul_(0.9) for name, p in model.named_parameters()}


def keeps_weights_before_the_step(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    model.kept = copy.deepcopy(model.head.state_dict())
    private.step(losses)


LOOPS = [
    *(logs_the_loss, logs_before_the_step, asserts_finite, accuracy, evaluates_between, evaluates_after),
    *(evaluates_in_inference_mode, class_weights, focal, penalty, gaussian, huber, two_heads, noise_in_the_loop),
    *(under_a_device, autocast, poisson_noise, gamma_noise, ranking_of_own_scores, with_a_trained_temperature),
    *(annealed, annealed_and_logged, declared_phase, keeps_weights, keeps_weights_before_the_step),
]


@pytest.mark.parametrize("body", LOOPS, ids=lambda body: body.__name__)
def test_loops_are_accepted(body: Any) -> None:
    assert train(body=body, fixed=False, steps=4).updates == 4


def test_micro_batches_and_views_are_accepted() -> None:
    def jitter(batch: Any) -> Any:
        x, y = batch
        return x + 0.1 * torch.randn_like(x), y

    assert train(fixed=False, micro_batch=4, views=3, augment=jitter).updates == 4


def test_records_in_dictionaries_are_accepted() -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            return torch.full((6,), float(index)), index % 3

    assert train(data=Rows(), fixed=False).updates == 4


def test_a_mask_of_a_record_is_accepted() -> None:
    torch.manual_seed(0)

    def run(own: Any, t: Tensor) -> Tensor:
        keep = (t != 0).float().unsqueeze(-1)
        scores = (own.embed(t) * keep).sum(1) / keep.sum(1).clamp(min=1)
        hidden = F.scaled_dot_product_attention(*(own.embed(t),) * 3, attn_mask=(t != 0).unsqueeze(1))
        return own.head(scores + hidden.nan_to_num().mean(1))  # type: ignore[no-any-return]

    train(Bare(run, embed=nn.Embedding(1000, 6), head=nn.Linear(6, 3)), data=words(), fixed=False)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h)
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (h,) = ctx.saved_tensors
        return -grads[0] * (h.abs() < 3) * (10 / grads[0].norm(dim=1, keepdim=True)).clamp(max=1)


def test_a_function_with_a_gradient_of_its_own_is_accepted() -> None:
    train(body=lambda p, m, x, y: p.step(each(m(x) + Reversed.apply(m(x)), y)), fixed=False)


def test_hooks_of_forward_passes_are_accepted() -> None:
    model = classifier()
    model.head.register_forward_hook(lambda m, i, o: o * 0.5)  # type: ignore[union-attr, operator]
    train(model, fixed=False)


def test_a_relative_bias_and_rotations_are_accepted() -> None:
    torch.manual_seed(0)
    angle = torch.arange(6).float().outer(1 / 100 ** (torch.arange(2) / 2))

    def run(own: Any, t: Tensor) -> Tensor:
        h = own.embed(t)
        turned = torch.stack([-h[..., 1::2], h[..., ::2]], -1).flatten(-2)
        h = h * angle.cos().repeat_interleave(2, -1) + turned * angle.sin().repeat_interleave(2, -1)
        share = (h @ h.mT / math.sqrt(4) + own.bias).tril().softmax(-1)
        return own.head((share @ h).mean(1))  # type: ignore[no-any-return]

    parts = {"embed": nn.Embedding(1000, 4), "head": nn.Linear(4, 3), "bias": parameter(6, 6)}
    train(Bare(run, **parts), data=words(), fixed=False)


def test_images_are_accepted() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8, 3),
    )

    def flipped(batch: Any) -> Any:
        x, y = batch
        flip = torch.rand(len(x), 1, 1, 1) < 0.5
        return torch.where(flip, x.flip(-1), x), y

    train(net, data=rows(3, 8, 8), fixed=False, augment=flipped)
