"""Scores of a model: on unprotected records, or noisy counts of right predictions on private ones."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet.core.streams import Stream
from discreet.core.world import World
from discreet.data.targets import Classes, Target
from discreet.stages.aggregation import sum_of_numbers
from discreet.stages.unit import EachRecord, Unit
from discreet.training.owners import Owners

_AT_ONCE = 2048
_RECORD = EachRecord()


def measure(model: nn.Module, data: TensorDataset, device: str = "cpu") -> tuple[float, float]:
    """The accuracy of a classifier on unprotected records, and its mean cross-entropy."""
    scores, loss = evaluated(model, data, Classes(2), device)  # neither depends on the number of classes
    return scores[Classes.measure], loss


@torch.no_grad()
def evaluated(
    model: nn.Module, data: TensorDataset, target: Target, device: str = "cpu"
) -> tuple[dict[str, float], float]:
    """The scores of unprotected records by name, and the mean loss; both 0 without records."""
    was_training = model.training
    x, y = data.tensors
    model.eval()
    parts = [model(some.to(device)).cpu() for some in x.split(_AT_ONCE) if len(some)]
    model.train(was_training)
    outputs = torch.cat(parts) if parts else torch.zeros(0, target.outputs)
    losses = target.losses(outputs.double(), y.double() if y.is_floating_point() else y)
    return target.measures(outputs, y), float(losses.mean()) if len(y) else 0.0


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


@final
@dataclass(frozen=True, eq=False)
class Scored:
    """Private records that score a model, and whom the score protects.

    owners  who owns each record; None if the unit is a record
    """

    data: TensorDataset
    owners: Owners | None = None
    unit: Unit = _RECORD

    def noisy_count(self, right: Tensor, sigma: float, noise: Stream) -> float:
        """The number of right predictions minus that of half the records, with noise of deviation sigma * counted.

        A user adds the mean over all of its records, times their number or `unit.counted`, whichever is smaller: if
        users are sampled, every user counts once; if records are capped, as many records as the cap.

        Guarantee: every record, or user, moves the count by at most counted / 2, so this is `CountQuery(sigma)`.
        """
        each, most = right.double() - 0.5, self.unit.counted
        if self.owners is not None:
            own = [each[self.owners.records_of(user)] for user in range(len(self.owners))]
            each = torch.tensor([float(some.mean()) * min(len(some), most) for some in own], dtype=torch.float64)
        total = sum_of_numbers(each / most, 0.5, World.current())
        return most * float(noise.add_normal_(total.value.clone(), sigma))


def accuracy_of(count: float, records: float) -> float:
    """The accuracy that a noisy count shows, given the public number of records; between 0 and 1.

    >>> accuracy_of(40.0, 100.0)
    0.9
    """
    return min(max(0.5 + count / records, 0.0), 1.0)
