"""Noisy counts of right predictions: a score, or an evaluation, on private records."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet.core.streams import Stream
from discreet.core.world import World
from discreet.stages.aggregation import sum_of_numbers

_AT_ONCE = 2048


@torch.no_grad()
def right_predictions(model: nn.Module, data: TensorDataset, device: str = "cpu") -> Tensor:
    """Whether the model is right about each record."""
    was_training = model.training
    model.eval()
    x, y = data.tensors
    pieces = zip(x.split(_AT_ONCE), y.split(_AT_ONCE), strict=True)
    right = [model(some.to(device)).cpu().argmax(1) == labels for some, labels in pieces if len(labels)]
    model.train(was_training)
    return torch.cat(right) if right else torch.zeros(0, dtype=torch.bool)


def noisy_count(right: Tensor, sigma: float, noise: Stream) -> float:
    """The number of right predictions minus that of half the records, with noise N(0, sigma^2).

    Guarantee: every record adds -1/2 or +1/2, so this is `CountQuery(sigma)`.
    """
    total = sum_of_numbers(right.double() - 0.5, 0.5, World.current())
    return float(noise.add_normal_(total.value.clone(), sigma))


def accuracy_of(count: float, records: float) -> float:
    """The accuracy that a noisy count shows, given the public number of records; between 0 and 1.

    >>> accuracy_of(40.0, 100.0)
    0.9
    """
    return min(max(0.5 + count / records, 0.0), 1.0)
