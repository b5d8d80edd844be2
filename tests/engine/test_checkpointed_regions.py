"""Regions of torch.utils.checkpoint wherever they are: their second run makes the calls of the first, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import Bare
from steps import classifier, each, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from discreet.core.check import Refused

Region = Callable[[Tensor], Tensor]


def twice(factor: float) -> Region:
    """A region that multiplies by something else when it runs again."""
    runs = [0]

    def region(h: Tensor) -> Tensor:
        runs[0] += 1
        return h * (torch.ones_like(h) * (1.0 if runs[0] == 1 else factor))

    return region


def in_the_loss(private: Any, model: Any, x: Tensor, factor: float) -> Tensor:
    hidden: Tensor = checkpoint(twice(factor), model(x), use_reentrant=False)
    return hidden


def in_the_model(private: Any, model: Any, x: Tensor, factor: float) -> Tensor:
    model.factor = factor
    hidden: Tensor = model(x)
    return hidden


def around_the_model(private: Any, model: Any, x: Tensor, factor: float) -> Tensor:
    region = twice(factor)
    hidden: Tensor = checkpoint(lambda h: region(model(h)), x, use_reentrant=False)
    return hidden


def by_a_public_tensor(private: Any, model: Any, x: Tensor, factor: float) -> Tensor:
    """No call on records in the region has another number."""
    runs = [0]

    def region(h: Tensor) -> Tensor:
        runs[0] += 1
        scale = torch.ones(3) * (1.0 if runs[0] == 1 else factor)
        return h * scale

    hidden: Tensor = checkpoint(region, model(x), use_reentrant=False)
    return hidden


def body_of(run: Any, *, changes: bool) -> Any:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(run(private, model, x, -1.0 if changes and not private.is_rehearsal else 1.0), y))

    return body


def model_of(run: Any) -> nn.Module:
    if run is not in_the_model:
        return classifier()
    torch.manual_seed(0)
    forward = lambda own, x: checkpoint(twice(own.factor), own.head(x), use_reentrant=False)  # noqa: E731
    model = Bare(forward, head=nn.Linear(6, 3))
    model.factor = 1.0  # type: ignore[assignment]
    return model


PLACES = [in_the_loss, in_the_model, around_the_model, by_a_public_tensor]


@pytest.mark.parametrize("run", PLACES, ids=lambda run: run.__name__)
def test_another_second_run_is_refused(run: Any) -> None:
    with pytest.raises(Refused, match="makes the same calls when it runs again"):
        train(model_of(run), body_of(run, changes=True), steps=2)


@pytest.mark.parametrize("run", PLACES, ids=lambda run: run.__name__)
def test_the_same_second_run_is_accepted(run: Any) -> None:
    assert train(model_of(run), body_of(run, changes=False), steps=2).updates == 2


@pytest.mark.parametrize("run", ["loss", "model"])
def test_a_reentrant_region_without_parameters_is_refused(run: str) -> None:
    region = lambda h: h.tanh() * 2  # noqa: E731

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        private.step(each(checkpoint(region, outputs, use_reentrant=True) if run == "loss" else outputs, y))

    model = Bare(lambda own, x: checkpoint(region, own.head(x), use_reentrant=True), head=nn.Linear(6, 3))
    with pytest.raises(Refused, match="use_reentrant=False"):
        train(classifier() if run == "loss" else model, body, steps=2)


def test_regions_in_one_another_are_refused() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        inner = lambda h: checkpoint(torch.tanh, h * 2, use_reentrant=False)  # noqa: E731
        private.step(each(checkpoint(inner, model(x), use_reentrant=False), y))

    with pytest.raises(Refused, match="do not nest checkpoints"):
        train(body=body, steps=2)


REGIONS: dict[str, Region] = {
    "dropout": lambda h: F.dropout(h * 2, 0.5),
    "attention": lambda h: F.scaled_dot_product_attention(*[h.view(-1, 1, 3, 1)] * 3).view(-1, 3),
    "a public draw": lambda h: h * torch.rand(len(h), 3),
    "nothing saved": lambda h: h + 1,
    "calls behind the last that saves": lambda h: torch.tanh(h) + 1,
    "a constant": lambda h: h * torch.arange(3),
}


@pytest.mark.parametrize("in_model", [False, True], ids=["loss", "model"])
@pytest.mark.parametrize("name", REGIONS)
def test_regions_without_parameters_are_accepted(name: str, in_model: bool) -> None:
    region = REGIONS[name]

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        private.step(each(outputs if in_model else checkpoint(region, outputs, use_reentrant=False), y))

    torch.manual_seed(0)
    model = Bare(lambda own, x: checkpoint(region, own.head(x), use_reentrant=False), head=nn.Linear(6, 3))
    assert train(model if in_model else classifier(), body, steps=2, fixed=False).updates == 2
