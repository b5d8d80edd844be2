"""Values that carry their guarantee: who may build them, and what dividing does to it."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch

from discreet.core.check import Refused
from discreet.engine.layout import Layout, Lines, Mask
from discreet.stages.values import _AGGREGATION, BoundedSum, PrivateState, Released


def bounded(sensitivity: float = 2.0) -> BoundedSum:
    return BoundedSum(torch.arange(4.0), sensitivity, key=_AGGREGATION)


def test_only_aggregation_builds_bounded_sums() -> None:
    with pytest.raises(Refused, match="from aggregation, which proves the bound"):
        BoundedSum(torch.zeros(2), 1.0, key=object())


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.inf, math.nan, True, "1"])
def test_a_bound_is_a_positive_number(sensitivity: Any) -> None:
    with pytest.raises(Refused, match="sensitivity"):
        bounded(sensitivity)


@pytest.mark.parametrize("divisor", [8, 8.0, torch.tensor(8.0), True])
def test_a_bounded_sum_cannot_be_divided(divisor: Any) -> None:
    """The size of the drawn batch is private; the noisy sum is divided by the public batch size instead."""
    with pytest.raises(TypeError, match="unsupported operand"):
        bounded() / divisor  # type: ignore[operator]


def test_a_bound_cannot_be_written_over() -> None:
    total = bounded()
    with pytest.raises(Refused, match="unchanged BoundedSum"):
        total.sensitivity = 0.1
    with pytest.raises(Refused, match="unchanged BoundedSum"):
        total.value = torch.ones(4)
    with pytest.raises((AttributeError, Refused)):
        total.note = "x"  # type: ignore[attr-defined]


def test_nothing_private_is_printed() -> None:
    assert repr(bounded()) == "BoundedSum(<private>, sensitivity=2.0)"
    assert "7" not in repr(PrivateState(torch.tensor(7.0)))
    assert str(PrivateState([7])) == "PrivateState(<hidden>)"


def test_private_state_stays_in_memory() -> None:
    state = PrivateState(torch.ones(2))
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(Refused, match="private state to stay in memory"):
            leak(state)
    assert torch.equal(state.reveal_to_mechanism(), torch.ones(2))


def test_layout() -> None:
    layout = Layout(("w", "b", "s"), ((2, 3), (3,), ()))
    assert layout.size == 10
    assert layout.sizes == (6, 3, 1)
    flat = torch.arange(20.0).view(2, 10)
    views = layout.views(flat)
    assert [tuple(view.shape) for view in views] == [(2, 2, 3), (2, 3), (2,)]
    assert views[0][1].flatten().tolist() == [10, 11, 12, 13, 14, 15]
    views[2][0] = -1
    assert flat[0, 9] == -1  # views, not copies


def test_masks_as_truth_values() -> None:
    matrix, vector = torch.zeros(2, 3), torch.zeros(3)
    rows, columns = torch.tensor([True, False]), torch.tensor([True, False, True])
    element = torch.rand(2, 3) < 0.5
    mask = Mask(
        (True, False, Lines(rows, columns), Lines(None, columns), Lines(rows, None), element, Lines(columns, None))
    )
    assert mask.of(0, matrix) is None
    found = [mask.of(i, matrix) for i in range(1, 6)]
    assert [f.tolist() for f in found if f is not None] == [
        torch.zeros(2, 3).bool().tolist(),
        [[True, False, True], [False, False, False]],
        [[True, False, True]] * 2,
        [[True] * 3, [False] * 3],
        element.tolist(),
    ]
    of_vector = mask.of(6, vector)
    assert of_vector is not None
    assert of_vector.tolist() == columns.tolist()


def test_a_mask_sets_frozen_coordinates_to_exact_zero() -> None:
    layout = Layout(("w", "b"), ((2, 3), (3,)))
    flat = torch.randn(9)
    flat[1] = math.nan
    mask = Mask((torch.tensor([[True, False, True], [False, True, True]]), False))
    before = flat.clone()
    mask.apply_(layout.views(flat))
    assert flat.tolist() == [before[0], 0, before[2], 0, before[4], before[5], 0, 0, 0]
    same = flat.clone()
    Mask.everything(layout).apply_(layout.views(flat))
    assert torch.equal(flat, same)


def test_a_mask_knows_whom_it_is_for() -> None:
    layout = Layout(("w", "s"), ((2, 3), ()))
    Mask((Lines(torch.ones(2).bool(), torch.ones(3).bool()), torch.tensor(True))).check(layout)
    Mask((True, False)).check(layout)
    for pieces in ((True,), (torch.ones(3).bool(), True), (True, Lines(torch.ones(1).bool(), None))):
        with pytest.raises(Refused, match="mask"):
            Mask(pieces).check(layout)


def test_what_was_released_is_one_vector_with_views() -> None:
    layout = Layout(("w", "b"), ((2, 3), (3,)))
    released = Released(torch.arange(9.0), layout)
    assert [tuple(view.shape) for view in released.views()] == [(2, 3), (3,)]
