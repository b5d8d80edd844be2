"""Images over many clients with label skew: as they are for a small CNN, or as public features for a linear head.

Measurements use Fashion-MNIST, and MNIST is public. Settings are tuned the other way round, on MNIST.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.data import load

SHARDS: Final = 2  # of one label each, for every client
AXES: Final = 200  # of public images, for the linear head


@final
@dataclass(frozen=True)
class Federation:
    """Clients with their records, and the public test records.

    parts    the records of each client
    """

    name: str
    x: Tensor
    y: Tensor
    parts: Tensor
    test: tuple[Tensor, Tensor]
    build: Callable[[], nn.Module]

    @property
    def clients(self) -> int:
        return len(self.parts)

    def train_(self, model: nn.Module, client: int, *, rate: float, batches: int) -> int:
        """One pass of SGD over the records of a client; returns how many it has. One batch is DP-FedSGD."""
        own = self.parts[client]
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for some in own.view(SHARDS, -1).T.flatten().chunk(batches):  # both labels in every batch
            optimizer.zero_grad()
            F.cross_entropy(model(self.x[some]), self.y[some]).backward()
            optimizer.step()
        return len(own)

    def accuracy(self, model: nn.Module) -> float:
        """The accuracy on all test records."""
        x, y = self.test
        with torch.no_grad():
            right = [(model(some).argmax(1) == of).sum() for some, of in zip(x.split(1000), y.split(1000), strict=True)]
        return float(sum(right)) / len(y)


def skewed(y: Tensor, clients: int) -> Tensor:
    """Records of each client: the records in the order of their labels, cut into shards, of which each gets a few."""
    generator = torch.Generator().manual_seed(0)
    size = len(y) // (clients * SHARDS)
    order = torch.argsort(y + torch.rand(len(y), generator=generator))[: clients * SHARDS * size]
    shards = order.view(clients * SHARDS, size)[torch.randperm(clients * SHARDS, generator=generator)]
    return shards.reshape(clients, SHARDS * size)


def small_cnn() -> nn.Module:
    """2,826 parameters, without statistics of a batch."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16 * 3 * 3, 10),
    )


def linear_head() -> nn.Module:
    head = nn.Linear(AXES, 10)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def images(data: str, clients: int) -> Federation:
    """1,000 clients have 60 images each, of two labels."""
    task = load(data)
    (x, y), test = task.train.tensors, task.test.tensors
    return Federation("small CNN", x, y, skewed(y, clients), (test[0], test[1]), small_cnn)


def features(data: str, clients: int) -> Federation:
    """Images in the principal axes of other images, which are public: each record scaled to length 1."""
    other = "mnist" if data == "fashion-mnist" else "fashion-mnist"
    task, public = load(data), load(other).train.tensors[0][:5000].flatten(1)
    mean = public.mean(0)
    axes = torch.linalg.svd(public - mean, full_matrices=False)[2][:AXES].T

    def features_of(x: Tensor) -> Tensor:
        return F.normalize((x.flatten(1) - mean) @ axes, dim=1)

    (x, y), test = task.train.tensors, task.test.tensors
    parts = skewed(y, clients)
    return Federation("linear head", features_of(x), y, parts, (features_of(test[0]), test[1]), linear_head)
