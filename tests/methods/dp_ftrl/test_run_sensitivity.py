"""Whole runs through `Private` with and without one record: C times their difference stays within the sensitivity.

Both worlds draw the same noise, which cancels. The loss is the output of a linear model, so gradients are the records,
whatever was released before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import discreet
from discreet import methods
from discreet.accounting.correlated import Toeplitz, bisr, bsr
from discreet.core.streams import Streams
from discreet.methods.dp_ftrl.correlated_noise import CorrelatedNoise
from discreet.methods.dp_sgd.clipping import PerLayer
from discreet.stages.clipping import AutoS, Bounder, FlatClip, Psac
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon
from discreet.training.private import Private

CLIP, RECORDS, PER_EPOCH, EPOCHS = 0.5, 20, 5, 3
STEPS = PER_EPOCH * EPOCHS
REPLACE = discreet.Neighbouring.REPLACE_ONE
BOUNDERS: list[Bounder] = [FlatClip(CLIP), AutoS(clip=CLIP), Psac(clip=CLIP), PerLayer(CLIP)]
NOISES = [
    CorrelatedNoise((1.0,)),
    pytest.param(CorrelatedNoise(bsr(4)), marks=pytest.mark.slow),
    CorrelatedNoise(bisr(4), inverse=True),
]


class Halves(nn.Module):
    """Two parameters, so that clipping by layer differs from clipping the whole gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.left(x[:, :2]) + self.right(x[:, 2:])).squeeze(1)
        return out


def records(last: list[float] | None) -> TensorDataset:
    x = torch.randn(RECORDS - 1, 4, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x if last is None else torch.cat([x, torch.tensor([last])]))


def released(plan: Plan, data: TensorDataset, seed: int) -> np.ndarray[Any, Any]:
    """The noisy sums of all steps, [steps, coordinates], from the moves of the parameters."""
    model = Halves().double()
    data = TensorDataset(data.tensors[0].double())
    own = plan.sampling.is_own_loader
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = Private(model, optimizer, plan, None if own else data, streams=Streams.seeded(seed))
    sums = np.zeros((STEPS, 4))
    weights = [p.detach().clone() for p in model.parameters()]
    loader = DataLoader(data, batch_size=RECORDS // PER_EPOCH)
    batches = (batch for _ in range(EPOCHS) for batch in run.over(loader)) if own else iter(run)

    def note() -> None:
        """What the last step, and empty batches before it, have moved."""
        moved = [old - new.detach() for old, new in zip(weights, model.parameters(), strict=True)]
        sums[run.progress.step - 1] = torch.cat(moved, 1).flatten().numpy() * plan.horizon.size.batch
        for old, new in zip(weights, model.parameters(), strict=True):
            old.copy_(new.detach())

    for (x,) in batches:
        if run.step(model(x)):
            note()
    run.close()
    return sums


def dense(matrix: Toeplitz) -> np.ndarray[Any, Any]:
    column = matrix.column(STEPS)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(STEPS)] for i in range(STEPS)])


def plan(bounder: Bounder, mechanism: CorrelatedNoise, sampling: Any) -> Plan:
    relation = sampling.relations[0]
    recipe = methods.dp_ftrl().using(bounder=bounder, mechanism=mechanism, sampling=sampling, relation=relation)
    horizon = Horizon.of(records=RECORDS, batch=RECORDS // PER_EPOCH, epochs=EPOCHS)
    return recipe.bind(noise=2.0, horizon=horizon, delta=1e-3)


@pytest.mark.parametrize("mechanism", NOISES, ids=str)
@pytest.mark.parametrize("bounder", BOUNDERS, ids=lambda bounder: type(bounder).__name__)
def test_a_record_more_moves_the_run_within_its_sensitivity(bounder: Bounder, mechanism: CorrelatedNoise) -> None:
    made = plan(bounder, mechanism, discreet.FixedBins())
    matrix = dense(mechanism.matrix)
    bound = mechanism.matrix.separated(steps=STEPS, most=EPOCHS, apart=PER_EPOCH) * CLIP
    moves = []
    for seed in range(2):
        without = released(made, records(None), seed)
        for last in ([9e3, -3e2, 1e-9, 2.0], [1e-3, 0.0, 0.0, 0.0], [float("inf"), 0.0, 0.0, 0.0]):
            moves.append(float(np.linalg.norm(matrix @ (released(made, records(last), seed) - without))))
    assert max(moves) <= bound * (1 + 1e-9)
    assert min(moves) == pytest.approx(0.0, abs=1e-9)  # a gradient that is not finite counts as zero
    assert max(moves) > 0.5 * bound


@pytest.mark.parametrize("mechanism", NOISES, ids=str)
def test_an_exchange_in_the_first_batch_of_a_fixed_order_is_the_worst(mechanism: CorrelatedNoise) -> None:
    """With a bound that is attained, and that a smaller one would not hold."""
    made = plan(FlatClip(CLIP), mechanism, discreet.FixedOrder())
    x = records([0.0] * 4).tensors[0]
    one, other = x.clone(), x.clone()
    one[0], other[0] = torch.tensor([50.0, 0, 0, 0]), torch.tensor([-50.0, 0, 0, 0])
    moved = released(made, TensorDataset(one), 1) - released(made, TensorDataset(other), 1)
    far = float(np.linalg.norm(dense(mechanism.matrix) @ moved))
    bound = 2 * CLIP * mechanism.matrix.separated(steps=STEPS, most=EPOCHS, apart=PER_EPOCH)
    assert far == pytest.approx(bound, rel=1e-5)
    assert far <= bound
    fewer = 2 * CLIP * mechanism.matrix.separated(steps=STEPS, most=EPOCHS - 1, apart=PER_EPOCH)
    assert far > fewer
