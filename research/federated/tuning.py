"""Choose clip and local training of the federated tasks on MNIST, which stands in for the private records.

    python -m research.federated.tuning --out results/federated-tuning.json

It needs no Flower: the rounds are those of `discreet.PrivateRounds`. Each setting is one run with one seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any, Final

import torch

import discreet
from discreet import methods
from discreet.core.command import package_versions
from discreet.core.files import write_json
from research.federated.settings import SETTINGS, TRIED, Setting, plan_of
from research.federated.tasks import Federation

EPSILON: Final = 3.0
STAND_IN: Final = "mnist"
_NUMBERS: Final = ("steps", "clip", "rate", "batches")


def trial(setting: Setting, of: Federation) -> dict[str, Any]:
    """The accuracy of one setting after all rounds."""
    start = time.process_time()
    plan = plan_of(setting, methods.dp_sgd(clip=setting.clip), EPSILON)
    model, local = of.build(), of.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rounds = discreet.PrivateRounds(model, optimizer, plan, streams=discreet.Streams.seeded(0))
    while rounds.left:
        for client in rounds.draw(of.clients).tolist():
            local.load_state_dict(model.state_dict())
            of.train_(local, client, rate=setting.rate, batches=setting.batches)
            pairs = zip(model.parameters(), local.parameters(), strict=True)
            rounds.add(client, torch.cat([(before - after).detach().flatten() for before, after in pairs]))
        rounds.release()
    rounds.close()
    numbers = {name: getattr(setting, name) for name in _NUMBERS}
    seconds = round(time.process_time() - start, 1)
    return {**numbers, "accuracy": of.accuracy(model), "noise": plan.noise, "processor_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=SETTINGS, action="append")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name in given.task or SETTINGS:
        of = SETTINGS[name].federation(STAND_IN, SETTINGS[name].clients)
        public = dataclasses.asdict(SETTINGS[name])
        shared = {key: public[key] for key in ("clients", "batch")}
        found[name] = {**shared, "epsilon": EPSILON, "data": STAND_IN, "seed": 0, "trials": []}
        for setting in TRIED[name]:
            found[name]["trials"].append(trial(setting, of))
            print(name, found[name]["trials"][-1], flush=True)
            command = "python -m research.federated.tuning"
            write_json(given.out, {"tasks": found, "command": command, "versions": package_versions("torch")})


if __name__ == "__main__":
    main()
