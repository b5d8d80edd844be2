"""What the proof that records are kept apart costs: once for a model, and in every step.

python -m research.benchmarks.proof_cost --out results/proof-cost.json     the speed table of README, BERT, single calls
python -m research.benchmarks.proof_cost mlp text --out results/proof-cost.json     renew two of the file
python -m research.benchmarks.proof_cost gpt2-512                                   one model, in this process

Proof and watch cost as much for few records as for hundreds: they look at calls, and try them on records of their own.
So both are measured on FEW records, whose steps are short; steps of the whole batch vary by more than either costs. The
proof is the first step less a later one. The watch is the difference of steps with and without it, in turns. `share`
relates it to a step of the whole batch. Single calls (`calls`) are measured on two models that
differ by MORE calls alone, so that what a step costs once does not count.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.data.features.vision_operators import declare_vision_operators
from discreet.engine.engine import Engine
from research.benchmarks.models import CLASSES, MODELS, Task

FEW: Final = 7  # records on which the watch is measured
SOME, MORE = 10, 100  # cheap calls of the smaller model for single calls, and how many more the larger one makes
ROUNDS, PATIENCE = 200, 3.0  # steps of the whole batch, and seconds for all of them
PAIRS: Final = 4  # with and without the watch, on few records, after each of these
BERT, CALLS = "bert-12", "calls"
TABLE: Final = (
    *("mlp", "mlp-2048", "cnn-d2p2", "cnn-550k", "resnet20", "transformer", "transformer-384", "lstm", "text"),
    *(BERT, CALLS),
)
"""What is measured unless models are named."""


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
    """Processor seconds of the proof, and what the watch costs in a step, or in a call."""
    torch.set_num_threads(1)
    if name == CALLS:
        return measure_calls()
    task = task_of(name)
    few, alone, costs = Task(task.model, task.inputs[:FEW], task.labels[:FEW]), list[float](), list[float]()
    F.cross_entropy(few.model(few.inputs), few.labels).backward()  # memory that any first step asks for
    task.model.zero_grad(set_to_none=True)
    with closing(Engine(task.model)) as engine:
        first, calls = _step(engine, few, is_watched=True), engine.watch.table.clock
        later = min(_step(engine, few, is_watched=True) for _ in range(2))
        _warm(engine, few)
        _step(engine, task, is_watched=False)
        until = time.monotonic() + PATIENCE
        while len(alone) < ROUNDS and (time.monotonic() < until or len(alone) < 3):
            alone.append(_step(engine, task, is_watched=False))
            costs += [_cost(engine, few, is_even=number % 2 == 0) for number in range(PAIRS)]
    step, cost = statistics.median(alone), statistics.median(costs)
    return {
        "proof_s": round(first - later, 2),
        "step_ms": round(1e3 * step, 2),
        "watch_ms": round(1e3 * cost, 3),
        "share": round(cost / step, 4),
        "calls": calls,
        "steps": len(alone),
        "pairs": len(costs),
        "few": FEW,
    }


def _warm(engine: Engine, task: Task) -> None:
    for is_watched in (True, False, True):  # known from here on
        _step(engine, task, is_watched=is_watched)


def _cost(engine: Engine, task: Task, *, is_even: bool) -> float:
    """Processor seconds that the watch takes in one step: the difference of two, of which neither always is first."""
    order = (True, False) if is_even else (False, True)
    taken = {is_watched: _step(engine, task, is_watched=is_watched) for is_watched in order}
    return taken[True] - taken[False]


class Repeated(nn.Module):
    """A cheap call, so many times, between two layers."""

    def __init__(self, call: Callable[[Tensor], Tensor], times: int) -> None:
        super().__init__()
        self.first, self.last, self._call, self._times = nn.Linear(8, 8), nn.Linear(8, CLASSES), call, times

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        for _ in range(self._times):
            hidden = self._call(hidden)
        outputs: Tensor = self.last(hidden)
        return outputs


_CHEAP: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "plain": lambda hidden: hidden + 1.0,
    "draw": lambda hidden: F.dropout(hidden, 1e-4),
    "written": lambda hidden: hidden.mul_(1.0),
}


def measure_calls() -> dict[str, float]:
    """Microseconds for one watched call of each kind, and for a step without any."""
    found: dict[str, float] = {}
    for kind, call in _CHEAP.items():
        with ExitStack() as opened:
            runs = []
            for times in (SOME, SOME + MORE):  # in turns, because the speed of a machine changes
                torch.manual_seed(0)
                task = Task(Repeated(call, times), torch.randn(16, 8), torch.randint(0, CLASSES, (16,)))
                runs.append((opened.enter_context(closing(Engine(task.model))), task))
                _warm(*runs[-1])
            pairs = [[_cost(*run, is_even=number % 2 == 0) for run in runs] for number in range(ROUNDS)]
        each = statistics.median(more - some for some, more in pairs) / MORE
        found[f"us_{kind}"] = round(1e6 * each, 1)
        if kind == "plain":
            found["us_step"] = round(1e6 * (statistics.median(some for some, _ in pairs) - SOME * each), 1)
    return found


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
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join((*MODELS, BERT, CALLS))}")
    parser.add_argument("--out", type=Path, help="a JSON file to write or to update")
    given = parser.parse_args()
    unknown = sorted(set(given.models) - {*MODELS, BERT, CALLS})
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
