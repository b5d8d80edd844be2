"""The scattering transform against its definition, by sums over pixels, and against numbers of Kymatio."""

import cmath
import math

import pytest
import torch
from torch import Tensor

from discreet.core.check import Refused
from discreet.data.features.wavelets import Wavelets

KYMATIO = {
    (0, 0, 0): 0.995681,
    (0, 3, 3): 0.444457,
    (1, 2, 1): 0.04484,
    (5, 2, 1): 0.04055,
    (9, 1, 1): 0.096617,
    (13, 1, 0): 0.018653,
    (17, 2, 1): 0.011854,
    (40, 1, 1): 0.00392,
    (57, 2, 0): 0.002998,
    (80, 1, 1): 0.046536,
}
"""By channel, row and column."""
TOTAL = 40.3882
IMAGES = torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(0))


def morlet(shape: tuple[int, int], j: int, turn: float) -> Tensor:
    """The wavelet of scale j on a torus, pixel by pixel, from its formula."""
    deviation, frequency, slant = 0.8 * 2**j, 0.75 * math.pi / 2**j, 0.5
    gaussian = torch.zeros(shape, dtype=torch.complex128)
    wave = torch.zeros(shape, dtype=torch.complex128)
    for row in range(shape[0]):
        for column in range(shape[1]):
            for around in range(25):
                x, y = row + shape[0] * (around // 5 - 2), column + shape[1] * (around % 5 - 2)
                u, v = x * math.cos(turn) + y * math.sin(turn), -x * math.sin(turn) + y * math.cos(turn)
                envelope = math.exp(-(u**2 + slant**2 * v**2) / (2 * deviation**2))
                envelope *= slant / (2 * math.pi * deviation**2)
                gaussian[row, column] += envelope
                wave[row, column] += envelope * cmath.exp(1j * frequency * u)
    return wave - wave.sum() / gaussian.sum() * gaussian


def circular(values: Tensor, kernel: Tensor) -> Tensor:
    """A convolution on the torus as a sum over shifts."""
    out = torch.zeros(values.shape, dtype=torch.complex128)
    for row in range(kernel.shape[0]):
        for column in range(kernel.shape[1]):
            out += kernel[row, column] * torch.roll(values, (row, column), (0, 1))
    return out


def test_first_order_coefficients_are_averaged_moduli_of_wavelet_convolutions() -> None:
    scales, angles, found = 1, 8, Wavelets((16, 16), scales=1)(IMAGES)
    padded = torch.nn.functional.pad(IMAGES[:, None], (2, 2, 2, 2), mode="reflect")[:, 0].double()
    assert found.shape == (2, 1 + scales * angles, 8, 8)
    size = padded.shape[1:]
    places = [torch.arange(side, dtype=torch.float64)[None] + torch.arange(-2, 3)[:, None] * side for side in size]
    line = [torch.exp(-(place**2) / (2 * 0.8**2)).sum(0) / (math.sqrt(2 * math.pi) * 0.8) for place in places]
    low = torch.outer(*line).to(torch.complex128)
    for channel, angle in ((1, 0), (4, 3), (8, 7)):
        turn = (angles // 2 - 1 - angle) * math.pi / angles
        moduli = circular(padded[0].to(torch.complex128), morlet((20, 20), 0, turn)).abs()
        averaged = circular(moduli.to(torch.complex128), low).real[::2, ::2][1:-1, 1:-1]
        assert torch.allclose(found[0, channel].double(), averaged, atol=1e-5)
    average = circular(padded[0].to(torch.complex128), low).real[::2, ::2][1:-1, 1:-1]
    assert torch.allclose(found[0, 0].double(), average, atol=1e-5)


def test_the_numbers_are_those_of_kymatio() -> None:
    """Of Kymatio 0.3.0, whose pi is 3.1415: Scattering2D(J=2, shape=(28, 28), L=8) on a ramp with a bright corner."""
    ramp = torch.linspace(0, 1, 28 * 28).reshape(1, 28, 28).clone()
    ramp[0, :9, :5] = 1
    found = Wavelets((28, 28))(ramp)[0]
    assert found.shape == (81, 7, 7)
    for (channel, row, column), expected in KYMATIO.items():
        assert found[channel, row, column] == pytest.approx(expected, abs=3e-5)
    assert found.double().sum() == pytest.approx(TOTAL, rel=1e-3)


def test_an_image_alone_has_the_same_coefficients() -> None:
    transform = Wavelets((16, 16))
    together = transform(IMAGES)
    assert torch.allclose(together[1:], transform(IMAGES[1:]), atol=1e-6)
    assert not torch.allclose(together[0], together[1], atol=1e-3)  # control: images differ


def test_too_small_images_are_refused() -> None:
    with pytest.raises(Refused, match="more than 4 pixels"):
        Wavelets((4, 9))
