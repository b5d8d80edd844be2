"""Norms and sums on active coordinates, for every kind of mask and every kind of factors."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from problems import PROBLEMS, Problem
from torch import Tensor
from truths import TOLERANCE, answer, cast, gap, truth_of

from discreet.core.check import Refused
from discreet.engine.engine import Engine
from discreet.engine.factors import convolution, restrict
from discreet.engine.factors import linear as outer
from discreet.engine.factors import parts as factors
from discreet.engine.layout import Layout, Lines, Mask, Piece

KINDS = (
    *("linear", "linear 3-D", "linear, wide", "linear, long sequence", "conv2d, stride", "conv_transpose2d"),
    *("embedding, repeated tokens", "layer norm", "tied, transposed", "two scales", "bare parameters", "lstm"),
)


def lines(shape: tuple[int, ...], rows: bool, columns: bool) -> Piece:
    """Some rows, some columns; single elements where a parameter has none."""
    if len(shape) < 2:
        return torch.rand(shape) < 0.5
    return Lines(torch.rand(shape[0]) < 0.6 if rows else None, torch.rand(shape[1]) < 0.6 if columns else None)


def some_off(index: int, shape: tuple[int, ...]) -> Piece:
    return index % 2 == 0


MASKS = {
    "elements": lambda index, shape: torch.rand(shape) < 0.5,
    "rows": lambda index, shape: lines(shape, True, False),
    "columns": lambda index, shape: lines(shape, False, True),
    "rows and columns": lambda index, shape: lines(shape, True, True),
    "whole tensors": some_off,
    "nothing": lambda index, shape: torch.zeros(shape, dtype=torch.bool),
    "no line": lambda index, shape: Lines(torch.zeros(shape[0]).bool(), None) if len(shape) > 1 else False,
    "everything": lambda index, shape: True,
}
STRATEGIES = {
    "as it comes": (),
    "nothing is kept": ((factors, "KEEP_ELEMENTS", 100),),
    "gram": ((outer, "GRAM_RATIO", float("inf")), (convolution, "GROUPED_CHANNEL_PAIRS", 0)),
}


def flat(mask: Mask, layout: Layout) -> Tensor:
    """One truth value per coordinate, read from the pieces by hand."""
    values = []
    for piece, shape in zip(mask.pieces, layout.shapes, strict=True):
        active = torch.ones(shape, dtype=torch.bool)
        if isinstance(piece, Lines):
            if piece.rows is not None:
                active[~piece.rows] = False
            if piece.columns is not None:
                active[:, ~piece.columns] = False
        else:
            active &= torch.as_tensor(piece)
        values.append(active.reshape(-1))
    return torch.cat(values)


@pytest.mark.parametrize("name", KINDS)
def test_masked_norms_and_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS[name]
    for dtype in (torch.float64, torch.float32):
        model = problem.model().to(dtype)
        inputs = cast(problem.inputs(7), dtype)
        truth = truth_of(problem, model, inputs, 7)
        engine = Engine(model)
        engine.script(*inputs, 7)
        for make in MASKS.values():
            mask = Mask(tuple(make(i, shape) for i, shape in enumerate(engine.layout.shapes)))
            for strategy in STRATEGIES.values():
                with monkeypatch.context() as patched:
                    for module, constant, value in strategy:
                        patched.setattr(module, constant, value)
                    worst = masked_disagreement(engine, problem, inputs, mask, truth)
                assert worst < TOLERANCE[dtype] * problem.rounds * 2


def masked_disagreement(engine: Engine, problem: Problem, inputs: object, mask: Mask, truth: Tensor) -> float:
    """The worst of norms, of sums on active coordinates, and of what happens to frozen ones (nothing)."""
    answer(engine, inputs, 7, torch.ones(7))  # type: ignore[arg-type]
    active, weights = flat(mask, engine.layout), torch.rand(2, 1, 7).double()
    masked = truth.double() * active
    norms = engine.norms(mask=mask)[0]
    start = torch.randn(2, engine.layout.size).to(engine.dtype)
    totals = start.clone()
    engine.add_weighted(weights, totals, mask=mask)
    assert torch.equal(totals[:, ~active], start[:, ~active])
    scale = float(truth.double().norm())
    moved = (totals - start).double() - weights[:, 0] @ masked
    return max(
        float((norms - masked.norm(dim=1)).abs().max()) / max(float(masked.norm(dim=1).max()), 1e-9 * scale, 1e-30),
        0.5 * float(moved.norm()) / scale,
    )


def test_a_broken_restriction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms that ignore the mask, and a mask that is upside down."""
    problem = PROBLEMS["linear 3-D"]
    model = problem.model().double()
    inputs = cast(problem.inputs(7), torch.float64)
    truth = truth_of(problem, model, inputs, 7)
    engine = Engine(model)
    pieces = tuple(torch.rand(shape) < 0.5 for shape in engine.layout.shapes)
    from discreet.engine.factors import gradients as module

    for wrong in (
        lambda own, mask, index: own,
        lambda own, mask, index: restrict.restrict(own, Mask(tuple(~piece for piece in mask.pieces)), index),
    ):
        monkeypatch.setattr(module, "restrict", wrong)
        mask = Mask(pieces)
        answer(engine, inputs, 7, torch.ones(7))
        assert gap(engine.norms(mask=mask)[0], (truth * flat(mask, engine.layout)).norm(dim=1)) > 1e-2


