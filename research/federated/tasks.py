"""Fashion-MNIST over many clients with label skew: images for a small CNN, or public features for a linear head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from discreet.data import load

SHARDS: Final = 2  # of one label each, for every client
AXES: Final = 200  # of public images, for the linear head


@final
@dataclass(frozen=True)
class Federation:
    """Clients with their records, and the public test records.

    parts    the records of each client
    rate     the learning rate of clients
    batches  the steps in a client's one pass over its records; 1 is DP-FedSGD
    """

    name: str
    x: Tensor
    y: Tensor
    parts: Tensor
    test: tuple[Tensor, Tensor]
    build: Callable[[], nn.Module]
    rate: float
    batches: int

    @property
    def clients(self) -> int:
        return len(self.parts)

    def app(self, mods: list[object]) -> ClientApp:
        """A client as one writes it without privacy: one pass over its records."""
        app, model = ClientApp(mods=mods), self.build()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            own = self.parts[int(context.node_config["partition-id"])]
            optimizer = torch.optim.SGD(model.parameters(), lr=self.rate)
            for some in own.chunk(self.batches):
                optimizer.zero_grad()
                F.cross_entropy(model(self.x[some]), self.y[some]).backward()
                optimizer.step()
            arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": len(own)})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        return app

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


def images(clients: int) -> Federation:
    """1,000 clients have 60 images each, of two labels."""
    task = load("fashion-mnist")
    (x, y), test = task.train.tensors, task.test.tensors
    return Federation("small CNN", x, y, skewed(y, clients), (test[0], test[1]), small_cnn, 0.2, 3)


def features(clients: int) -> Federation:
    """Fashion-MNIST in the principal axes of MNIST, which is public: each record scaled to length 1."""
    task, public = load("fashion-mnist"), load("mnist").train.tensors[0][:5000].flatten(1)
    mean = public.mean(0)
    axes = torch.linalg.svd(public - mean, full_matrices=False)[2][:AXES].T

    def features_of(x: Tensor) -> Tensor:
        return F.normalize((x.flatten(1) - mean) @ axes, dim=1)

    (x, y), test = task.train.tensors, task.test.tensors
    parts = skewed(y, clients)
    return Federation("linear head", features_of(x), y, parts, (features_of(test[0]), test[1]), linear_head, 4.0, 1)
