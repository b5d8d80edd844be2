"""Random programs of calls that keep records apart, some with one call that mixes them behind a random threshold.

No program that mixes is accepted, whatever the threshold; no clean one is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.core.check import Refused
from discreet.engine.record_watch import RecordWatch
from discreet.engine.trace.capture import RecordAxis

WIDTH = 6
Step = Callable[[Tensor, nn.Module, float], Tensor]


def wrote(h: Tensor, model: Any, c: float) -> Tensor:
    out = torch.zeros(len(h), WIDTH)
    out[:, :3] = h[:, 3:]
    out[:, 3:].copy_(h[:, :3]).mul_(c)
    return out


def looped(h: Tensor, model: Any, c: float) -> Tensor:
    state = h.new_zeros(len(h))
    states = []
    for column in h.unbind(1):
        state = torch.tanh(c * state + column)
        states.append(state)
    return torch.stack(states, 1)


CLEAN: list[Step] = [
    lambda h, m, c: m(h),
    lambda h, m, c: torch.tanh(h) * c,
    lambda h, m, c: F.relu(h - c),
    lambda h, m, c: F.gelu(h) + h,
    lambda h, m, c: F.layer_norm(h, (WIDTH,)),
    lambda h, m, c: h / h.norm(dim=1, keepdim=True).clamp(min=c),
    lambda h, m, c: h - h.mean(1, keepdim=True),
    lambda h, m, c: torch.where(h > c, h / 255, h),
    lambda h, m, c: torch.where(h.abs().amax(1, keepdim=True) > c, h * 0.5, h),
    lambda h, m, c: h.softmax(-1) * c,
    lambda h, m, c: h.sort(1).values,
    lambda h, m, c: h.flip(1),
    lambda h, m, c: h.cumsum(1),
    lambda h, m, c: h.clamp(-c, c),
    lambda h, m, c: F.dropout(h, 0.3),
    lambda h, m, c: h + torch.randn_like(h),
    lambda h, m, c: h.reshape(-1, 2).exp().clamp(max=c).view(len(h), -1),
    lambda h, m, c: h.t().reshape(-1).sin().view(WIDTH, -1).t(),
    lambda h, m, c: torch.cat([h[:, 2:], h[:, :2]], 1),
    lambda h, m, c: torch.stack([h, h * c], 2).mean(2),
    lambda h, m, c: h.nan_to_num().masked_fill(h > c, 0.0),
    lambda h, m, c: (h.unsqueeze(2) @ h.unsqueeze(1)).diagonal(dim1=1, dim2=2),
    lambda h, m, c: F.pad(h, (1, 0))[:, :WIDTH],
    lambda h, m, c: h.gather(1, h.argsort(1)),
    lambda h, m, c: h + (h.round() - h).detach(),
    lambda h, m, c: F.avg_pool1d(h.unsqueeze(1), 3, 1, 1).squeeze(1),
    lambda h, m, c: h[torch.arange(len(h))] * 2,
    lambda h, m, c: h * (h.detach().isfinite().all(1, keepdim=True)),
    wrote,
    looped,
]


STATISTICS: list[Callable[[Tensor], Tensor]] = [
    lambda h: h.mean(0),
    lambda h: h.abs().amax(),
    lambda h: h.detach().std(),
    lambda h: h.nan_to_num().median(),
    lambda h: h.roll(1, 0),
    lambda h: h.flip(0),
    lambda h: h.cumsum(0),
    lambda h: h[torch.randperm(len(h))],
    lambda h: h.sum((0, 1)),
    lambda h: h.isnan().any().float() * 1e9,
    lambda h: (h.abs() > 1e3).any(0).float() * 1e9,
    lambda h: h.sort(0).values,
    lambda h: h[:1],
    lambda h: torch.cat([h[1:], h[:1]]),
    lambda h: (h @ h.t()).sum(1, keepdim=True),
    lambda h: F.softmax(h, 0),
    lambda h: torch.logsumexp(h, 0),
    lambda h: h.reshape(-1)[:WIDTH],
    lambda h: h.reshape(WIDTH, -1).t(),
]

THRESHOLDS: list[Callable[[Tensor, Tensor, float], Tensor]] = [
    lambda h, s, c: torch.where(s > c, h * 0.5, h),
    lambda h, s, c: h + F.relu(s - c),
    lambda h, s, c: h / s.abs().clamp(min=c),
    lambda h, s, c: h * (1 + (s > c)),
    lambda h, s, c: h + (s - c).clamp(min=0).detach(),
    lambda h, s, c: h.masked_fill(s > c, 0.0),
    lambda h, s, c: h + s * 1e-30,
]


def program(seed: int, *, mixes: bool) -> Callable[[Tensor, nn.Module], Tensor]:
    """A random program from records [N, 6] to losses [N]."""
    draw = random.Random(seed)
    steps: list[Step] = [draw.choice(CLEAN) for _ in range(draw.randint(2, 8))]
    numbers = [draw.choice([0.1, 0.7, 1.0, 3.0]) for _ in steps]
    if mixes:
        statistic, threshold = draw.choice(STATISTICS), draw.choice(THRESHOLDS)
        place = draw.randint(0, len(steps))
        steps.insert(place, lambda h, m, c: threshold(h, statistic(h), c))
        numbers.insert(place, 10 ** draw.uniform(-6, 12))

    def run(x: Tensor, model: nn.Module) -> Tensor:
        for step, number in zip(steps, numbers, strict=True):
            x = step(x, model, number)
        return x.square().sum(1)

    return run


def accepts(run: Callable[[Tensor, nn.Module], Tensor], seed: int) -> bool:
    torch.manual_seed(seed)
    model = nn.Linear(WIDTH, WIDTH)
    watch = RecordWatch(model)
    try:
        for records in (random.Random(seed).randint(2, 30), 17):
            x = torch.randn(records, WIDTH)
            watch.open([(x, RecordAxis(0))], records)
            watch.finish(run(x, model))
            watch.close()
        return True
    except Refused:
        return False
    finally:
        watch.close()


def check(seeds: range) -> None:
    refused = [seed for seed in seeds if not accepts(program(seed, mixes=False), seed)]
    assert refused == [], "clean programs"
    accepted = [seed for seed in seeds if accepts(program(seed, mixes=True), seed)]
    assert accepted == [], "programs that mix"


def test_random_programs() -> None:
    check(range(50))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_random_programs() -> None:
    check(range(1000, 2000))
