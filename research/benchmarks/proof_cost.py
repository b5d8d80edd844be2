"""What the proof that records are kept apart costs: once for a model, and in every step.

python -m research.benchmarks.proof_cost                       the speed table of README and BERT, one process each
python -m research.benchmarks.proof_cost --out results/proof-cost.json
python -m research.benchmarks.proof_cost mlp text --out results/proof-cost.json        renew two models of the file
python -m research.benchmarks.proof_cost gpt2-512              one model, in this process
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.data.features.vision_operators import declare_vision_operators
from discreet.engine.engine import Engine
from research.benchmarks.models import CLASSES, MODELS, Task

ROUNDS, PATIENCE = 200, 8.0  # steps of each kind, and seconds for all of them
BERT: Final = "bert-12"
TABLE: Final = (
    *("mlp", "mlp-2048", "cnn-d2p2", "cnn-550k", "resnet20", "transformer", "transformer-384", "lstm", "text"),
    BERT,
)
"""Models that are measured unless others are named."""


class Bert(nn.Module):
    """A BERT of 12 layers and hidden size 128, with a classifier."""

    def __init__(self) -> None:
        declare_vision_operators()
        from transformers import BertConfig, BertModel

        super().__init__()
        config = BertConfig(hidden_size=128, num_hidden_layers=12, num_attention_heads=2, intermediate_size=512)
        self.bert, self.head = BertModel(config, add_pooling_layer=False), nn.Linear(128, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.bert(ids).last_hidden_state.mean(1))


def task_of(name: str) -> Task:
    """A model of the step-time table, or BERT."""
    torch.manual_seed(0)
    if name != BERT:
        return MODELS[name].make()
    return Task(Bert().eval(), torch.randint(0, 1000, (32, 64)), torch.randint(0, CLASSES, (32,)))


def measure(name: str) -> dict[str, float]:
    """Processor seconds of the proof, and of steps with and without the watch, in turns."""
    torch.set_num_threads(1)
    task = task_of(name)
    F.cross_entropy(task.model(task.inputs), task.labels).backward()  # memory that any first step asks for
    task.model.zero_grad(set_to_none=True)
    engine = Engine(task.model)
    watched, plain = [], []
    first = _step(engine, task, is_watched=True)
    calls = engine.watch.table.clock
    until = time.monotonic() + PATIENCE
    while len(plain) < ROUNDS and (time.monotonic() < until or len(plain) < 3):
        for is_watched in (True, False) if len(plain) % 2 else (False, True):  # so that neither always comes first
            (watched if is_watched else plain).append(_step(engine, task, is_watched=is_watched))
    engine.close()
    alone = statistics.median(plain)
    both = alone + statistics.median(one - other for one, other in zip(watched, plain, strict=True))
    return {
        "proof_s": round(first - both, 2),
        "step_ms": round(1e3 * alone, 2),
        "share": round(both / alone - 1, 4),
        "calls": calls,
        "us_per_call": round(1e6 * (both - alone) / calls, 1),
        "steps": len(plain),
    }


def _step(engine: Engine, task: Task, *, is_watched: bool) -> float:
    """Norms and a weighted sum, as in a step of DP-SGD, without noise and update."""
    began = time.process_time()
    engine.begin(task.batch)
    if is_watched:
        engine.follow((task.inputs, task.labels), task.batch)
    engine.backward(F.cross_entropy(task.model(task.inputs), task.labels, reduction="none"))
    weights = 1 / engine.norms().clamp(min=1)
    engine.add_weighted(weights.unsqueeze(0).to(engine.dtype), engine.zeros())
    return time.process_time() - began


def main() -> None:
    """Measure the models that are named, or those of the table."""
    parser = argparse.ArgumentParser(prog="python -m research.benchmarks.proof_cost", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join((*MODELS, BERT))}")
    parser.add_argument("--out", type=Path, help="a JSON file to write or to update")
    given = parser.parse_args()
    unknown = sorted(set(given.models) - {*MODELS, BERT})
    if unknown:
        parser.error(f"unknown models: {', '.join(unknown)}")
    if len(given.models) == 1 and given.out is None:
        print(json.dumps(measure(given.models[0])))
        return
    for name in given.models or TABLE:
        command = [sys.executable, "-m", "research.benchmarks.proof_cost", name]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        print(name, found)
        if given.out is not None:
            _update(given.out, name, found)


def _update(path: Path, name: str, found: dict[str, float]) -> None:
    """Write the costs of one model into a file that may have those of others."""
    answer: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"models": {}}
    answer["command"] = f"python -m research.benchmarks.proof_cost --out {path}"  # renews every model
    answer |= {"torch": torch.__version__, "machine": platform.processor() or platform.machine(), "threads": 1}
    answer["models"][name] = found
    path.write_text(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
