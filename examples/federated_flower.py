"""Federated training on Flower, with a guarantee for every client: digits over 100 clients with label skew.

Run it with `python examples/federated_flower.py`; it needs `pip install "discreet[flower]" "flwr[simulation]"`. The
simulation runs on Flower's own engine. Each client of a deployment would run the ClientApp on its own machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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

CLIENTS, EACH = 100, 14  # public numbers
RECIPE = methods.dp_sgd(clip=1.0).using(unit=discreet.SampledUsers(per_user=EACH, name="client"))


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


client_app = ClientApp(mods=[bounded_update(RECIPE)])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client: two local steps. Nothing in it knows about privacy."""
    x, y = discreet.data.load("digits").train.tensors
    own = y.argsort(stable=True).split(EACH)[int(context.node_config["partition-id"])]  # one or two labels
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x[own]), y[own]).backward()
        optimizer.step()
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)


def server(folder: Path, rounds: int) -> ServerApp:
    """The server: it continues the run in `folder` if there is one."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        plan = RECIPE.for_budget(epsilon=8.0, delta=1e-3, records=CLIENTS, batch=30, steps=rounds)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        strategy = PrivateStrategy(model, optimizer, plan, folder=folder, pause=3.0)
        strategy.start(grid, strategy.arrays, num_rounds=strategy.left, evaluate_fn=evaluate)
        print(strategy.rounds.spent())
        strategy.close()

    return app


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy on public test records."""
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = discreet.data.load("digits").test.tensors
    accuracy = (model(x).argmax(1) == y).float().mean().item()
    print(f"round {server_round}: accuracy {accuracy:.1%}")
    return MetricRecord({"accuracy": accuracy})


def main(folder: Path = Path("runs/federated"), rounds: int = 15) -> None:
    resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"include_dashboard": False}}
    run_simulation(server(folder, rounds), client_app, num_supernodes=CLIENTS, backend_config=resources)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]), *map(int, sys.argv[2:3]))
