"""Fashion-MNIST over 1,000 clients with two labels each, on Flower's own simulation engine.

    python examples/federated_fashion_mnist.py [FOLDER [ROUNDS]]

It needs `pip install "discreet[flower]" "flwr[simulation]"` and the files of Fashion-MNIST. Run it again with the same
folder to continue after a stop.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

import discreet
from discreet import methods
from discreet.integrations.flower import PrivateStrategy, bounded_update

CLIENTS, EACH, SHARDS = 1000, 60, 2  # public numbers
IMAGES, LABELS = "images.npy", "labels.npy"
RECIPE = methods.dp_sgd(clip=1.0).using(unit=discreet.SampledUsers(per_user=EACH, name="client"))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16 * 3 * 3, 10),
    )


def share_out(folder: Path) -> None:
    """Give each client two shards of one label, in files of which a client reads its own rows alone."""
    x, y = discreet.data.load("fashion-mnist").train.tensors
    generator = torch.Generator().manual_seed(0)
    order = torch.argsort(y + torch.rand(len(y), generator=generator))
    shards = order.view(CLIENTS * SHARDS, -1)[torch.randperm(CLIENTS * SHARDS, generator=generator)]
    clients = shards.view(CLIENTS, -1)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / IMAGES, x[clients].numpy())
    np.save(folder / LABELS, y[clients].numpy())


def client(folder: Path) -> ClientApp:
    app = ClientApp(mods=[bounded_update(RECIPE)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """One client: one pass over its records. Nothing in it knows about privacy."""
        torch.set_num_threads(1)
        number = int(context.node_config["partition-id"])
        x, y = (torch.from_numpy(np.load(folder / name, mmap_mode="r")[number].copy()) for name in (IMAGES, LABELS))
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for some in torch.arange(EACH).view(SHARDS, -1).T.flatten().chunk(3):  # both labels in every batch
            optimizer.zero_grad()
            F.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)

    return app


def server(folder: Path, rounds: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        plan = RECIPE.for_budget(epsilon=8.0, delta=1e-4, records=CLIENTS, batch=50, steps=rounds)
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        strategy = PrivateStrategy(model, optimizer, plan, folder=folder, pause=3.0)
        start = time.monotonic()
        strategy.start(grid, strategy.arrays, num_rounds=strategy.left, evaluate_fn=evaluate)
        print(f"{len(list(grid.get_node_ids()))} clients, {time.monotonic() - start:.0f} s")
        print(strategy.rounds.spent())
        strategy.close()

    return app


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
    """The accuracy on public test records, every tenth round."""
    if server_round % 10:
        return None
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = discreet.data.load("fashion-mnist").test.tensors
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    print(f"round {server_round}: accuracy {accuracy:.1%}", flush=True)
    return MetricRecord({"accuracy": accuracy})


def main(folder: Path = Path("runs/fashion-clients"), rounds: int = 100) -> None:
    resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"include_dashboard": False}}
    records = folder.absolute() / "clients"
    if not (records / LABELS).exists():
        share_out(records)
    run_simulation(server(folder, rounds), client(records), num_supernodes=CLIENTS, backend_config=resources)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]), *map(int, sys.argv[2:3]))
