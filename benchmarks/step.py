"""Time of one private step against plain SGD: forward, backward, norms, clip weights, weighted sum; no noise.

    python benchmarks/step.py --models cnn-d2p2 resnet20 --repeats 7 --threads 2

Prints one JSON object. Plain and private steps are interleaved; `ratio` compares the medians of their times and
`cpu_ratio` those of the processor time that they took, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.stages.engine import Engine
from discreet.tasks.models import build, parameters

CLIP = 1.0
Step = Callable[[], None]


@dataclass(frozen=True)
class Task:
    """A model and one batch for it."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor


class TokenTransformer(nn.Module):
    """The transformer of the step-time table: width 128, four pre-norm layers, 64 positions."""

    def __init__(
        self, *, vocabulary: int = 1000, width: int = 128, layers: int = 4, length: int = 64
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(1, length, width) * 0.02)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
                )
                for _ in range(layers)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        features: Tensor = self.norm(self.blocks(self.embed(tokens) + self.positions))
        scores: Tensor = self.head(features.mean(1))
        return scores


def _images(name: str, shape: tuple[int, ...], batch: int) -> Task:
    model = build(name, shape=shape, classes=10, seed=0)
    return Task(model, torch.randn(batch, *shape), torch.randint(0, 10, (batch,)))


def mlp() -> Task:
    layers = (
        nn.Flatten(),
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    return Task(nn.Sequential(*layers), torch.randn(256, 784), torch.randint(0, 10, (256,)))


def cnn_d2p2() -> Task:
    return _images("cnn-d2p2", (1, 28, 28), 256)


def cnn_550k() -> Task:
    return _images("cnn-550k", (3, 32, 32), 128)


def resnet20() -> Task:
    return _images("resnet20", (3, 32, 32), 128)


def transformer() -> Task:
    return Task(TokenTransformer(), torch.randint(0, 1000, (128, 64)), torch.randint(0, 10, (128,)))


MODELS: dict[str, Callable[[], Task]] = {
    "mlp": mlp,
    "cnn-d2p2": cnn_d2p2,
    "cnn-550k": cnn_550k,
    "resnet20": resnet20,
    "transformer": transformer,
}


def plain_step(task: Task) -> Step:
    """Forward and backward of the mean loss, as SGD needs them."""

    def step() -> None:
        loss = F.cross_entropy(task.model(task.inputs), task.labels)
        loss.backward()
        for parameter in task.model.parameters():
            parameter.grad = None

    return step


def private_step(task: Task) -> Step:
    """The same with per-sample clipping: norms, clip weights and the weighted sum."""
    engine = Engine(task.model)
    records = len(task.labels)

    def step() -> None:
        engine.begin(records)
        engine.backward(F.cross_entropy(task.model(task.inputs), task.labels, reduction="none"))
        weights = (CLIP / engine.norms()).clamp(max=1).unsqueeze(0)
        totals = engine.zeros()
        engine.add_weighted(weights, totals)
        engine.discard()

    return step


@dataclass(frozen=True)
class Timing:
    """Median seconds of a step: by the clock, and of processor time over all threads."""

    clock: float
    cpu: float


def measure(steps: dict[str, Step], *, repeats: int) -> dict[str, Timing]:
    """The steps one after the other, again and again, so that a busy machine slows all alike."""
    for step in steps.values():
        step()
        step()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            clock, cpu = time.perf_counter(), time.process_time()
            step()
            times[name].append((time.perf_counter() - clock, time.process_time() - cpu))
    return {
        name: Timing(*(statistics.median(column) for column in zip(*rows, strict=True)))
        for name, rows in times.items()
    }


def compare(name: str, *, repeats: int) -> dict[str, float | int]:
    """One row of the table: milliseconds of both steps and their ratio."""
    torch.manual_seed(0)
    task = MODELS[name]()
    found = measure({"plain": plain_step(task), "private": private_step(task)}, repeats=repeats)
    plain, private = found["plain"], found["private"]
    return {
        "batch": len(task.labels),
        "parameters": parameters(task.model),
        "plain_ms": round(1e3 * plain.clock, 1),
        "private_ms": round(1e3 * private.clock, 1),
        "ratio": round(private.clock / plain.clock, 3),
        "cpu_ratio": round(private.cpu / plain.cpu, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = {name: compare(name, repeats=options.repeats) for name in options.models}
    print(json.dumps({"torch": torch.__version__, "threads": options.threads, "steps": rows}, indent=2))


if __name__ == "__main__":
    main()