def test_one_mask_for_a_micro_batch() -> None:
    """Norms under one mask bound nothing under another."""
    engine = Engine(torch.nn.Linear(4, 3))
    answer(engine, ((torch.randn(7, 4),), {}), 7, torch.ones(7))
    first, second = (Mask((torch.rand(3, 4) < 0.5, True)) for _ in range(2))
    engine.norms(mask=first)
    with pytest.raises(Refused, match="one mask for a micro-batch"):
        engine.add_weighted(torch.ones(1, 1, 7), engine.zeros(), mask=second)


def test_norms_before_freezing_bound_the_sum_after_it() -> None:
    engine = Engine(torch.nn.Linear(4, 3))
    answer(engine, ((torch.randn(7, 4),), {}), 7, torch.ones(7))
    mask = Mask((torch.rand(3, 4) < 0.5, False))
    whole = engine.norms()
    assert bool((whole >= engine.norms(mask=mask)).all())
    total = engine.zeros()
    engine.add_weighted(1 / whole.unsqueeze(0), total, mask=mask)
    assert float(total.norm()) <= 7


@pytest.mark.parametrize(
    "pieces",
    [
        (True,),
        (torch.ones(4, 3).bool(), True),
        (torch.ones(3, 1).bool(), True),
        (torch.ones(3, 4), True),
        (Lines(torch.ones(4).bool(), None), True),
        (Lines(None, torch.ones(3).bool()), True),
        (True, Lines(None, torch.ones(3).bool())),
        (True, Lines(torch.ones(3), None)),
    ],
    ids=["too few", "turned", "would broadcast", "floats", "rows", "columns", "columns of a vector", "float lines"],
)
def test_masks_of_the_wrong_form(pieces: tuple[Piece, ...]) -> None:
    engine = Engine(torch.nn.Linear(4, 3))
    answer(engine, ((torch.randn(7, 4),), {}), 7, torch.ones(7))
    with pytest.raises(Refused, match="mask"):
        engine.norms(mask=Mask(pieces))


def test_masks_leave_non_finite_records_silent() -> None:
    """A record that is not finite on a frozen coordinate alone takes no part either."""
    x = torch.randn(7, 4)
    x[2, 1] = float("nan")
    engine = Engine(torch.nn.Linear(4, 3, bias=False))
    columns = torch.tensor([True, False, True, True])
    for piece in (Lines(None, columns), columns.expand(3, 4)):
        answer(engine, ((x,), {}), 7, torch.ones(7))
        total = engine.zeros()
        engine.add_weighted(torch.ones(1, 1, 7), total, mask=Mask((piece,)))
        assert bool(total.isfinite().all())


def test_the_table_of_masks_is_not_vacuous() -> None:
    shapes = Layout(("a", "b"), ((8, 9), (7,)))
    for name, make in MASKS.items():
        mask = Mask(tuple(make(i, shape) for i, shape in enumerate(shapes.shapes)))
        active = int(flat(mask, shapes).sum())
        assert (active == 0) == (name in ("nothing", "no line"))
        assert (active == shapes.size) == (name == "everything")
    assert dataclasses.is_dataclass(Mask)
