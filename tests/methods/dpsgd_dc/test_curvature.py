"""Smoothness and Lipschitz factors of linear models: by formula, and against the losses themselves."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import Refused
from discreet.methods.dpsgd_dc.curvature import Assumed, LinearModel, Link


def loss(link: Link, scores: Tensor, label: int) -> Tensor:
    if link is Link.LOGISTIC:
        return F.binary_cross_entropy_with_logits(scores[0], torch.tensor(float(label % 2)).double())
    if link is Link.SQUARED:
        return (scores[0] - label) ** 2 / 2
    return F.cross_entropy(scores[None], torch.tensor([label]))[()]


def hessian_norm(link: Link, features: Tensor, weights: Tensor, label: int) -> float:
    """The curvature of one record's loss in all parameters."""
    shape = weights.shape

    def of(flat: Tensor) -> Tensor:
        return loss(link, flat.view(shape) @ features, label)

    hessian = torch.autograd.functional.hessian(of, weights.reshape(-1))
    return float(torch.linalg.matrix_norm(hessian, 2))


@pytest.mark.parametrize("link", Link)
def test_smoothness_is_an_upper_bound_and_is_attained(link: Link) -> None:
    generator = torch.Generator().manual_seed(5)
    bound, classes = 1.7, 1 if link.one_score else 3
    limit = LinearModel(link=link, features=bound).smoothness
    most = 0.0
    for trial in range(60):
        features = torch.randn(4, generator=generator, dtype=torch.float64)
        features = torch.cat([features / features.norm() * bound, torch.ones(1, dtype=torch.float64)])
        weights = torch.randn(classes, 5, generator=generator, dtype=torch.float64) * (2.0 if trial % 2 else 0.0)
        if link is Link.SOFTMAX and trial % 3 == 0:
            weights[2] = -50 * features / features.norm()  # two classes of probability 1/2: the worst case
            weights[:2] = 0
        most = max(most, hessian_norm(link, features, weights, trial % classes))
    assert most <= limit * (1 + 1e-9)
    assert most > 0.99 * limit  # a smaller constant would be wrong


def test_without_a_bias_the_features_alone_count() -> None:
    assert LinearModel(link=Link.LOGISTIC, features=2.0, bias=False).smoothness == 1.0
    assert LinearModel(link=Link.LOGISTIC, features=2.0).smoothness == 1.25
    assert LinearModel(link=Link.SQUARED, features=2.0).smoothness == 5.0
    assert LinearModel(link=Link.SOFTMAX, features=2.0).smoothness == 2.5


def step(link: Link, x: Tensor, records: Tensor, labels: Tensor, eta: float, clip: float, decay: float) -> Tensor:
    """The noiseless update with per-sample clipping, over a divisor of four."""
    total = torch.zeros_like(x)
    for features, label in zip(records, labels.tolist(), strict=True):
        leaf = x.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss(link, leaf.view(-1, len(features)) @ features, label), leaf)
        total += gradient * min(1.0, clip / max(float(gradient.norm()), 1e-300))
    return x - eta * (total / 4 + decay * x)


@pytest.mark.parametrize("link", Link)
@pytest.mark.parametrize(("eta", "decay", "size"), [(0.7, 0.0, 4), (1.5, 0.1, 4), (0.7, 0.0, 6), (5.0, 0.0, 4)])
def test_no_pair_of_points_is_pushed_apart_by_more(link: Link, eta: float, decay: float, size: int) -> None:
    """Random pairs, clips that bite and clips that do not, batches larger than the divisor."""
    generator = torch.Generator().manual_seed(6)
    known = LinearModel(link=link, features=1.0)
    factor = known.expansion(learning_rate=eta, ratio=size / 4, decay=decay)
    width = 4 if link.one_score else 12
    for trial in range(40):
        records = torch.randn(size, 3, generator=generator, dtype=torch.float64)
        records = torch.cat([records / records.norm(dim=1, keepdim=True), torch.ones(size, 1)], 1)
        records[1:] = records[0] if trial % 2 else records[1:]  # all alike: the curvatures add up
        labels = torch.randint(0, 2 if link.one_score else 3, (size,), generator=generator)
        x = torch.randn(width, generator=generator, dtype=torch.float64) * (0.1, 1.0, 5.0)[trial % 3]
        y = x + torch.randn(width, generator=generator, dtype=torch.float64) * (1e-3, 1.0)[trial % 2]
        clip = (0.2, 1.0, 100.0)[trial % 3]
        apart = step(link, x, records, labels, eta, clip, decay) - step(link, y, records, labels, eta, clip, decay)
        assert float(apart.norm()) <= factor * float((x - y).norm()) * (1 + 1e-9)


def test_factors() -> None:
    logistic = LinearModel(link=Link.LOGISTIC, features=1.0)  # L = 1/2
    assert logistic.expansion(learning_rate=4.0, ratio=1.0, decay=0.0) == 1.0
    assert logistic.expansion(learning_rate=4.0, ratio=2.0, decay=0.0) == 3.0
    assert logistic.expansion(learning_rate=2.0, ratio=1.0, decay=0.01) == pytest.approx(0.98)
    softmax = LinearModel(link=Link.SOFTMAX, features=1.0)  # L = 1
    assert softmax.expansion(learning_rate=1.0, ratio=1.0, decay=0.0) == pytest.approx(2 / math.sqrt(3))
    assert softmax.expansion(learning_rate=3.0, ratio=1.0, decay=0.0) == pytest.approx(4.0)
    assert softmax.expansion(learning_rate=1.0, ratio=1.0, decay=0.1) == pytest.approx(1.9)
    assert softmax.expansion(learning_rate=1.0, ratio=1.0, decay=0.0) > 1  # convexity alone is not enough


def test_assumptions_are_conditions() -> None:
    assert LinearModel(link=Link.LOGISTIC, features=1.0).condition is None
    assert Assumed(smoothness=3.0).condition == "if every loss is L-smooth with L = 3"
    assert Assumed(smoothness=0.5, convex=True).condition == "if every loss is convex and L-smooth with L = 0.5"
    assert Assumed(smoothness=1.0).expansion(learning_rate=0.2, ratio=1.0, decay=0.0) == pytest.approx(1.2)
    convex = Assumed(smoothness=1.0, convex=True).expansion(learning_rate=1.0, ratio=1.0, decay=0.0)
    assert convex == pytest.approx(2 / math.sqrt(3))


def test_refusals() -> None:
    with pytest.raises(Refused, match="public bound"):
        LinearModel(link=Link.LOGISTIC, features=0.0)
    with pytest.raises(Refused, match="curvature of every loss"):
        Assumed(smoothness=-1.0)
    with pytest.raises(ValueError, match="hinge"):
        LinearModel(link="hinge", features=1.0)  # type: ignore[arg-type]
