"""The scattering transform of images (Bruna and Mallat 2013): wavelet moduli of two orders, averaged.

Filters, padding and order of the channels are those of Kymatio's `Scattering2D`: Morlet wavelets of `scales` octaves
and `angles` angles, and a Gaussian that averages over 2^scales pixels.

Index legend: N images, A angles of the first order, B scales and angles of the second, H rows, W columns.
"""

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core import check


@final
class Wavelets:
    """[n, rows, columns] to [n, channels, rows / 2^scales, columns / 2^scales]."""

    def __init__(self, shape: tuple[int, int], *, scales: int = 2, angles: int = 8) -> None:
        check.count("a scale averages over twice as many pixels", scales=scales)
        check.count("angles of the wavelets", angles=angles)
        self._scales, step = scales, 2**scales
        fits = min(shape) > step
        check.require(fits, f"images of more than {step} pixels a side", shape, "use fewer scales")
        padded = tuple(((side + step) // step + 1) * step for side in shape)
        before = [(whole - side) // 2 for whole, side in zip(padded, shape, strict=True)]
        after = [whole - side - first for whole, side, first in zip(padded, shape, before, strict=True)]
        self._padding = (before[1], after[1], before[0], after[0])
        turns = [(angles // 2 - 1 - angle) * math.pi / angles for angle in range(angles)]
        self._wavelets = [
            torch.stack([_morlet(padded, 0.8 * 2**j, turn, 0.75 * math.pi / 2**j, 4 / angles) for turn in turns])
            for j in range(scales)
        ]
        self._averages = [
            (_average(padded[0], scales, j), _average(padded[1], scales, j)) for j in range(scales)
        ]  # for values whose pixels are 2^j apart

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        padded = F.pad(images[:, None], self._padding, mode="reflect")[:, 0]
        spectrum = torch.fft.fft2(padded)
        first, second = [], []
        for j in range(self._scales):
            moduli = torch.fft.ifft2(_subsampled(spectrum[:, None] * self._wavelets[j], 2**j)).abs()  # N A H W
            first.append(self._averaged(moduli, j))
            if j + 1 < self._scales:
                spectra = torch.fft.fft2(moduli)[:, :, None]
                coarser = [self._second(spectra, j, k) for k in range(j + 1, self._scales)]
                second.append(torch.cat(coarser, 2).flatten(1, 2))  # N A B H W
        return torch.cat([self._averaged(padded[:, None], 0), *first, *second], 1)

    def _second(self, spectra: Tensor, j: int, k: int) -> Tensor:
        """Moduli of scale j, by their spectra, through the wavelets of the larger scale k."""
        wavelets = _lowest(_lowest(self._wavelets[k], j, -2), j, -1)
        return self._averaged(torch.fft.ifft2(_subsampled(spectra * wavelets, 2 ** (k - j))).abs(), k)

    def _averaged(self, values: Tensor, j: int) -> Tensor:
        down, across = self._averages[j]
        return down @ values @ across.mT


def _periodic(size: int, fold: int = 2) -> Tensor:
    """The coordinates of a pixel and of its copies in the neighbouring periods, [copies, size]."""
    copies = torch.arange(-fold, fold + 1, dtype=torch.float64)[:, None]
    return torch.arange(size, dtype=torch.float64) + copies * size


def _morlet(shape: tuple[int, ...], deviation: float, turn: float, frequency: float, slant: float) -> Tensor:
    """The spectrum of a wave under an elliptic Gaussian, made zero at frequency 0; it is real."""
    rows, columns = _periodic(shape[0]), _periodic(shape[1])
    x, y = rows[:, None, :, None], columns[None, :, None, :]
    along = x * math.cos(turn) + y * math.sin(turn)
    aside = y * math.cos(turn) - x * math.sin(turn)
    envelope = torch.exp(-(along**2 + (slant * aside) ** 2) / (2 * deviation**2))
    envelope = envelope * slant / (2 * math.pi * deviation**2)
    wave = torch.polar(envelope, frequency * along).sum((0, 1))
    flat = envelope.sum((0, 1))
    spectrum: Tensor = torch.fft.fft2(wave - wave.sum() / flat.sum() * flat)
    return spectrum.real.float()


def _average(size: int, scales: int, j: int) -> Tensor:
    """A matrix [kept, size / 2^j]: average with a Gaussian, keep one pixel in 2^(scales - j), drop the border."""
    deviation = 0.8 * 2 ** (scales - 1)
    gaussian = torch.exp(-(_periodic(size) ** 2) / (2 * deviation**2)).sum(0) / (math.sqrt(2 * math.pi) * deviation)
    spectrum = _lowest(torch.fft.fft(gaussian).real, j, 0)
    filter_: Tensor = torch.fft.ifft(spectrum).real
    places = torch.arange(len(filter_))
    circulant = filter_[(places[:, None] - places) % len(filter_)]
    return circulant[:: 2 ** (scales - j)][1:-1].float()


def _lowest(spectrum: Tensor, j: int, axis: int) -> Tensor:
    """The spectrum on every 2^j-th pixel: its lowest frequencies."""
    size = spectrum.shape[axis]
    kept = size // 2**j
    places = torch.arange(kept)
    return spectrum.index_select(axis, torch.where(places < kept // 2, places, places + size - kept))


def _subsampled(spectrum: Tensor, step: int) -> Tensor:
    """The spectrum of every step-th pixel: the mean over its aliases."""
    if step == 1:
        return spectrum
    *_, rows, columns = spectrum.shape
    aliases: Tensor = spectrum.unflatten(-1, (step, columns // step)).unflatten(-3, (step, rows // step))
    return aliases.mean((-4, -2))
