"""Features of images from small patches of public images (Coates and Ng 2012)."""

from __future__ import annotations

import hashlib
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core import check
from discreet.data.features.extractor import PublicRecords, check_images, images_like

SIDE = 6  # of a patch
POOLED = 4  # cells a side over which responses are averaged


@final
class Patches:
    """Responses to whitened patches of public images, positive and negative parts apart, averaged over 4 x 4 cells.

    Square roots are taken, then the features of each record are centred and scaled to length 1.

    Guarantee: the features of an image depend on that image and on the public images alone.

    patches  how many are drawn; there are 32 features for each
    """

    name = "patches"
    at_once = 100

    def __init__(self, public: PublicRecords, shape: tuple[int, ...], *, patches: int = 160) -> None:
        check.count("how many patches are drawn", patches=patches)
        self.public, self._shape = public, shape
        images = images_like(public.records, shape)
        cut = _normalised(F.unfold(images, SIDE).mT.flatten(0, 1)[::97])  # a fixed choice of many patches
        self._mean = cut.mean(0)
        values, axes = torch.linalg.eigh(torch.cov((cut - self._mean).T.double()))
        self._whitening = (axes * (values + 0.1 * values.mean()) ** -0.5 @ axes.T).float()
        chosen = (cut[:: max(1, len(cut) // patches)][:patches] - self._mean) @ self._whitening
        self._filters = F.normalize(chosen, dim=1)

    @property
    def identity(self) -> str:
        told = f"{self.name} {self._shape} {len(self._filters)} {self.public.identity} version 1"
        return hashlib.sha256(told.encode()).hexdigest()

    @torch.no_grad()
    def __call__(self, records: Tensor) -> Tensor:
        check_images(self.name, tuple(records.shape[1:]), least=SIDE)
        patches = _normalised(F.unfold(records, SIDE).mT)  # [n, places, pixels]
        responses = (patches - self._mean) @ (self._filters @ self._whitening).T
        rows, columns = (side - SIDE + 1 for side in records.shape[2:])
        maps = responses.mT.unflatten(2, (rows, columns))
        pooled = torch.cat([F.adaptive_avg_pool2d(F.relu(signed), POOLED) for signed in (maps, -maps)], 1)
        roots = pooled.flatten(1).sqrt()
        return F.normalize(roots - roots.mean(1, keepdim=True), dim=1)


def _normalised(patches: Tensor) -> Tensor:
    """Patches of mean 0 and about deviation 1; nearly flat ones stay small."""
    centred = patches - patches.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 0.01).sqrt()
