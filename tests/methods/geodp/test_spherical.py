"""Hyperspherical coordinates: round trips, definitions at zeros, the paper's example, linear time."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from discreet.auditing import broken
from discreet.core.check import Refused
from discreet.methods.geodp.spherical import canonical_, from_spherical, middle, to_spherical, wrapped

SIZES = [2, 3, 10, 1000, 10**6]


def vectors(size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(size)
    random = torch.randn(size, generator=generator, dtype=torch.float64)
    one_hot = torch.zeros(size, dtype=torch.float64)
    one_hot[size // 2] = -3.0
    ends = torch.zeros(size, dtype=torch.float64)
    ends[-1] = -1.0
    return {
        "random": random,
        "float32": random.float(),
        "sparse": random * (torch.rand(size, generator=generator) < 0.01),
        "one-hot": one_hot,
        "last": ends,
        "tiny": random * 1e-300,
        "tiny float32": (random * 1e-38).float(),
        "huge": random * 1e300,
        "heavy tails": random / torch.randn(size, generator=generator, dtype=torch.float64),
        "falling": random * torch.logspace(0, -60, size, dtype=torch.float64),
        "negative": -random.abs(),
        "zero": torch.zeros(size),
    }


@pytest.mark.parametrize("size", SIZES)
def test_there_and_back(size: int) -> None:
    for name, vector in vectors(size).items():
        norm, angles = to_spherical(vector)
        back = from_spherical(norm, angles)
        largest = float(vector.double().abs().max())
        worst = float((back - vector.double()).abs().max())
        assert worst <= 1e-6 * largest, name
        scaled = vector.double() / max(largest, 5e-324)
        assert float(norm) == pytest.approx(float(scaled.norm()) * largest, rel=1e-9), name


@pytest.mark.parametrize("size", [2, 3, 10, 1000])
def test_angles_lie_in_their_ranges(size: int) -> None:
    for name, vector in vectors(size).items():
        _, angles = to_spherical(vector)
        assert angles.shape == (size - 1,)
        assert bool(((angles[:-1] >= 0) & (angles[:-1] <= math.pi)).all()), name
        assert -math.pi < float(angles[-1]) <= math.pi, name


@pytest.mark.parametrize("size", [2, 3, 10, 200])
def test_as_the_definition_says(size: int) -> None:
    """Equations 24 to 27 with tail sums, one coordinate after the other."""
    g = vectors(size)["random"].tolist()
    norm, angles = to_spherical(torch.tensor(g, dtype=torch.float64))
    for k in range(size - 2):
        tail = math.sqrt(math.fsum(value**2 for value in g[k + 1 :]))
        assert float(angles[k]) == pytest.approx(math.atan2(tail, g[k]), abs=1e-12)
    assert float(angles[-1]) == pytest.approx(math.atan2(g[-1], g[-2]), abs=1e-12)
    back = from_spherical(norm, angles)
    for k in range(size):
        product = float(norm) * math.prod(math.sin(angle) for angle in angles[:k].tolist())
        expected = product * (math.cos(angles[k]) if k < size - 1 else 1.0)
        assert float(back[k]) == pytest.approx(expected, abs=1e-12)


def test_a_second_implementation_agrees() -> None:
    vector = vectors(50)["random"]
    angles = to_spherical(vector)[1]
    assert np.allclose(angles.numpy(), broken.to_angles(vector.numpy()), atol=1e-12)
    unit = broken.from_angles(angles.numpy()[:, None])[:, 0]
    assert np.allclose(from_spherical(torch.tensor(1.0), angles).numpy(), unit, atol=1e-12)


def test_many_at_once_are_each_alone() -> None:
    rows = torch.stack([vectors(30)[name].double() for name in ("random", "zero", "one-hot", "tiny")])
    norms, angles = to_spherical(rows)
    for row, norm, own in zip(rows, norms, angles, strict=True):
        alone = to_spherical(row)
        assert torch.equal(alone[0], norm)
        assert torch.equal(alone[1], own)
    together = from_spherical(norms, angles)
    for row, back in zip(rows, together, strict=True):
        assert torch.allclose(back, row, rtol=1e-9, atol=0) or float(row.abs().max()) in (0.0, 3.0)


def test_zeros_have_angles() -> None:
    assert to_spherical(torch.zeros(4))[1].tolist() == [0.0, 0.0, 0.0]
    assert to_spherical(torch.tensor([0.0, -0.0, -0.0]))[1].tolist() == [0.0, 0.0]
    assert to_spherical(torch.tensor([-1.0, 0.0, 0.0]))[1].tolist() == [math.pi, 0.0]
    assert to_spherical(torch.tensor([0.0, -1.0, -0.0]))[1].tolist() == [math.pi / 2, math.pi]
    assert to_spherical(torch.tensor([0.0, 0.0, -2.0]))[1].tolist() == [math.pi / 2, -math.pi / 2]
    assert not bool(from_spherical(torch.tensor(0.0), torch.tensor([1.0, 2.0])).any())


def test_long_products_of_sines_do_not_underflow_early() -> None:
    """2^-1000 times a norm of 1e300 is not zero; in the product alone it nearly is."""
    angles = torch.full((1001,), math.pi / 6, dtype=torch.float64)
    last = float(from_spherical(torch.tensor(1e300, dtype=torch.float64), angles)[-1])
    assert last == pytest.approx(1e300 * 0.5**1001, rel=1e-9)


def test_noisy_coordinates_of_any_size_are_a_vector() -> None:
    """Negative norms and angles beyond their ranges: signs are those of the sines and the norm."""
    norm, angles = torch.tensor(-2.0), torch.tensor([-0.5, 4.0, 9.0], dtype=torch.float64)
    sin, cos = np.sin(angles.numpy()), np.cos(angles.numpy())
    expected = -2 * np.array([cos[0], sin[0] * cos[1], sin[0] * sin[1] * cos[2], sin[0] * sin[1] * sin[2]])
    assert np.allclose(from_spherical(norm, angles).numpy(), expected, atol=1e-12)


def test_example_1_of_the_paper() -> None:
    """Clipping shrinks the noise and leaves the perturbed direction as it is: 0.97 both times."""
    gradient, noise = torch.tensor([1.0, math.sqrt(3)]), torch.tensor([0.3, 0.15])
    norm, angle = to_spherical(gradient)
    assert float(norm) == pytest.approx(2.0)
    assert float(angle) == pytest.approx(math.pi / 3)
    for clip in (2.0, 1.0):
        clipped = gradient / max(1.0, 2.0 / clip)
        perturbed = to_spherical(clipped + noise * clip / 2)[1]
        assert float(perturbed) == pytest.approx(0.97, abs=0.005)


def test_the_middle_of_every_range() -> None:
    assert middle(5, torch.zeros((), dtype=torch.float32)).tolist() == [math.pi / 2] * 3 + [0.0]
    assert middle(2, torch.zeros(())).tolist() == [0.0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=6))
def test_canonical_angles_are_in_range_and_the_last_keeps_its_direction(values: list[float]) -> None:
    before = torch.tensor(values, dtype=torch.float64)
    after = canonical_(before.clone())
    assert bool(((after[:-1] >= 0) & (after[:-1] <= math.pi)).all())
    assert float(after[-1].sin()) == pytest.approx(float(before[-1].sin()), abs=1e-9)
    assert float(after[-1].cos()) == pytest.approx(float(before[-1].cos()), abs=1e-9)
    assert bool((wrapped(before).abs() <= math.pi).all())


def test_one_coordinate_has_no_direction() -> None:
    for value in (torch.ones(1), torch.ones(3, 1), torch.tensor(1.0)):
        with pytest.raises(Refused, match="2 coordinates"):
            to_spherical(value)
    with pytest.raises(Refused, match="angle"):
        from_spherical(torch.tensor(1.0), torch.zeros(0))
    with pytest.raises(Refused, match="2 coordinates"):
        middle(1, torch.zeros(()))


def test_the_time_grows_with_the_size_alone() -> None:
    """Processor time of 10^6 over that of 10^5 coordinates: 10 if linear, 100 if quadratic; the best of five."""

    def cost(size: int) -> float:
        vector = torch.randn(size)
        times = []
        for _ in range(5):
            began = time.thread_time()
            from_spherical(*to_spherical(vector))
            times.append(time.thread_time() - began)
        return min(times)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert cost(10**6) < 40 * cost(10**5)
    finally:
        torch.set_num_threads(threads)
