"""Private training with your own loader: accuracy with independent and with correlated noise, beside Poisson sampling.

    python -m research.own_loader --out results/own-loader.json                   # train and measure
    python -m research.own_loader --out results/own-loader.json --page docs/methods/dp-ftrl.md    # the table of a page

Every row has the same certificate (epsilon, delta), data, model, batch size and number of epochs. Learning rate and
averaging of the parameters are chosen for each row on seeds of their own; digits are public, so that costs nothing. The
seeds that are reported are paired: they share the initial weights and the order of the records.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import discreet
from discreet import methods
from discreet.core.command import package_versions
from discreet.core.files import write_json, write_text
from discreet.data import Task, build, load
from discreet.methods.dp_ftrl.correlated_noise import Strategy
from discreet.runs.scoring import measure
from discreet.stages.participation import FixedBins
from discreet.stages.plan import Plan, Recipe
from research.command import typed

CLIP: Final = 0.2
RATES: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
AVERAGE: Final = 0.95
MARKS: Final = ("<!-- own-loader -->", "<!-- end -->")
_REPLACE = discreet.Neighbouring.REPLACE_ONE


@final
@dataclass(frozen=True)
class Row:
    """A way to train; `shuffle` is that of the user's loader, None if the plan draws the batches itself."""

    name: str
    recipe: Recipe
    shuffle: bool | None = None


def rows(bands: int) -> tuple[Row, ...]:
    plain = methods.dp_sgd(clip=CLIP)

    def correlated(strategy: Strategy, sampling: Any) -> Recipe:
        return methods.dp_ftrl(clip=CLIP, bands=bands, strategy=strategy).using(sampling=sampling, relation=_REPLACE)

    fixed, shuffled = discreet.FixedOrder(), discreet.Reshuffled()
    return (
        Row("Poisson, independent noise", plain),
        Row("own loader, charged by the step", plain.using(sampling=discreet.OwnLoader(), relation=_REPLACE), True),
        Row("fixed order, independent noise", correlated(Strategy.IDENTITY, fixed), False),
        Row("fixed order, bisr", correlated(Strategy.BISR, fixed), False),
        Row("fixed order, optimised", correlated(Strategy.OPTIMISED, fixed), False),
        Row("shuffled, independent noise", correlated(Strategy.IDENTITY, shuffled), True),
        Row("shuffled, bisr", correlated(Strategy.BISR, shuffled), True),
        Row("shuffled, optimised", correlated(Strategy.OPTIMISED, shuffled), True),
        Row(
            "fixed bins, optimised",
            methods.dp_ftrl(clip=CLIP, bands=bands, strategy=Strategy.OPTIMISED).using(sampling=FixedBins()),
        ),
        Row("cyclic Poisson, optimised", methods.bandmf(clip=CLIP)),
    )


def batches(private: discreet.Private, task: Task, row: Row, seed: int) -> Iterator[Any]:
    """The batches of all epochs, in the loop that a user writes."""
    if row.shuffle is None:
        yield from private
        return
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        task.train, batch_size=int(private.plan.horizon.size.batch), shuffle=row.shuffle, generator=order
    )
    for _ in range(math.ceil(private.plan.horizon.steps / len(loader))):
        yield from private.over(loader)


