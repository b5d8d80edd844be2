"""Models by name; none mixes records (no batch normalisation), so each has per-record gradients.

>>> model = build("cnn-d2p2", shape=(1, 28, 28), classes=10, seed=0)
>>> parameters(model)
33194
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.core.check import count, require

Shape = tuple[int, ...]


def check_name(name: str) -> None:
    """Refuse an unknown model; called before anything is paid for, too."""
    require(name in MODELS, f"a model of {', '.join(MODELS)}", repr(name), "choose one of these")


def build(name: str, *, shape: Shape, classes: int, seed: int | None = None) -> nn.Module:
    """The model of this name for records of this shape, with PyTorch's default initial weights.

    seed  fixes the initial weights and leaves torch's global random state as it was;
          None draws from the global state, as any torch module does

    Guarantee: the weights depend on name, shape, classes and seed, never on data.
    """
    check_name(name)
    require(len(shape) >= 1, "the shape of one record", shape, "give it without the batch axis, as (1, 28, 28)")
    for size in shape:
        count("a shape holds the whole sizes of one record's axes", size=size)
    count("how many numbers the model gives for a record: one for each class", classes=classes)
    if least := _LEAST_SIDE.get(name):
        remedy = f"{name} takes images (channels, height, width) with sides of at least {least}; see MODELS for others"
        require(len(shape) == 3, f"an image shape with {name}", f"shape={shape}", remedy)
        require(min(shape[1:]) >= least, f"sides of at least {least} with {name}", f"shape={shape}", remedy)
    if seed is None:
        return MODELS[name](tuple(shape), classes)
    count("a seed is a whole number", least=0, seed=seed)
    digest = hashlib.sha256(f"discreet initial weights {name} {seed}".encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return MODELS[name](tuple(shape), classes)


def parameters(model: nn.Module) -> int:
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


@final
class Single(nn.Module):
    """Converts features in half precision to single precision."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def _head(shape: Shape, classes: int) -> nn.Module:
    """A linear head that starts at zero, for features: (d + 1) classes parameters."""
    linear = nn.Linear(math.prod(shape), classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(Single(), nn.Flatten(), linear)


def _mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 128, tanh (28x28, 10 classes: 118,282 parameters; Adult: 30,594)."""
    first = nn.Linear(math.prod(shape), 128)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, classes))


def _with_head(shape: Shape, layers: Iterable[nn.Module], hidden: Iterable[int], between: type[nn.Module]) -> nn.Module:
    """Convolutions, then dense layers of these sizes with an activation between them."""
    features = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        flat = features(torch.zeros(1, *shape)).shape[1]
    dense = [layer for a, b in pairwise((flat, *hidden)) for layer in (nn.Linear(a, b), between())]
    return nn.Sequential(*features, *dense[:-1])


def _cnn_d2p2(shape: Shape, classes: int) -> nn.Module:
    """The four-layer CNN of the D2P2-SGD paper, Table 5: 33,194 parameters at 1 channel, 33,482 at 3.

    docs/datasets.md says how the table is read where it is not specific (padding, the last layer).
    """
    layers: list[nn.Module] = []
    for inside, outside in pairwise((shape[0], 16, 32, 32, 64)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    return _with_head(shape, [*layers[:-1], nn.AdaptiveAvgPool2d(1)], (classes,), nn.ReLU)


def _cnn_550k(shape: Shape, classes: int) -> nn.Module:
    """The end-to-end CNN of the random-freeze paper for CIFAR-10: 550,570 parameters ("550K") at 3x32x32.

    Tanh, a tempered sigmoid (Papernot et al. 2021): pairs of 3x3 convolutions with 32, 64 and 128 filters, a
    maximum over 2x2 after each pair, a dense layer of 128.
    """
    layers: list[nn.Module] = []
    for inside, outside in pairwise((shape[0], 32, 64, 128)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(outside, outside, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return _with_head(shape, layers, (128, classes), nn.Tanh)


def _cnn_small(shape: Shape, classes: int) -> nn.Module:
    """The tempered-sigmoid CNN for 28x28 (Papernot et al. 2021): 26,010 parameters at 1x28x28.

    Tanh: 16 filters of 8x8 with stride 2, 32 filters of 4x4 with stride 2, a maximum over 2x2 with stride 1
    after each, a dense layer of 32.
    """
    first = (nn.Conv2d(shape[0], 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1))
    second = (nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1))
    return _with_head(shape, (*first, *second), (32, classes), nn.Tanh)


def _cnn_geodp(shape: Shape, classes: int) -> nn.Module:
    """The two-layer CNN of the GeoDP paper: its 21,840 dimensions at 1x28x28.

    The paper gives the number alone; docs/datasets.md says which layers have it.
    """
    first = (nn.Conv2d(shape[0], 10, 5), nn.MaxPool2d(2), nn.ReLU())
    second = (nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU())
    return _with_head(shape, (*first, *second), (50, classes), nn.ReLU)


def _cnn_scatter(shape: Shape, classes: int) -> nn.Module:
    """The CNN on scattering coefficients of Tramer and Boneh 2021: 187,210 parameters ("187K") at 243x8x8.

    Tanh: two 3x3 convolutions of 64 filters with a maximum over 2x2 between, and one dense layer. It takes half
    precision.
    """
    first = (Single(), nn.Conv2d(shape[0], 64, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2))
    return _with_head(shape, (*first, nn.Conv2d(64, 64, 3, padding=1), nn.Tanh()), (classes,), nn.Tanh)


def _cnn_digits(shape: Shape, classes: int) -> nn.Module:
    """A small tanh CNN for 8x8 images: 14,698 parameters at 1x8x8, chosen to train well with few records.

    Two 3x3 convolutions of 32 filters with a maximum over 2x2 between, and one dense layer.
    """
    first = (nn.Conv2d(shape[0], 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2))
    return _with_head(shape, (*first, nn.Conv2d(32, 32, 3, padding=1), nn.Tanh()), (classes,), nn.Tanh)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // 4, channels)  # four channels a group at every width


@final
class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a skip connection, which subsamples pixels and pads channels where the width grows.

    The skip connection has no parameters (option A of He et al. 2016) and needs no noise.
    """

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.stride = 1 if inside == outside else 2
        self.padding = outside - inside
        self.first = nn.Conv2d(inside, outside, 3, stride=self.stride, padding=1, bias=False)
        self.first_norm = _norm(outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.second_norm = _norm(outside)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.padding))
        return F.relu(self.second_norm(self.second(inner)) + shortcut)


