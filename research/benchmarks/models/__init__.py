"""The models of the step-time table, each with one batch of random records.

>>> sorted(name for name in MODELS if name.startswith("mlp"))
['mlp', 'mlp-2048']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from discreet.data.models import build
from research.benchmarks.models import library

CLASSES = 10


@final
@dataclass(frozen=True)
class Task:
    """A model and one batch for it."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor

    @property
    def batch(self) -> int:
        return len(self.labels)


@final
@dataclass(frozen=True, kw_only=True)
class Model:
    """A model of the table; `kind` decides which target applies."""

    about: str
    kind: str
    make: Callable[[], Task]


class TokenTransformer(nn.Module):
    """Token and position embeddings, pre-norm encoder layers, the mean over positions to the classes.

    Positions are looked up for every record, the one form that all peers can take.
    """

    def __init__(self, *, width: int, layers: int, length: int, heads: int, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(layers)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        features: Tensor = self.norm(self.blocks(self.embed(tokens) + self.places(places)))
        scores: Tensor = self.head(features.mean(1))
        return scores


class Recurrent(nn.Module):
    """Two LSTM layers over a sequence, the last output to the classes."""

    def __init__(self, *, width: int = 128, features: int = 128) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, sequence: Tensor) -> Tensor:
        outputs, _ = self.lstm(sequence)
        scores: Tensor = self.head(outputs[:, -1])
        return scores


class BagOfTokens(nn.Module):
    """A text classifier: the mean of token embeddings, one hidden layer."""

    def __init__(self, *, vocabulary: int = 30_000, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.relu(self.hidden(self.embed(tokens).mean(1))))
        return scores


def _labels(batch: int) -> Tensor:
    return torch.randint(0, CLASSES, (batch,))


def perceptron(batch: int, *widths: int) -> Task:
    """Linear layers with ReLU between them; `widths` from the input to the classes."""
    layers: list[nn.Module] = []
    for inside, outside in pairwise(widths):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return Task(nn.Sequential(*layers[:-1]), torch.randn(batch, widths[0]), _labels(batch))


def images(name: str, shape: tuple[int, ...], batch: int) -> Task:
    """A model of `discreet.data` on images."""
    return Task(build(name, shape=shape, classes=CLASSES, seed=0), torch.randn(batch, *shape), _labels(batch))


def transformer(batch: int, *, width: int, layers: int, length: int, heads: int) -> Task:
    """A transformer on sequences of random tokens."""
    model = TokenTransformer(width=width, layers=layers, length=length, heads=heads)
    return Task(model, torch.randint(0, 1000, (batch, length)), _labels(batch))


def _lstm() -> Task:
    return Task(Recurrent(), torch.randn(128, 64, 128), _labels(128))


def _text() -> Task:
    return Task(BagOfTokens(), torch.randint(0, 30_000, (256, 64)), _labels(256))


def _library(make: Callable[[int], nn.Module], batch: int, length: int) -> Task:
    """A model of a library on sequences of random tokens."""
    return Task(make(CLASSES), torch.randint(0, 1000, (batch, length)), _labels(batch))


def _vit_tiny(batch: int) -> Task:
    return Task(library.vit_tiny(CLASSES), torch.randn(batch, 3, 224, 224), _labels(batch))


_GPT_256 = "GPT-2 with d=256 L=8, T=128, batch 8"
_gpt_256 = partial(library.gpt2, width=256, layers=8)

PERCEPTRON, CONVOLUTION, TRANSFORMER, ADAPTED, OTHER = "perceptron", "convolution", "transformer", "adapted", "other"