def train(row: Row, plan: Plan, task: Task, model: str, rate: float, seed: int) -> tuple[float, float]:
    """Test accuracy of the last parameters and of their moving average. The randomness of privacy is the system's."""
    net = build(model, shape=task.shape, classes=task.classes, seed=seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    data = task.train if row.shuffle is None else None
    private = discreet.Private(net, optimizer, plan, data, average=AVERAGE)
    try:
        for x, y in batches(private, task, row, seed):
            private.step(F.cross_entropy(net(x), y, reduction="none"))
        spent = private.spent().certified.epsilon
        assert spent <= plan.certificate().epsilon * (1 + 1e-9)
        last = measure(net, task.test)[0]
        with private.averaged():
            return last, measure(net, task.test)[0]
    finally:
        private.close()


def experiment(flags: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Measure every row and write the results after each; rows of an interrupted experiment are kept."""
    task, found = load(flags.data), _kept(flags.out, facts)
    records = len(task.train)
    for row in rows(flags.bands)[len(found) :]:
        started = time.perf_counter()
        plan = row.recipe.for_budget(
            epsilon=flags.epsilon, delta=flags.delta, records=records, batch=flags.batch, epochs=flags.epochs
        )
        tried = {
            rate: [train(row, plan, task, flags.model, rate, seed) for seed in range(100, 100 + flags.search_seeds)]
            for rate in RATES
        }
        scores = {
            (rate, averaged): statistics.mean(pair[averaged] for pair in pairs)
            for (rate, pairs), averaged in itertools.product(tried.items(), (0, 1))
        }
        rate, averaged = max(scores, key=lambda key: scores[key])
        accuracies = [train(row, plan, task, flags.model, rate, seed)[averaged] for seed in range(flags.seeds)]
        found.append(
            {
                "row": row.name,
                "noise": plan.noise,
                "certified": plan.certificate().to_json(),
                "learning_rate": rate,
                "averaged": bool(averaged),
                "accuracies": accuracies,
                "mean": statistics.mean(accuracies),
                "seconds": round(time.perf_counter() - started, 1),
            }
        )
        print(f"{row.name:36} noise {plan.noise:8.3f} lr {rate:5g} {statistics.mean(accuracies):.4f}", flush=True)
        write_json(flags.out, {"rows": found, **facts})
    write_json(flags.out, {"rows": found, "findings": findings(found), **facts})


def _kept(out: Path, facts: dict[str, Any]) -> list[dict[str, Any]]:
    before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    same = before.get("settings") == facts["settings"] and before.get("versions") == facts["versions"]
    rows: list[dict[str, Any]] = before["rows"] if same else []
    return rows


def findings(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Paired differences, and how much of the gap between today's own loader and Poisson sampling is closed."""
    by = {row["row"]: row for row in found}
    poisson, today = by["Poisson, independent noise"]["mean"], by["own loader, charged by the step"]["mean"]
    answer: dict[str, Any] = {"gap_of_today": poisson - today}
    for order in ("fixed order", "shuffled"):
        plain = by[f"{order}, independent noise"]["accuracies"]
        for strategy in ("bisr", "optimised"):
            row = by[f"{order}, {strategy}"]
            ahead = [one - other for one, other in zip(row["accuracies"], plain, strict=True)]
            answer[f"{order}, {strategy}"] = {
                "ahead_of_independent_noise": ahead,
                "mean_ahead": statistics.mean(ahead),
                "gap": poisson - row["mean"],
                "share_of_the_gap_closed": (row["mean"] - today) / (poisson - today),
            }
    return answer


def write_page(results: Path, page: Path) -> None:
    """Write the table of the results between the marks of a page."""
    found = json.loads(results.read_text(encoding="utf-8"))
    lines = ["| | neighbours | noise | test accuracy, mean and range of the seeds |", "|---|---|---|---|"]
    for row in found["rows"]:
        low, high = min(row["accuracies"]), max(row["accuracies"])
        relation = row["certified"]["relation"]
        accuracy = f"{100 * row['mean']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        lines.append(f"| {row['row']} | {relation} | {row['noise']:.2f} | {accuracy} |")
    before, rest = page.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    write_text(page, "\n".join([f"{before}{MARKS[0]}", *lines, f"{MARKS[1]}{after}"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="softmax")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--bands", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--search-seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    flags = parser.parse_args()
    if flags.page is not None:
        write_page(flags.out, flags.page)
        return
    torch.set_num_threads(1)
    settings = {name: value for name, value in vars(flags).items() if name not in ("out", "page")}
    facts = {
        "command": typed("research.own_loader"),
        "settings": {**settings, "clip": CLIP, "rates": list(RATES), "average": AVERAGE},
        "versions": package_versions("discreet", "torch", "numpy", "scipy"),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    experiment(flags, facts)


if __name__ == "__main__":
    main()
