"""What a model predicts: a class, a number within public bounds, or several labels; with the loss of each record.

>>> Number.within(0.0, 100.0).losses(torch.zeros(2, 1), torch.tensor([0.0, 0.5])).tolist()
[0.0, 0.25]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import count, require
from discreet.data.schema import Numbers


class Target(Protocol):
    """What the labels of a task are.

    Guarantee: `losses` gives one loss for each record, which depends on that record and public constants alone.

    measure   the name of the score that runs are ranked by; larger is better, and 1 is perfect
    constant  the name of always answering the same
    """

    measure: ClassVar[str]
    constant: ClassVar[str]

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a record."""

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """[n] from outputs [n, outputs] and labels."""

    def measures(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """The scores of unprotected records by name; `measure` comes first."""

    def best_constant(self, labels: Tensor) -> float:
        """The measure of the best answer that is the same for all of these unprotected records."""


@final
@dataclass(frozen=True)
class Classes:
    """One of several classes, by number; the loss is cross-entropy."""

    number: int
    measure: ClassVar[str] = "accuracy"
    constant: ClassVar[str] = "majority class"

    def __post_init__(self) -> None:
        count("a classifier tells at least two classes apart", least=2, classes=self.number)

    @property
    def outputs(self) -> int:
        return self.number

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, reduction="none")

    def measures(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {self.measure: _mean(outputs.argmax(1) == labels)}

    def best_constant(self, labels: Tensor) -> float:
        return float(labels.bincount(minlength=self.number).max() / max(len(labels), 1))


@final
@dataclass(frozen=True)
class Number:
    """A number within public bounds; the loss is the squared error on a scale from -1 to 1.

    Predictions are clamped to the bounds, and one that is no number is their middle: both cost no privacy.
    """

    column: Numbers
    measure: ClassVar[str] = "R²"
    constant: ClassVar[str] = "mean label"

    @classmethod
    def within(cls, low: float, high: float) -> Self:
        return cls(Numbers.of(low, high, 1))

    @property
    def outputs(self) -> int:
        return 1

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.squeeze(1) - labels).square()

    def predictions(self, outputs: Tensor) -> Tensor:
        """[n], in the units of the column."""
        scaled = outputs.double().squeeze(1).nan_to_num(nan=0.0).clamp(-1, 1)
        return torch.from_numpy(self.column.unscaled((scaled.numpy() + 1) / 2))

    def scaled(self, values: object) -> Tensor:
        """Values in the units of the column as labels from -1 to 1."""
        return torch.from_numpy((2 * self.column.scaled(values) - 1).astype(np.float32))

    def measures(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        truth = self.predictions(labels.unsqueeze(1))
        errors = self.predictions(outputs) - truth
        return {self.measure: _explained(errors, truth), "MAE": _mean(errors.abs()), "RMSE": _mean(errors**2) ** 0.5}

    def best_constant(self, labels: Tensor) -> float:
        return 0.0


@final
@dataclass(frozen=True)
class Labels:
    """Several labels, each yes or no; the loss is the sum of their binary cross-entropies."""

    names: tuple[str, ...]
    measure: ClassVar[str] = "label accuracy"
    constant: ClassVar[str] = "majority labels"

    def __post_init__(self) -> None:
        remedy = "name each label once"
        require(bool(self.names) and len(set(self.names)) == len(self.names), "distinct labels", self.names, remedy)

    @property
    def outputs(self) -> int:
        return len(self.names)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, labels, reduction="none").sum(1)

    def measures(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        given, truth = outputs > 0, labels > 0.5
        right, hits = given == truth, 2 * (given & truth).sum(0)
        found = given.sum(0) + truth.sum(0)
        f1 = torch.where(found > 0, hits / found.clamp(min=1), 1.0)  # nothing to find, nothing found
        return {self.measure: _mean(right), "all labels right": _mean(right.all(1)), "F1": _mean(f1)}

    def best_constant(self, labels: Tensor) -> float:
        share = labels.double().mean(0) if len(labels) else torch.ones(1)
        return _mean(torch.maximum(share, 1 - share))


def labels_of(number: int, names: Sequence[str] = ()) -> Labels:
    """So many labels, named by their place unless names are given.

    >>> labels_of(2).names
    ('0', '1')
    """
    count("the number of labels is public: give it", labels=number)
    return Labels(tuple(names) or tuple(map(str, range(number))))


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if values.numel() else 0.0


def _explained(errors: Tensor, truth: Tensor) -> float:
    """The share of the variance that predictions explain; 0 if the labels are all the same."""
    spread = float((truth - truth.mean()).square().sum()) if len(truth) else 0.0
    return 1 - float(errors.square().sum()) / spread if spread > 0 else 0.0
