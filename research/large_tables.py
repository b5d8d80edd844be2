"""What DP-AdaFEST buys on texts with a table of 30,000 words: accuracy and time beside DP-SGD, at the same epsilon.

    python -m research.large_tables --out results/large-tables.json
    python -m research.large_tables --out results/large-tables.json --page docs/methods/adafest.md    # the page's table

The texts are the reviews; a word is a row of the table by a public hash, so the vocabulary says nothing about them.
With several learning rates, one is chosen for each row on a seed of its own: the reviews are public.
Runs with the same seed share initial weights; noise and batches are the operating system's. Time is processor time on
one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import discreet
from discreet import methods
from discreet.core.command import package_versions
from discreet.core.files import write_json, write_text
from discreet.data import load
from discreet.stages.plan import Plan, Recipe
from research.benchmarks.models import MODELS
from research.benchmarks.rows import own_copy, plain, private
from research.benchmarks.table import machine
from research.command import typed

VOCABULARY: Final = 30_000
LENGTH: Final = 64
WIDTH: Final = 32
MARKS: Final = ("<!-- large-tables -->", "<!-- end -->")


@final
class BagOfWords(nn.Module):
    """The sum of the embeddings of all words, one hidden layer, and the scores of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.hidden, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        with torch.no_grad():
            self.words.weight.mul_(0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.hidden(self.words(tokens).sum(1) / LENGTH**0.5)))
        return scores


def tokens(texts: Tensor) -> Tensor:
    """Words to rows by a public hash; 0 is padding."""
    out = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for place, row in enumerate(texts.numpy()):
        words = bytes(row).rstrip(b"\0").decode(errors="ignore").lower()
        clean = "".join(letter if letter.isalnum() else " " for letter in words).split()[:LENGTH]
        hashes = (int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big") for word in clean)
        out[place, : len(clean)] = [1 + value % (VOCABULARY - 1) for value in hashes]
    return torch.from_numpy(out)


@final
@dataclass(frozen=True)
class Run:
    """One training: what it reached, and what a step cost."""

    accuracy: float
    auc: float
    seconds_per_step: float
    active_rows: float


def train(plan: Plan, data: tuple[TensorDataset, TensorDataset], rate: float, seed: int) -> Run:
    torch.manual_seed(seed)
    net = BagOfWords()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    run = discreet.Private(net, optimizer, plan, data[0], micro_batch=4096)
    spent, moved, last = [], [], net.words.weight.detach().clone()
    try:
        started = time.process_time()
        for x, y in run:
            if run.step(F.cross_entropy(net(x), y, reduction="none")):
                spent.append(time.process_time() - started)
                if len(spent) % 20 == 1:
                    moved.append(int((net.words.weight != last).any(1).sum()))
                last.copy_(net.words.weight.detach())
                started = time.process_time()
    finally:
        run.close()
    accuracy, auc = score(net, data[1])
    return Run(accuracy, auc, statistics.median(spent), statistics.mean(moved))


@torch.no_grad()
def score(net: nn.Module, test: TensorDataset) -> tuple[float, float]:
    """Accuracy and area under the ROC curve."""
    x, y = test.tensors
    margin = net(x).diff(dim=1).squeeze(1).double().numpy()
    ranks, positive = rankdata(margin), y.numpy() == 1
    count = int(positive.sum())
    auc = (ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(y) - count))
    return float(((margin > 0) == positive).mean()), float(auc)


def recipes(clip: float) -> dict[str, Recipe]:
    return {
        "dp-sgd": methods.dp_sgd(clip=clip),
        **{
            f"adafest, row noise {noise:g}, threshold {threshold:g}": methods.adafest(
                clip=clip, row_noise=noise, row_threshold=threshold
            )
            for noise, threshold in ((2.0, 1.0), (2.0, 2.0), (4.0, 1.0), (4.0, 2.0))
        },
    }


