"""What tuning is worth: advised defaults, private selection and the linear scaling rule at one total epsilon.

    python -m research.tuning_study --runs 60 --out results/tuning.json

Every arm may use the same certified (epsilon, delta) for everything that it does, the choice included. Noise, law of K,
score and settings are those of `discreet.tune`; the training loop is a plain one for linear models, whose per-record
gradient norms have a closed form. Searches are simulated from a pool of trained candidates. The file also compares the
plain loop with the library.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.accounting.accountants import certify
from discreet.accounting.best_of_runs import RunLaw
from discreet.accounting.charges import Charge
from discreet.core.command import package_versions
from discreet.core.relation import Neighbouring
from discreet.data import load
from discreet.runs.config import RunConfig
from discreet.runs.defaults import settle
from discreet.runs.training import train
from discreet.runs.tuning.bill import TuneBill, TuneSettings, bill_of, candidate_config
from discreet.runs.tuning.scaling import extrapolated, scaling_bill
from discreet.runs.tuning.space import LogRange, Space
from research.command import typed

EPSILON, DELTA, HELD_OUT = 3.0, 1e-6, 0.1
Split = tuple[Tensor, Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """Records with a constant feature appended, the run that is searched around, and what is searched."""

    name: str
    config: RunConfig
    train: Split
    test: Split
    classes: int
    space: Space
    rates: tuple[float, ...]


def edge_features(images: Tensor) -> Tensor:
    """[n, 1, 28, 28] to [n, 392]: energies of 8 edge directions in 7 x 7 cells, each record scaled to norm 1.

    Nothing is learned, so the features of a record depend on that record alone.
    """
    dy, dx = torch.gradient(images[:, 0], dim=(1, 2))
    angle, energy = torch.atan2(dy, dx), torch.hypot(dx, dy)
    place = ((angle + math.pi) / (2 * math.pi) * 8).long().clamp(0, 7)
    maps = torch.zeros(len(images), 8, 28, 28).scatter_(1, place[:, None], energy[:, None])
    cells = F.avg_pool2d(maps, 4).flatten(1).sqrt()
    return cells / cells.norm(dim=1, keepdim=True).clamp_min(1e-6)


def problems() -> list[Problem]:
    adult, fashion = load("adult"), load("fashion-mnist")
    searched = {"learning_rate": LogRange(0.3, 30.0), "clip": (0.1, 0.5, 1.0)}
    shared = {"epsilon": EPSILON, "delta": DELTA, "out": "unused"}
    own = {"data": "features.npz", "classes": 10, "records": 60_000, "model": "softmax", "batch": 1024, "epochs": 5}
    return [
        Problem(
            name="adult",
            config=RunConfig(data="adult", **shared),
            train=_with_constant(*adult.train.tensors),
            test=_with_constant(*adult.test.tensors),
            classes=2,
            space=Space.of({**searched, "epochs": (5, 10, 20)}),
            rates=(0.5, 1.0, 2.0, 4.0),
        ),
        Problem(
            name="fashion-mnist, edge features",
            config=RunConfig(**own, **shared),
            train=_with_constant(edge_features(fashion.train.tensors[0]), fashion.train.tensors[1]),
            test=_with_constant(edge_features(fashion.test.tensors[0]), fashion.test.tensors[1]),
            classes=10,
            space=Space.of({**searched, "epochs": (3, 5, 10)}),
            rates=(0.5, 1.0, 2.0, 4.0),
        ),
    ]


def _with_constant(x: Tensor, y: Tensor) -> Split:
    return torch.cat([x.flatten(1), torch.ones(len(x), 1)], dim=1), y


def trained(problem: Problem, config: RunConfig, data: Split) -> Tensor:
    """The averaged weights [features, outputs] of DP-SGD with Poisson sampling, as the plan of `config` has it."""
    chosen, plan = settle(config, None)
    (x, y), clip = data, float(dict(chosen.parameters)["clip"])
    rate, batch, decay = plan.horizon.rate, plan.horizon.size.batch, float(chosen.average or 0.0)
    outputs = 1 if chosen.model == "logistic" else problem.classes
    bound = 1 / math.sqrt(x.shape[1] - 1)
    weights = torch.empty(x.shape[1], outputs).uniform_(-bound, bound)
    average = torch.zeros_like(weights)
    for _ in range(plan.horizon.steps):
        some = torch.rand(len(y)) < rate
        rows, labels = x[some], y[some]
        scores = rows @ weights
        if outputs == 1:
            errors = torch.sigmoid(scores) - labels[:, None].float()
        else:
            errors = scores.softmax(1) - F.one_hot(labels, outputs).float()
        norms = errors.norm(dim=1) * rows.norm(dim=1)  # of the outer product, the gradient of a record
        total = rows.T @ (errors * (clip / norms.clamp_min(clip))[:, None])
        noisy = total + plan.noise * clip * torch.randn_like(total)
        weights -= float(chosen.learning_rate or 0.0) * noisy / batch
        average = decay * average + (1 - decay) * weights
    return average / (1 - decay**plan.horizon.steps)


def right(weights: Tensor, data: Split) -> Tensor:
    scores = data[0] @ weights
    return (scores[:, 0] > 0) == (data[1] == 1) if weights.shape[1] == 1 else scores.argmax(1) == data[1]


def accuracy(weights: Tensor, data: Split) -> float:
    return float(right(weights, data).double().mean())


def parts(data: Split) -> tuple[Split, Split]:
    held = torch.rand(len(data[1])) < HELD_OUT
    return (data[0][~held], data[1][~held]), (data[0][held], data[1][held])


def counted(weights: Tensor, data: Split, sigma: float) -> float:
    return float((right(weights, data).double() - 0.5).sum() + sigma * torch.randn(()))


Candidate = tuple[float, float]  # the noisy count on held-out records, and the test accuracy


def candidate(problem: Problem, settings: TuneSettings, bill: TuneBill) -> Candidate:
    """One run of a search, with a split of its own."""
    data, scoring = parts(problem.train)
    drawn = settings.space.draw(torch.rand(len(settings.space.axes), dtype=torch.float64).tolist())
    weights = trained(problem, candidate_config(settings, bill, drawn, "unused"), data)
    return counted(weights, scoring, bill.sigma) / len(scoring[1]), accuracy(weights, problem.test)


def searches(pool: Sequence[Candidate], law: RunLaw, count: int) -> list[float]:
    """The test accuracies of `count` searches whose candidates are drawn from a pool of trained ones."""
    found = []
    for _ in range(count):
        runs = law.draw(float(torch.rand((), dtype=torch.float64)))
        found.append(max(pool[int(index)] for index in torch.randint(len(pool), (runs,)))[1])
    return found


def scaled(problem: Problem, bill: Any) -> float:
    """The test accuracy of the linear scaling rule."""
    data, scoring = parts(problem.train)
    best = {}
    for epsilon, trial in bill.trials.items():
        scores = {}
        for rate in problem.rates:
            weights = trained(problem, dataclasses.replace(trial, learning_rate=rate), data)
            scores[rate] = counted(weights, scoring, bill.sigma)
        best[epsilon] = max(scores, key=lambda rate: scores[rate])
    rate = extrapolated(best, EPSILON, problem.rates)
    return accuracy(trained(problem, dataclasses.replace(bill.final, learning_rate=rate), problem.train), problem.test)


def rows_of(problem: Problem, runs: int) -> Iterator[Mapping[str, Any]]:
    """One row for each arm, from `runs` trained models each."""
    plain = [accuracy(trained(problem, problem.config, problem.train), problem.test) for _ in range(max(2, runs // 3))]
    yield _row(problem.name, "advised defaults", EPSILON, plain, _error(plain))
    for mean, shape in ((3.0, 0.0), (10.0, 0.0), (10.0, 1.0)):
        settings = TuneSettings(config=problem.config, space=problem.space, runs=mean, shape=shape, held_out=HELD_OUT)
        bill = bill_of(settings)
        pool = [candidate(problem, settings, bill) for _ in range(runs)]
        means = []
        for _ in range(100):  # the error of a pool of this size, by the bootstrap
            again = [pool[int(index)] for index in torch.randint(len(pool), (len(pool),))]
            means.append(statistics.mean(searches(again, bill.law, 200)))
        epsilon = max(map(_epsilon, map(Charge, bill.event.candidates)))
        name = f"tune, {mean:g} runs expected" + (f", shape {shape:g}" if shape else "")
        yield _row(problem.name, name, epsilon, searches(pool, bill.law, 4000), statistics.stdev(means))
    rule = scaling_bill(problem.config, problem.rates, held_out=HELD_OUT)
    last = [scaled(problem, rule) for _ in range(max(2, runs // 9))]
    yield _row(problem.name, "linear scaling rule", _epsilon(settle(rule.final, None)[1].charge()), last, _error(last))


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _epsilon(charge: Charge) -> float:
    return certify(charge, delta=DELTA, relation=Neighbouring.ADD_REMOVE).epsilon


def checked() -> dict[str, float]:
    """The plain loop beside the library on Adult, with the defaults: mean test accuracy of three runs each."""
    problem = problems()[0]
    with tempfile.TemporaryDirectory() as name:
        library = [
            train(dataclasses.replace(problem.config, out=f"{name}/{index}", eval_every=10**9)).test_accuracy
            for index in range(3)
        ]
    plain = [accuracy(trained(problem, problem.config, problem.train), problem.test) for _ in range(3)]
    return {"library": statistics.mean(library), "plain": statistics.mean(plain)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60, help="trained candidates of each arm")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    body = {"command": typed("research.tuning_study"), "epsilon": EPSILON, "delta": DELTA, "seed": given.seed}
    body |= {"versions": package_versions("discreet", "torch", "numpy", "scipy"), "adult_defaults": checked()}
    rows: list[Mapping[str, Any]] = []
    for problem in problems():
        for row in rows_of(problem, given.runs):
            rows.append(row)
            given.out.write_text(json.dumps({**body, "runs": given.runs, "rows": rows}, indent=2) + "\n")


def _row(problem: str, arm: str, epsilon: float, values: Sequence[float], error: float) -> Mapping[str, Any]:
    worst = sorted(values)[len(values) // 20]
    held = {"mean": statistics.mean(values), "standard_error": error, "one_in_twenty": worst}
    return {"problem": problem, "arm": arm, "epsilon_of_a_run": epsilon, **held}


if __name__ == "__main__":
    main()