@final
class ResNet20(nn.Module):
    """Three stages of three blocks at 16, 32 and 64 channels: 269,722 parameters (3 channels, 10 classes).

    Group normalisation replaces batch normalisation, which would mix records.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)
        self.stem_norm = _norm(16)
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        self.blocks = nn.Sequential(*(ResidualBlock(a, b) for a, b in pairwise(widths)))
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(F.relu(self.stem_norm(self.stem(x))))
        scores: Tensor = self.head(features.mean(dim=(2, 3)))
        return scores


WIDTH, DEPTH, HEADS = 64, 2, 4


def sines(length: int, width: int) -> Tensor:
    """[length, width] of sin and cos at geometric frequencies (Vaswani et al. 2017)."""
    place = torch.arange(length, dtype=torch.float32)[:, None]
    pace = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10_000.0) / width))
    return torch.cat((torch.sin(place * pace), torch.cos(place * pace)), dim=1)


def sines_2d(rows: int, columns: int, width: int) -> Tensor:
    """[rows * columns, width]: half of the width encodes the row, half the column."""
    down = sines(rows, width // 2)[:, None].expand(-1, columns, -1)
    across = sines(columns, width // 2)[None].expand(rows, -1, -1)
    return torch.cat((down, across), dim=2).reshape(rows * columns, width)


@final
class TransformerBlock(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and with a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.inner_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        packed: Tensor = self.queries_keys_values(self.attention_norm(x))
        by_head = packed.reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = by_head.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(n, t, d))
        inner: Tensor = self.narrow(F.gelu(self.widen(self.inner_norm(x))))
        return x + inner


@final
class PatchTransformer(nn.Module):
    """A pre-norm transformer over patches of an image: 68,810 parameters at 1x28x28 (patches of 4, 10 classes).

    Positions are fixed sines and cosines, which need no parameters and therefore no noise.
    """

    positions: Tensor

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.patch = patch = 4 if min(height, width) >= 16 else 2
        whole = height % patch == 0 and width % patch == 0
        require(whole, f"sides that patches of {patch} fill", shape, "pad or crop the images to such sides")
        self.embed = nn.Linear(channels * patch * patch, WIDTH)
        self.blocks = nn.Sequential(*(TransformerBlock(WIDTH, HEADS) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)
        self.register_buffer("positions", sines_2d(height // patch, width // patch, WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        p = self.patch
        patches = x.reshape(n, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).reshape(n, -1, c * p * p)
        features: Tensor = self.norm(self.blocks(self.embed(patches) + self.positions))
        scores: Tensor = self.head(features.mean(dim=1))
        return scores


MODELS: Mapping[str, Callable[[Shape, int], nn.Module]] = MappingProxyType(
    {
        "logistic": _logistic,
        "softmax": _softmax,
        "head": _head,
        "mlp": _mlp,
        "cnn-digits": _cnn_digits,
        "cnn-d2p2": _cnn_d2p2,
        "cnn-small": _cnn_small,
        "cnn-550k": _cnn_550k,
        "cnn-geodp": _cnn_geodp,
        "cnn-scatter": _cnn_scatter,
        "resnet20": ResNet20,
        "transformer": PatchTransformer,
    }
)
"""The models that `build` makes, each from the shape of a record and the number of classes."""

_CNN_SIDES = {"cnn-digits": 4, "cnn-d2p2": 8, "cnn-small": 16, "cnn-550k": 8, "cnn-geodp": 16, "cnn-scatter": 2}
_LEAST_SIDE = MappingProxyType({**_CNN_SIDES, "resnet20": 8, "transformer": 4})
"""The least height and width of the models that take images."""