def experiment(flags: argparse.Namespace) -> None:
    """Measure every row and write the results after each; rows of an interrupted experiment are kept."""
    task = load("reviews")
    train_data, test_data = (TensorDataset(tokens(one.tensors[0]), one.tensors[1]) for one in (task.train, task.test))
    data = train_data, test_data
    facts: dict[str, Any] = {
        "command": typed("research.large_tables"),
        "versions": package_versions(),
        "settings": {name: value for name, value in vars(flags).items() if name not in ("out", "page", "most")},
        "vocabulary": VOCABULARY,
        "width": WIDTH,
        "length": LENGTH,
        "majority": float((data[1].tensors[1] == 1).double().mean()),
    }
    before = json.loads(flags.out.read_text(encoding="utf-8")) if flags.out.exists() else {}
    rows: list[dict[str, Any]] = before["rows"] if before.get("settings") == facts["settings"] else []
    planned = [(epsilon, *named) for epsilon in flags.epsilons for named in recipes(flags.clip).items()]
    for epsilon, name, recipe in planned[len(rows) :][: flags.most]:
        plan = recipe.for_budget(
            epsilon=epsilon, delta=1e-5, records=len(train_data), batch=flags.batch, epochs=flags.epochs
        )
        rows.append({"row": name, **measure(plan, data, flags)})
        print(json.dumps(rows[-1]), flush=True)
        write_json(flags.out, {"rows": rows, **facts})
    write_json(flags.out, {"rows": rows, "step_times": step_times(), **facts})


def step_times(rounds: int = 15) -> dict[str, Any]:
    """Median processor time of steps of the benchmark's text classifier, in milliseconds; the rows take turns."""
    torch.manual_seed(0)
    task = MODELS["text"].make()
    steps = {
        "plain SGD": plain(own_copy(task)),
        "dp-sgd": private(own_copy(task), methods.dp_sgd()),
        "adafest": private(own_copy(task), methods.adafest()),
    }
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 2):
        for name, step in steps.items():
            step()
            started = time.process_time()
            step()
            taken[name].append(1000 * (time.process_time() - started))
    medians = {name: round(statistics.median(times[2:]), 2) for name, times in taken.items()}
    return {"model": MODELS["text"].about, "machine": machine(), "rounds": rounds, "cpu_ms": medians}


def measure(plan: Plan, data: tuple[TensorDataset, TensorDataset], flags: argparse.Namespace) -> dict[str, Any]:
    """Choose the learning rate on one seed, then train with the others."""
    tried = {rate: train(plan, data, rate, seed=100).auc for rate in flags.rates} if len(flags.rates) > 1 else {}
    rate = max(flags.rates, key=lambda rate: tried.get(rate, 0.0))
    runs = [train(plan, data, rate, seed) for seed in range(flags.seeds)]
    return {
        "noise": plan.noise,
        "certified": plan.certificate().to_json(),
        "learning_rate": rate,
        "tried": tried,
        "accuracy": [run.accuracy for run in runs],
        "auc": [run.auc for run in runs],
        "cpu_seconds_per_step": statistics.median(run.seconds_per_step for run in runs),
        "active_rows": statistics.mean(run.active_rows for run in runs),
    }


def write_page(results: Path, page: Path) -> None:
    """Write the table of the results between the marks of a page."""
    found = json.loads(results.read_text(encoding="utf-8"))
    head = "| epsilon | method | rows with noise | AUC, mean and range | accuracy | processor time of a step |"
    lines = [head, "|---|---|---|---|---|---|"]
    for row in found["rows"]:
        low, high, mean = min(row["auc"]), max(row["auc"]), statistics.mean(row["auc"])
        accuracy, time_ms = 100 * statistics.mean(row["accuracy"]), 1000 * row["cpu_seconds_per_step"]
        auc = f"{mean:.3f} ({low:.3f} to {high:.3f})"
        cells = (f"{row['certified']['epsilon']:.2g}", row["row"], f"{row['active_rows']:,.0f}", auc)
        lines.append(f"| {' | '.join(cells)} | {accuracy:.1f} % | {time_ms:.0f} ms |")
    before, rest = page.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    write_text(page, "\n".join([f"{before}{MARKS[0]}", *lines, f"{MARKS[1]}{after}"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--rates", type=float, nargs="+", default=[8.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--most", type=int, help="rows to measure now; the rest is measured the next time")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    flags = parser.parse_args()
    if flags.page is not None:
        write_page(flags.out, flags.page)
    else:
        torch.set_num_threads(1)
        experiment(flags)


if __name__ == "__main__":
    main()
