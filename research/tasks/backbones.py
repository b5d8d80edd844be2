"""Features of CIFAR-10 from a public backbone: the inputs of a private head.

The backbone is EfficientNet-lite0, trained on ImageNet, without its last layer: 1280 features for each image, scaled to
length 1. No normalisation mixes images, so the features of a record depend on that record and on public weights alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.data import formats
from discreet.data.catalogue import BENCHMARKS
from discreet.data.features.backbones import efficientnet
from discreet.data.sources import obtain, roots
from research.tasks.files import write_npz

FEATURES = "cifar10-efficientnet-lite0.npz"
"""The file of features, as `discreet.data.load` reads it."""

SIDE = 96
"""Images are enlarged from 32 to this many pixels a side, because the backbone was trained on larger images."""


def cifar10_features(*, data_dir: str | Path | None = None, note: Callable[[str], None] | None = None) -> Path:
    """The file of features below `data_dir`, `DISCREET_DATA` or the download cache; the first call makes it.

    This takes minutes.
    """
    places = [root / FEATURES for root in roots(data_dir)]
    found = next((place for place in places if place.is_file()), None)
    if found is not None:
        return found
    backbone = efficientnet("efficientnet-lite0", data_dir=data_dir)
    parts = obtain(BENCHMARKS["cifar10"].source, data_dir=data_dir, download=False)
    arrays = [np.frombuffer(parts[name], np.uint8) for name in formats.CIFAR_PARTS]
    held: dict[str, Any] = {}
    for split, x, y in (("train", arrays[0], arrays[1]), ("test", arrays[2], arrays[3])):
        held[f"x_{split}"] = features(backbone, x.reshape(-1, 32, 32, 3), note=note).numpy().astype(np.float16)
        held[f"y_{split}"] = y.astype(np.int64)
    return write_npz(places[0], held)


@torch.no_grad()
def features(
    backbone: nn.Module,
    images: npt.NDArray[np.uint8],
    *,
    side: int = SIDE,
    at_once: int = 100,
    note: Callable[[str], None] | None = None,
) -> Tensor:
    """[n, row, column, channel] bytes to [n, 1280], each of length 1."""
    out = []
    for start in range(0, len(images), at_once):
        x = torch.from_numpy(images[start : start + at_once].transpose(0, 3, 1, 2).astype(np.float32))
        x = F.interpolate((x - 127) / 128, size=(side, side), mode="bilinear", align_corners=False)
        out.append(F.normalize(backbone(x).flatten(1), dim=1))
        if note is not None and start // 5000 != (start + at_once) // 5000:
            note(f"features of {start + len(x)} of {len(images)} images")
    return torch.cat(out)
