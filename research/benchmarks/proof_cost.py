"""What the proof that records are kept apart costs: once for a model, and in every step.

python -m research.benchmarks.proof_cost                       all models, one process each
python -m research.benchmarks.proof_cost --out results/proof-cost.json
python -m research.benchmarks.proof_cost mlp                   one model, in this process
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
from research.command import typed

ROUNDS, PATIENCE = 25, 6.0  # steps of each kind, and seconds for all of them
BERT: Final = "bert-12"


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
        watched.append(_step(engine, task, is_watched=True))
        plain.append(_step(engine, task, is_watched=False))
    engine.close()
    both, alone = statistics.median(watched), statistics.median(plain)
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
    """Measure all models, or the one that is named."""
    parser = argparse.ArgumentParser(prog="python -m research.benchmarks.proof_cost", description=__doc__)
    parser.add_argument("model", nargs="?", choices=[*MODELS, BERT])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.model is not None:
        print(json.dumps(measure(given.model)))
        return
    answer: dict[str, Any] = {"command": typed("research.benchmarks.proof_cost"), "torch": torch.__version__}
    answer |= {"machine": platform.processor() or platform.machine(), "threads": 1, "models": {}}
    for name in (*MODELS, BERT):
        command = [sys.executable, "-m", "research.benchmarks.proof_cost", name]
        answer["models"][name] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        print(name, answer["models"][name])
    if given.out is not None:
        given.out.write_text(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
