"""Rows that no method made: without privacy, and of the majority class."""

import dataclasses

import pytest
import torch
from torch.utils.data import TensorDataset

from discreet import runs
from discreet.core.check import Refused
from discreet.data import Task
from discreet.runs.reference import majority, reference_rows, without_privacy

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(600, 4, generator=GENERATOR)
Y = (X[:, 0] > 0.5).long()
TASK = Task("own", TensorDataset(X[:500], Y[:500]), TensorDataset(X[500:], Y[500:]), 2, (4,), "none", True, 500, "none")
CONFIG = runs.complete(
    runs.RunConfig(delta=1e-5, out="unused", data="own.npz", classes=2, epsilon=1.0, model="softmax")
)


def test_the_majority_is_that_of_the_test_records() -> None:
    assert majority(TASK) == pytest.approx(max(Y[500:].float().mean(), 1 - Y[500:].float().mean()))
    flipped = dataclasses.replace(TASK, train=TensorDataset(X[:500], 1 - Y[:500]))
    assert majority(flipped) == majority(TASK)  # no protected record counts


def test_training_without_privacy_learns_and_is_repeatable() -> None:
    found = without_privacy(CONFIG, TASK, passes=20)
    assert found > max(0.9, majority(TASK) + 0.1)
    assert without_privacy(CONFIG, TASK, passes=20) == found


def test_private_records_are_not_trained_on_without_noise() -> None:
    private = dataclasses.replace(TASK, public=False)
    with pytest.raises(Refused, match="public records for the row without privacy"):
        without_privacy(CONFIG, private, passes=1)
    plain, most = reference_rows(CONFIG, private, passes=1)
    assert plain.accuracy is None
    assert "would reveal private records" in plain.about
    assert most.accuracy == majority(TASK)
