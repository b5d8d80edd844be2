"""Random compositions of parametrised ops: exact where records stay apart, refused where one op mixes them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from truths import answer, by_autograd, disagreement

from discreet.core.check import Refused
from discreet.engine.engine import Engine
from discreet.engine.factors import linear as outer
from discreet.engine.factors import parts as factors
from discreet.engine.proof.probe import UnclearError

T, D = 5, 4  # positions and features: every op maps [n, T, D] to itself
Op = Callable[[Tensor, Tensor], Tensor]


def rows(x: Tensor) -> Tensor:
    return x.reshape(-1, D)


def time_major_rows(x: Tensor, p: Tensor) -> Tensor:
    return torch.mm(rows(x.transpose(0, 1)), p).view(T, -1, D).transpose(0, 1)


def in_place(x: Tensor, p: Tensor) -> Tensor:
    y = x.clone()
    y += p
    y *= p
    return y


def halves(x: Tensor, p: Tensor) -> Tensor:
    a, b = p.chunk(2, 1)
    return torch.cat([x[..., :2] * a, x[..., 2:] + b], -1)


OPS: dict[tuple[int, ...], list[Op]] = {
    (D, D): [
        F.linear,
        lambda x, p: x @ p.t(),
        lambda x, p: torch.einsum("ntd,ed->nte", x, p),
        lambda x, p: torch.mm(rows(x), p).view(x.shape),
        time_major_rows,
        lambda x, p: torch.addmm(p[0], rows(x), p).view(x.shape).tanh(),
        lambda x, p: torch.baddbmm(x, x, p.expand(len(x), D, D), beta=0.5, alpha=0.7),
        lambda x, p: x @ ((p - p.mean()) / (p.std() + 0.1)),
        lambda x, p: x @ p + F.linear(x, p),
    ],
    (D,): [
        lambda x, p: x * p,
        lambda x, p: p - x,
        lambda x, p: F.layer_norm(x, (D,), p),
        lambda x, p: torch.cat([p.expand(len(x), 1, D), x[:, 1:]], 1),
        lambda x, p: torch.stack([x, x * p]).sum(0),
        lambda x, p: x + p.view(1, 1, D).expand_as(x),
        lambda x, p: F.prelu(x.transpose(1, 2), p).transpose(1, 2),
        lambda x, p: x * p.type_as(x) + p.to(x),
        in_place,
    ],
    (T, D): [
        lambda x, p: p + x,
        lambda x, p: torch.cat([x, p.unsqueeze(0).expand(len(x), -1, -1)], 2)[..., ::2],
        lambda x, p: torch.where(x > 0, x, p),
        halves,
        lambda x, p: x + p[(x[..., 0] > 0).long()],
        lambda x, p: x + F.embedding((x[..., 1] > 0).long(), p),
    ],
    (T, T): [
        lambda x, p: p.softmax(-1) @ x,
        lambda x, p: torch.bmm(p.unsqueeze(0).expand(len(x), T, T), x),
        lambda x, p: F.scaled_dot_product_attention(x, x, x, attn_mask=p),
    ],
    (D, D, 3): [lambda x, p: F.conv1d(x.transpose(1, 2), p, padding=1).transpose(1, 2)],
    (): [lambda x, p: x * p, lambda x, p: (x / p.exp()).tanh(), lambda x, p: ((x.abs() + 0.5) ** p).tanh()],
}
PLAIN: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.softmax(1) * T,
    lambda x: x.cumsum(1) / 2,
    lambda x: x.flip(1),
    lambda x: x + x.mean(1, keepdim=True),
    lambda x: x.roll(2, 2),
]
APART, SIZE, GRADIENT = "to keep the records apart", "with the number of records", "to equal autograd's"
MIXERS: list[tuple[Callable[[Tensor], Tensor], str]] = [  # each with the reason it must be refused for
    (lambda x: x - x.mean(0), APART),
    (lambda x: x + 0.3 * x[torch.randperm(len(x))], APART),
    (lambda x: x + 0.1 * x.roll(1, 0), APART),
    (lambda x: x * x.softmax(0), APART),
    (lambda x: x / (x.detach().norm() + 1), APART),
    (lambda x: x / len(x), SIZE),
    (lambda x: x + 0.3 * (x.mean(0) - x.mean(0).detach()), GRADIENT),  # in the gradient alone
]


class Net(nn.Module):
    """Some ops in a row; matrices are used again now and then."""

    def __init__(self, seed: int, *, mixer: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.parameters_ = nn.ParameterList()
        self.steps: list[tuple[Op, int] | Callable[[Tensor], Tensor]] = []
        for _ in range(chance.randint(2, 6)):
            if chance.random() < 0.2:
                self.steps.append(chance.choice(PLAIN))
                continue
            shape = chance.choice(list(OPS))
            known = [i for i, p in enumerate(self.parameters_) if p.shape == shape]
            index = chance.choice(known) if known and chance.random() < 0.5 else len(self.parameters_)
            if index == len(self.parameters_):
                self.parameters_.append(nn.Parameter(0.5 * torch.randn(shape) + 0.1))
            self.steps.append((chance.choice(OPS[shape]), index))
        self.steps.append((F.linear, len(self.parameters_)))
        self.parameters_.append(nn.Parameter(torch.randn(D, D)))
        if mixer is not None:
            # after a parameter: where none is before it, mixing in the gradient alone moves nothing
            first = next(place for place, step in enumerate(self.steps) if isinstance(step, tuple))
            self.steps.insert(chance.randint(first + 1, len(self.steps)), mixer)

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step[0](x, self.parameters_[step[1]]) if isinstance(step, tuple) else step(x)
        return x


def check_exact(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(-1 - seed)
    monkeypatch.setattr(outer, "GRAM_RATIO", chance.choice([0.0, 12.0, 1e9]))
    monkeypatch.setattr(factors, "KEEP_ELEMENTS", chance.choice([10, 1 << 25]))
    torch.manual_seed(seed)
    model, records = Net(seed).double(), chance.choice([1, 2, 4, 5, 7])
    inputs, weights = ((torch.randn(records, T, D).double(),), {}), torch.rand(records)
    found = answer(Engine(model), inputs, records, weights)
    assert disagreement(found, by_autograd(model, inputs), weights) < 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_random_models(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_exact(seed, monkeypatch)


@pytest.mark.slow
def test_many_random_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40, 1000):
        with contextlib.suppress(UnclearError):  # a model that has lost its input, by chance
            check_exact(seed, monkeypatch)


@pytest.mark.parametrize("seed", range(28))
def test_random_models_that_mix_records_somewhere(seed: int) -> None:
    """Each mixer four times; the models are those of `test_random_models`, which are accepted without it."""
    torch.manual_seed(seed)
    mixer, reason = MIXERS[seed % len(MIXERS)]
    with pytest.raises(Refused, match=reason):
        Engine(Net(seed, mixer=mixer).double()).script((torch.randn(7, T, D).double(),), {}, 7)
