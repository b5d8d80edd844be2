"""Features of images from the scattering transform, in the principal axes of public images."""

from __future__ import annotations

import hashlib
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core import check
from discreet.data.features.extractor import PublicRecords, check_images, images_like
from discreet.data.features.wavelets import Wavelets

GROUPS = 27  # of three channels each, as in Tramer and Boneh 2021


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
        check.require(len(shape) == 3, "images (channel, row, column)", shape, "choose other features")
        self.public, self._shape, self._width, self._unit_length = public, shape, width, unit_length
        self._wavelets = Wavelets((shape[1], shape[2]), scales=2 if min(shape[1:]) >= 16 else 1)
        found = torch.cat([self._normalised(some) for some in images_like(public.records, shape).split(200)])
        self._mean = found.mean(0)
        found = found - self._mean
        over_channels = torch.einsum("ncs,nds->cd", found, found)
        over_places = torch.einsum("ncs,nct->st", found, found)
        self._channels, self._places = (
            torch.linalg.eigh(one.double())[1].float() for one in (over_channels, over_places)
        )
        variance = (self._channels.T @ found @ self._places).square().mean(0).flatten()
        self._kept = variance.argsort(descending=True, stable=True)[:width]
        self._scale = (variance[self._kept] + 0.1 * variance.mean()) ** -0.3

    @property
    def identity(self) -> str:
        told = f"{self.name} {self._shape} {self._width} {self._unit_length} {self.public.identity} version 1"
        return hashlib.sha256(told.encode()).hexdigest()

    @torch.no_grad()
    def __call__(self, records: Tensor) -> Tensor:
        check_images(self.name, records, least=8)
        turned = self._channels.T @ (self._normalised(records) - self._mean) @ self._places
        features = turned.flatten(1)[:, self._kept] * self._scale
        return F.normalize(features, dim=1) if self._unit_length else features

    def _normalised(self, images: Tensor) -> Tensor:
        """[n, channels, places]: mean 0 and deviation 1 within each group of channels of a record."""
        found = torch.log(self._wavelets(images.mean(1)) + 0.01)
        groups = GROUPS if found.shape[1] % GROUPS == 0 else found.shape[1] // 3
        return F.group_norm(found, groups).flatten(2)


def _axes(square: Tensor) -> Tensor:
    axes: Tensor = torch.linalg.eigh(square.double())[1]
    return axes.float()
