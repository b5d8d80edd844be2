"""Models by name; none mixes records (no batch normalisation), so each has per-record gradients.

>>> model = build("cnn-d2p2", shape=(1, 28, 28), classes=10, seed=0)
>>> parameters(model)
33194
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.core.check import count, refuse, require
from discreet.data.resnet import ResNet20
from discreet.data.transformer import PatchTransformer

Shape = tuple[int, ...]


def build(name: str, *, shape: Shape, classes: int, seed: int | None = None) -> nn.Module:
    """The model of this name for records of this shape, with PyTorch's default initial weights.

    seed  fixes the initial weights and leaves torch's global random state as it was;
          None draws from the global state, as any torch module does

    Guarantee: the weights depend on name, shape, classes and seed, never on data.
    """
    require(name in MODELS, f"a model of {', '.join(MODELS)}", repr(name), "choose one of these")
    require(len(shape) >= 1, "the shape of one record", shape, "give it without the batch axis, as (1, 28, 28)")
    for size in shape:
        count("a shape holds the whole sizes of one record's axes", size=size)
    count("a classifier tells at least two classes apart", least=2, classes=classes)
    if seed is None:
        return MODELS[name](tuple(shape), classes)
    count("a seed is a whole number", least=0, seed=seed)
    digest = hashlib.sha256(f"discreet initial weights {name} {seed}".encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return MODELS[name](tuple(shape), classes)


def parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class AgainstZero(nn.Module):
    """[n, 1] to [n, 2]: the score of class 1 beside a score of 0 for class 0.

    Softmax cross-entropy of (0, s) is the logistic loss of s, so every training loop fits.
    """

    def forward(self, score: Tensor) -> Tensor:
        return F.pad(score, (1, 0))


def _logistic(shape: Shape, classes: int) -> nn.Module:
    """Logistic regression: d + 1 parameters (Adult: 108)."""
    require(classes == 2, "classes=2 with logistic", f"classes={classes}", "use softmax for more than two classes")
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1), AgainstZero())


def _softmax(shape: Shape, classes: int) -> nn.Module:
    """Softmax regression: (d + 1) classes parameters (digits: 650; 28x28: 7850)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 128, tanh (28x28, 10 classes: 118,282 parameters; Adult: 30,594)."""
    first = nn.Linear(math.prod(shape), 128)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, classes))


def _cnn_d2p2(shape: Shape, classes: int) -> nn.Module:
    """The four-layer CNN of the D2P2-SGD paper, Table 5: 33,194 parameters at 1 channel, 33,482 at 3.

    docs/datasets.md says how the table is read where it is not specific (padding, the last layer).
    """
    channels, _, _ = _image(shape, least=8, name="cnn-d2p2")
    layers: list[nn.Module] = []
    for inside, outside in ((channels, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64, classes))


def _cnn_550k(shape: Shape, classes: int) -> nn.Module:
    """The end-to-end CNN of the random-freeze paper for CIFAR-10: 550,570 parameters ("550K") at 3x32x32.

    Tanh, a tempered sigmoid (Papernot et al. 2021): pairs of 3x3 convolutions with 32, 64 and 128 filters, a
    maximum over 2x2 after each pair, a dense layer of 128.
    """
    channels, height, width = _image(shape, least=8, name="cnn-550k")
    layers: list[nn.Module] = []
    for inside, outside in ((channels, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(outside, outside, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    flat = 128 * (height // 8) * (width // 8)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 128), nn.Tanh(), nn.Linear(128, classes))


def _cnn_small(shape: Shape, classes: int) -> nn.Module:
    """The tempered-sigmoid CNN for 28x28 (Papernot et al. 2021): 26,010 parameters at 1x28x28.

    Tanh: 16 filters of 8x8 with stride 2, 32 filters of 4x4 with stride 2, a maximum over 2x2 with stride 1
    after each, a dense layer of 32.
    """
    channels, height, width = _image(shape, least=16, name="cnn-small")
    rows, columns = (((size - 4) // 2 - 4) // 2 for size in (height, width))
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1), nn.Flatten()),
        *(nn.Linear(32 * rows * columns, 32), nn.Tanh(), nn.Linear(32, classes)),
    )


def _cnn_geodp(shape: Shape, classes: int) -> nn.Module:
    """The two-layer CNN of the GeoDP paper: its 21,840 dimensions at 1x28x28.

    The paper gives the number alone; docs/datasets.md says which layers have it.
    """
    channels, height, width = _image(shape, least=16, name="cnn-geodp")
    rows, columns = (((size - 4) // 2 - 4) // 2 for size in (height, width))
    return nn.Sequential(
        *(nn.Conv2d(channels, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(20 * rows * columns, 50), nn.ReLU(), nn.Linear(50, classes)),
    )


def _cnn_digits(shape: Shape, classes: int) -> nn.Module:
    """A small tanh CNN for 8x8 images: 14,698 parameters at 1x8x8, chosen to train well with few records.

    Two 3x3 convolutions of 32 filters with a maximum over 2x2 between, and one dense layer.
    """
    channels, height, width = _image(shape, least=4, name="cnn-digits")
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.Tanh(), nn.Flatten()),
        nn.Linear(32 * (height // 2) * (width // 2), classes),
    )


def _resnet20(shape: Shape, classes: int) -> nn.Module:
    channels, _, _ = _image(shape, least=8, name="resnet20")
    return ResNet20(channels=channels, classes=classes)


def _transformer(shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image(shape, least=4, name="transformer")
    patch = 4 if min(height, width) >= 16 else 2
    whole = height % patch == 0 and width % patch == 0
    require(whole, f"sides that patches of {patch} fill", shape, "pad or crop the images to such sides")
    return PatchTransformer(channels=channels, height=height, width=width, patch=patch, classes=classes)


def _image(shape: Shape, *, least: int, name: str) -> tuple[int, int, int]:
    """Channels, height and width of an image of at least `least` pixels a side."""
    remedy = f"{name} takes images (channels, height, width) with sides of at least {least}; see MODELS for others"
    if len(shape) != 3:
        refuse(f"an image shape with {name}", f"shape={shape}", remedy)
    channels, height, width = shape
    require(min(height, width) >= least, f"sides of at least {least} with {name}", f"shape={shape}", remedy)
    return channels, height, width


MODELS: Mapping[str, Callable[[Shape, int], nn.Module]] = MappingProxyType(
    {
        "logistic": _logistic,
        "softmax": _softmax,
        "mlp": _mlp,
        "cnn-digits": _cnn_digits,
        "cnn-d2p2": _cnn_d2p2,
        "cnn-small": _cnn_small,
        "cnn-550k": _cnn_550k,
        "cnn-geodp": _cnn_geodp,
        "resnet20": _resnet20,
        "transformer": _transformer,
    }
)
"""The models that `build` makes, each from the shape of a record and the number of classes."""
