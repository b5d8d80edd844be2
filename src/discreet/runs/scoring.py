"""The accuracy of a model on public records, and noisy counts of right predictions on private ones."""

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


@torch.no_grad()
def measure(model: nn.Module, data: TensorDataset, device: str = "cpu") -> tuple[float, float]:
    """Accuracy and mean loss, without noise."""
    was_training, right, total = model.training, 0, 0.0
    x, y = data.tensors
    if len(y) == 0:
        return 0.0, 0.0
    model.eval()
    for some, labels in zip(x.split(_AT_ONCE), y.split(_AT_ONCE), strict=True):
        scores = model(some.to(device)).cpu()
        right += int((scores.argmax(1) == labels).sum())
        total -= scores.double().log_softmax(1).gather(1, labels[:, None]).sum().item()
    model.train(was_training)
    return right / max(len(y), 1), total / max(len(y), 1)
