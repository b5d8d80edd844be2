"""Measure federated training: accuracy at a certified epsilon for every client beside Flower's own strategy, and bytes.

    python -m research.federated --out results/federated.json                                     # all rows
    python -m research.federated --out results/federated.json --task cnn --epsilon 8 --row flower    # one of them

Each task and epsilon has three rows with the same number of rounds, expected clients a round, clip, and noise on the
sum: our strategy, our strategy with random freeze, and `DifferentialPrivacyServerSideFixedClipping` of Flower, which
draws a fixed number of clients. What Flower's row costs is stated as Flower accounts for it, without amplification.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy
from torch import nn

import discreet
from discreet import methods
from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian
from discreet.core.command import package_versions
from discreet.core.files import write_json
from discreet.integrations.flower import PrivateStrategy, bounded_update
from discreet.stages.plan import Recipe
from research.federated.clients import app_of
from research.federated.grid import InProcessGrid
from research.federated.settings import SETTINGS, Setting, plan_of
from research.federated.tasks import Federation

DATA: Final = "fashion-mnist"
FROZEN: Final = 0.9
SHOWN: Final = 5  # accuracies over the rounds
ROWS: Final = ("discreet", "discreet, frozen", "flower")


def train(strategy: Strategy, grid: InProcessGrid, of: Federation, model: nn.Module, rounds: int) -> dict[str, Any]:
    """Run a strategy of Flower from the initial model; returns accuracies, bytes and processor time."""
    curve: dict[int, float] = {}
    shown = {round(rounds * (place + 1) / SHOWN) for place in range(SHOWN)}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round in shown:
            model.load_state_dict(arrays.to_torch_state_dict())
            curve[server_round] = of.accuracy(model)
        return None

    start = time.process_time()
    strategy.start(grid, ArrayRecord(of.build().state_dict()), num_rounds=rounds, evaluate_fn=evaluate)
    seconds = time.process_time() - start
    per_reply = {"up": grid.up / grid.messages, "down": grid.down / grid.messages}
    return {
        "accuracy": curve[rounds],
        "curve": curve,
        "bytes_per_reply": per_reply,
        "processor_seconds": round(seconds, 1),
    }


def ours(setting: Setting, of: Federation, recipe: Recipe, epsilon: float, seed: int) -> dict[str, Any]:
    """The row of a recipe; the server averages, as Flower's does: SGD with lr=1."""
    plan, model = plan_of(setting, recipe, epsilon), of.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    strategy = PrivateStrategy(model, optimizer, plan, streams=discreet.Streams.seeded(seed))
    grid = InProcessGrid(app_of(setting, of, [bounded_update(recipe)]), of.clients)
    found = train(strategy, grid, of, of.build(), strategy.left)
    certified = strategy.rounds.spent().certified.epsilon
    strategy.close()
    return {**found, "certified": certified, "noise": plan.noise}


def flowers(setting: Setting, of: Federation, epsilon: float, seed: int) -> dict[str, Any]:
    """Flower's strategy with the noise of our row; its epsilon is that of all clients in every round."""
    noise = plan_of(setting, methods.dp_sgd(clip=setting.clip), epsilon).noise
    random.seed(seed)  # Flower's draws
    np.random.seed(seed)  # and its noise
    inner = FedAvg(fraction_train=setting.batch / of.clients, fraction_evaluate=0.0, min_available_nodes=setting.batch)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, noise, setting.clip, setting.batch)
    found = train(strategy, InProcessGrid(app_of(setting, of, []), of.clients), of, of.build(), setting.steps)
    charge = Charge(((Gaussian(noise), setting.steps),), None, ())
    relation = discreet.Neighbouring.ADD_REMOVE
    unamplified = certify(charge, delta=setting.delta, relation=relation).epsilon
    return {**found, "without_amplification": unamplified, "noise": noise}


def measure(setting: Setting, row: str, epsilon: float, seed: int) -> dict[str, Any]:
    """One row of a task at one epsilon."""
    of = setting.federation(DATA, setting.clients)
    if row == "flower":
        return flowers(setting, of, epsilon, seed)
    frozen = methods.random_freeze(clip=setting.clip, final_rate=FROZEN, cooling_epochs=1)
    recipe = frozen if row == "discreet, frozen" else methods.dp_sgd(clip=setting.clip)
    return ours(setting, of, recipe, epsilon, seed)


def case_of(held: dict[str, Any], name: str, epsilon: float, seed: int) -> dict[str, Any]:
    """The entry of a task at one epsilon, with its public numbers."""
    setting = SETTINGS[name]
    public = {"clients": setting.clients, "batch": setting.batch, "rounds": setting.steps, "clip": setting.clip}
    public |= {"rate": setting.rate, "batches": setting.batches}
    fresh = {"epsilon": epsilon, "delta": setting.delta, "seed": seed, **public, "rows": {}}
    case: dict[str, Any] = held["cases"].setdefault(f"{name}, epsilon {epsilon:g}", fresh)
    return case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=SETTINGS, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--row", choices=ROWS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name, epsilon, row in product(given.task or SETTINGS, given.epsilon or (8.0, 3.0), given.row or ROWS):
        found = measure(SETTINGS[name], row, epsilon, given.seed)
        held = json.loads(given.out.read_text()) if given.out.exists() else {"cases": {}}
        rows = case_of(held, name, epsilon, given.seed)["rows"]
        rows[row] = found
        if "discreet" in rows and "discreet, frozen" in rows:
            up = [rows[key]["bytes_per_reply"]["up"] for key in ("discreet, frozen", "discreet")]
            held["cases"][f"{name}, epsilon {epsilon:g}"]["up_ratio"] = up[0] / up[1]
        held["command"], held["versions"] = "python -m research.federated", package_versions("torch", "flwr")
        write_json(given.out, held)


if __name__ == "__main__":
    main()