MODELS: MappingProxyType[str, Model] = MappingProxyType(
    {
        "mlp": Model(
            about="MLP 784-512-256-10, batch 256", kind=PERCEPTRON, make=lambda: perceptron(256, 784, 512, 256, CLASSES)
        ),
        "mlp-2048": Model(
            about="MLP 784-512-256-10, batch 2048",
            kind=PERCEPTRON,
            make=lambda: perceptron(2048, 784, 512, 256, CLASSES),
        ),
        "cnn-d2p2": Model(
            about="CNN of D2P2-SGD, 28x28, batch 256",
            kind=CONVOLUTION,
            make=lambda: images("cnn-d2p2", (1, 28, 28), 256),
        ),
        "cnn-550k": Model(
            about="end-to-end CNN 550K, 32x32, batch 128",
            kind=CONVOLUTION,
            make=lambda: images("cnn-550k", (3, 32, 32), 128),
        ),
        "resnet20": Model(
            about="ResNet-20 GroupNorm, 32x32, batch 128",
            kind=CONVOLUTION,
            make=lambda: images("resnet20", (3, 32, 32), 128),
        ),
        "transformer": Model(
            about="transformer d=128 L=4 T=64, batch 128",
            kind=TRANSFORMER,
            make=lambda: transformer(128, width=128, layers=4, length=64, heads=4),
        ),
        "transformer-384": Model(
            about="transformer d=384 L=6 T=128, batch 32",
            kind=TRANSFORMER,
            make=lambda: transformer(32, width=384, layers=6, length=128, heads=6),
        ),
        "lstm": Model(about="LSTM 2x128, 64 steps, batch 128", kind=OTHER, make=_lstm),
        "text": Model(about="text classifier, vocabulary 30 000, batch 256", kind=OTHER, make=_text),
        "lora-llama": Model(
            about="LoRA on Llama d=256 L=4 T=64, batch 32",
            kind=ADAPTED,
            make=lambda: _library(library.lora_llama, 32, 64),
        ),
        "lora-bert": Model(
            about="LoRA on BERT d=256 L=4 T=64, batch 32",
            kind=ADAPTED,
            make=lambda: _library(library.lora_bert, 32, 64),
        ),
        "prompt": Model(
            about="prompt tuning on BERT d=256 L=4 T=64, batch 32",
            kind=ADAPTED,
            make=lambda: _library(library.prompt_bert, 32, 64),
        ),
        "bitfit": Model(
            about="BitFit on BERT d=256 L=4 T=64, batch 32", kind=ADAPTED, make=lambda: _library(library.BITFIT, 32, 64)
        ),
        "probe": Model(
            about="linear probe on BERT d=256 L=4 T=64, batch 32",
            kind=ADAPTED,
            make=lambda: _library(library.PROBE, 32, 64),
        ),
        "vit-tiny": Model(about="ViT-tiny of timm, 224x224, batch 64", kind=TRANSFORMER, make=lambda: _vit_tiny(64)),
        "vit-tiny-8": Model(about="ViT-tiny of timm, 224x224, batch 8", kind=TRANSFORMER, make=lambda: _vit_tiny(8)),
        "gpt2": Model(
            about="GPT-2 small, 124M, T=64, batch 8", kind=TRANSFORMER, make=lambda: _library(library.gpt2, 8, 64)
        ),
        "gpt2-512": Model(
            about="GPT-2 small, 124M, T=512, batch 8", kind=TRANSFORMER, make=lambda: _library(library.gpt2, 8, 512)
        ),
        "gpt2-512-checkpointed": Model(
            about="GPT-2 small, 124M, T=512, batch 8, checkpointed",
            kind=TRANSFORMER,
            make=lambda: _library(partial(library.gpt2, is_checkpointed=True), 8, 512),
        ),
        "gpt-256": Model(about=_GPT_256, kind=TRANSFORMER, make=lambda: _library(_gpt_256, 8, 128)),
        "gpt-256-checkpointed": Model(
            about=f"{_GPT_256}, checkpointed",
            kind=TRANSFORMER,
            make=lambda: _library(partial(_gpt_256, is_checkpointed=True), 8, 128),
        ),
        "gpt-256-autocast": Model(
            about=f"{_GPT_256}, autocast to bfloat16",
            kind=TRANSFORMER,
            make=lambda: _library(partial(_gpt_256, is_autocast=True), 8, 128),
        ),
        "smollm2": Model(
            about="SmolLM2-135M, T=64, batch 8", kind=TRANSFORMER, make=lambda: _library(library.smollm2, 8, 64)
        ),
        "lora-smollm2": Model(
            about="LoRA on SmolLM2-135M, T=64, batch 8",
            kind=ADAPTED,
            make=lambda: _library(library.lora_smollm2, 8, 64),
        ),
    }
)
