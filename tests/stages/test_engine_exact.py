"""Norms, weighted sums and gradients of every supported model, against torch.func."""

from __future__ import annotations

import pytest
import torch
from problems import PROBLEMS, Problem, losses_of
from truths import TOLERANCE, answer, cast, disagreement, gap, rows, trained, truth_of

from discreet.stages.engine import Engine

each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


@each_dtype
@each_problem
def test_equals_torch_func(problem: Problem, dtype: torch.dtype) -> None:
    model = problem.model().to(dtype)
    engine = Engine(model)
    tolerance = TOLERANCE[dtype] * (problem.rounds if dtype == torch.float32 else 1)
    for records in (7, 1, 2):
        inputs = cast(problem.inputs(records), dtype)
        truth = truth_of(problem, model, inputs, records)
        weights = torch.rand(records, dtype=torch.float64)
        found = answer(engine, inputs, records, weights)
        assert disagreement(found, truth, weights) < tolerance
        assert found.norms.dtype == torch.float64
        assert found.total.dtype == dtype
    assert all(p.grad is None for p in trained(model).values())
