"""Features of images from the scattering transform: in the principal axes of public images, or as maps for a CNN."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core import check
from discreet.data.features.extractor import PublicRecords, check_images, images_like
from discreet.data.features.wavelets import Wavelets

GROUPS = 27  # of channels, as in Tramer and Boneh 2021


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Axes:
    """Principal axes over channels and over places, which of their products are kept, and how each is scaled."""

    mean: Tensor
    channels: Tensor
    places: Tensor
    kept: Tensor
    scale: Tensor


@final
class Scattering:
    """Logarithms of scattering coefficients, normalised within a record, in axes of public images, of length 1.

    The axes are products of principal axes over channels and over places; those in which public images vary most are
    kept. Directions of small variance are enlarged, less than whitening would.

    Guarantee: the features of an image depend on that image and on the public images alone.

    width        how many axes are kept at most
    unit_length  scale the features of each record to length 1
    """

    name = "scattering"
    at_once = 50

    def __init__(
        self, public: PublicRecords, shape: tuple[int, ...], *, width: int = 2000, unit_length: bool = True
    ) -> None:
        check.count("how many axes are kept at most", width=width)
        check_images(self.name, shape)
        self.public, self._shape, self._width, self._unit_length = public, shape, width, unit_length
        self._wavelets = Wavelets((shape[1], shape[2]), scales=_scales(shape))

    @cached_property
    def _axes(self) -> _Axes:
        """Statistics of the public images. They take seconds, so stored features do without them."""
        found = torch.cat([self._normalised(some) for some in images_like(self.public.records, self._shape).split(200)])
        mean = found.mean(0)
        found = found - mean
        over_channels = torch.einsum("ncs,nds->cd", found, found)
        over_places = torch.einsum("ncs,nct->st", found, found)
        channels, places = (torch.linalg.eigh(one.double())[1].float() for one in (over_channels, over_places))
        variance = (channels.T @ found @ places).square().mean(0).flatten()
        kept = variance.argsort(descending=True, stable=True)[: self._width]
        scale = (variance[kept] + 0.1 * variance.mean()) ** -0.3
        return _Axes(mean=mean, channels=channels, places=places, kept=kept, scale=scale)

    @property
    def identity(self) -> str:
        told = f"{self.name} {self._shape} {self._width} {self._unit_length} {self.public.identity} version 1"
        return hashlib.sha256(told.encode()).hexdigest()

    @torch.no_grad()
    def __call__(self, records: Tensor) -> Tensor:
        check_images(self.name, tuple(records.shape[1:]), least=8)
        axes = self._axes
        turned = axes.channels.T @ (self._normalised(records) - axes.mean) @ axes.places
        features = turned.flatten(1)[:, axes.kept] * axes.scale
        return F.normalize(features, dim=1) if self._unit_length else features

    def _normalised(self, images: Tensor) -> Tensor:
        """[n, channels, places]: mean 0 and deviation 1 within each group of channels of a record."""
        return _normalised(self._wavelets(images.mean(1))).flatten(2)


@final
class ScatteringMaps:
    """Logarithms of scattering coefficients at their places, normalised within a record and by public images.

    [n, colours, rows, columns] to [n, 81 colours, rows / 4, columns / 4], the input of the model `cnn-scatter`. Each
    channel has the mean and the deviation of the public images, as the normalisation of Tramer and Boneh 2021 has
    those of the private ones, for which noise must be paid.

    Guarantee: the features of an image depend on that image and on the public images alone.
    """

    name = "scattering-maps"
    at_once = 50

    def __init__(self, public: PublicRecords, shape: tuple[int, ...]) -> None:
        check_images(self.name, shape)
        self.public, self._shape = public, shape
        self._wavelets = Wavelets((shape[1], shape[2]), scales=_scales(shape))
        found = torch.cat([self._maps(some) for some in images_like(public.records, shape).split(200)])
        self._mean = found.mean((0, 2, 3), keepdim=True)
        self._deviation = found.std((0, 2, 3), keepdim=True)
        varied = bool((self._deviation > 0).all())  # also false for NaN
        check.require(varied, "public images that vary", "images whose coefficients are equal", "name other records")

    @property
    def identity(self) -> str:
        told = f"{self.name} {self._shape} {self.public.identity} version 1"
        return hashlib.sha256(told.encode()).hexdigest()

    @torch.no_grad()
    def __call__(self, records: Tensor) -> Tensor:
        check_images(self.name, tuple(records.shape[1:]), least=8)
        return (self._maps(records) - self._mean) / self._deviation

    def _maps(self, images: Tensor) -> Tensor:
        n, colours = images.shape[:2]
        found = self._wavelets(images.flatten(0, 1))
        return _normalised(found.reshape(n, colours * found.shape[1], *found.shape[2:]))


def _scales(shape: tuple[int, ...]) -> int:
    return 2 if min(shape[1:]) >= 16 else 1


def _normalised(coefficients: Tensor) -> Tensor:
    """Logarithms, with mean 0 and deviation 1 within each group of channels of a record."""
    channels = coefficients.shape[1]
    return F.group_norm(torch.log(coefficients + 0.01), GROUPS if channels % GROUPS == 0 else channels // 3)
