"""Ways to train a head: each is charged like any plan, and what they add computes what it says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import discreet
from discreet import methods
from discreet.core.streams import Streams
from discreet.data import load
from discreet.runs.presets import DEFAULTS, Defaults
from research.heads.layers import Moments, RandomFeatures, Scaled, ScaleThenPrivatise, StandardisedConv, shifted
from research.heads.page import page
from research.heads.ways import HEADS, NETWORKS, Problem, Way
from research.records.choose import split

KNOWN = Defaults(model="head", batch=200, steps=4, clip=0.3, reach=2.0, momentum=0.9, schedule="linear", average=0.0)
WAY: dict[str, Any] = {
    "about": "as it is",
    "chosen": {"clip": 0.3},
    "trials": [{"setting": {"clip": 0.3}, "accuracy": 0.84}] * 4,
    "runs": [
        {"accuracy": 0.85, "epsilon": 0.999, "cpu_seconds": 2.0},
        {"accuracy": 0.86, "epsilon": 0.999, "cpu_seconds": 3.0},
    ],
    "accuracy": {"mean": 0.855, "half": 0.01},
}


@pytest.mark.parametrize("way", [*HEADS, *NETWORKS], ids=lambda way: way.name)
def test_each_way_stays_within_its_budget(way: Way) -> None:
    known = KNOWN if way in HEADS else DEFAULTS["digits"]
    problem = Problem(task=split(load("digits")), epsilon=3.0, known=known)
    setting = {**way.grid(known)[0]}
    if way in NETWORKS:  # two steps of the usual batch
        problem = Problem(task=problem.task, epsilon=3.0, known=Defaults(model="cnn-digits", batch=256, steps=2))
    if "steps" in setting:
        setting["steps"] = 2
    trained = way.train(problem, setting, Streams.seeded(0))
    assert 0 < trained.epsilon <= 3.0
    assert len(way.grid(known)) == 4  # as many trials for each
    x = problem.task.test.tensors[0][:5]
    assert trained.model(x).isfinite().all()


def test_the_moments_of_records_are_released_whole() -> None:
    """With hardly any noise, one step gives X'X and X'Y; no record is clipped if all have length 1."""
    torch.manual_seed(0)
    x, y = F.normalize(torch.randn(50, 6), dim=1), torch.randint(0, 3, (50,))
    moments, weight = Moments(6, 3), 0.5
    plan = methods.dp_sgd(clip=math.sqrt(1 + weight**2)).using(sampling=discreet.FullBatch())
    bound = plan.for_budget(epsilon=1e9, delta=1e-5, records=50, batch=50, steps=1)
    optimizer = torch.optim.SGD(moments.parameters(), lr=50.0)
    private = discreet.Private(moments, optimizer, bound, (x, y), streams=Streams.seeded(0))
    for some, labels in private:
        second, cross = moments(some)
        private.step(-second.sum(1) - weight * (cross * F.one_hot(labels, 3)).sum(1))
    answers = F.one_hot(y, 3).float()
    assert torch.allclose(moments.second.weight, x.mT @ x, atol=0.02)
    assert torch.allclose(moments.cross.weight / weight, answers.mT @ x, atol=0.02)
    centred = answers - answers.mean(1, keepdim=True)
    expected = torch.linalg.solve(x.mT @ x + 2.0 * torch.eye(6), x.mT @ centred).mT
    assert torch.allclose(moments.solved(2.0, weight), expected, atol=0.01)


def test_scaling_changes_what_is_clipped_and_not_the_model() -> None:
    layer = Scaled(4, 2)
    optimizer = ScaleThenPrivatise(layer, lr=0.1)
    with torch.no_grad():
        layer.weight.normal_()
    x, before = torch.randn(3, 4), layer.weight.detach() * layer.scale
    layer.weight.grad = torch.tensor([[1.0, 10.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    optimizer.step()
    after = layer.weight.detach() * layer.scale
    assert torch.allclose(before - after, torch.full((2, 4), 0.1), atol=1e-5)  # Adam's first step: the sign
    assert layer.scale[0, 1] < layer.scale[0, 0]
    assert math.isclose(layer.scale.square().mean().item(), 1.0, rel_tol=1e-5)
    assert torch.allclose(layer(x), x @ after.mT, atol=1e-6)


def test_standardised_filters_have_no_mean_and_equal_length() -> None:
    conv = StandardisedConv(nn.Conv2d(2, 5, 3, stride=2, padding=1))
    out = conv(torch.ones(1, 2, 9, 9))
    assert out.shape == (1, 5, 5, 5)
    inner = out[0, :, 2, 2] - conv.bias
    assert torch.allclose(inner, torch.zeros(5), atol=1e-5)  # a constant image


def test_shifted_images_move_by_at_most_one_pixel() -> None:
    images = torch.zeros(200, 1, 8, 8)
    images[:, 0, 4, 4] = 1.0
    moved = shifted(images)
    places = moved.flatten(1).argmax(1)
    assert moved.sum() == 200
    assert set(zip((places // 8).tolist(), (places % 8).tolist(), strict=True)) == {
        (row, column) for row in (3, 4, 5) for column in (3, 4, 5)
    }


def test_random_features_keep_records_short() -> None:
    x = F.normalize(torch.randn(10, 7), dim=1)
    assert RandomFeatures(7, 20)(x).norm(dim=1).max() < 1 + 1e-6


def test_the_page_tells_rows_apart_from_the_first() -> None:
    better = {**WAY, "runs": [{**run, "accuracy": run["accuracy"] + 0.1} for run in WAY["runs"]]}
    one = {
        "data": "adult",
        "epsilon": 1.0,
        "model": "head",
        "features": ["bins"],
        "ways": {"SGD": WAY, "other": better},
    }
    text = page({"problems": {"adult-1-head": one}, "command": "python -m research.heads"})
    assert "| SGD | as it is | 4 | clip 0.3 | 0.999 | 2 | 85.5 ± 1.0 % |  | 2 |" in text
    assert "| better |" in text
    tried = {**WAY, "trials": [{"setting": {}, "accuracy": 0.8}], "runs": []}
    text = page({"problems": {"adult-1-head": {**one, "ways": {"SGD": WAY, "other": tried}}}})
    assert "Tried on the split only, where the first row reached 84.0 %: other 80.0 %." in text
    empty = {**one, "ways": {}}
    assert "Not measured yet" in page({"problems": {"x": empty}})
