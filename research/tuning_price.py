"""What a search leaves for each run: `python -m research.tuning_price --out results/tuning-price.json`.

The run is DP-SGD on Adult's numbers (32 561 records, batch 1024, 10 epochs); the search has epsilon 3 in all.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from discreet.accounting.accountants import certify
from discreet.accounting.best_of_runs import law_of
from discreet.accounting.calibration import calibrate_noise
from discreet.accounting.charges import Charge
from discreet.accounting.events import BestOfRuns, Gaussian, PoissonSampled
from discreet.core.command import package_versions
from discreet.core.relation import Neighbouring
from research.command import typed

EPSILON, DELTA = 3.0, 1e-6
RATE, STEPS = 1024 / 32_561, 320
LAWS = ((3.0, 0.0), (5.0, 0.0), (10.0, 0.0), (30.0, 0.0), (10.0, 1.0))


def price(mean: float, shape: float) -> dict[str, float]:
    """The noise and the epsilon of one run, and how likely a search has one run only."""

    def search(noise: float) -> Charge:
        return Charge.of(BestOfRuns((((PoissonSampled(RATE, Gaussian(noise)), STEPS),),), mean, shape))

    noise = calibrate_noise(search, epsilon=EPSILON, delta=DELTA, relation=Neighbouring.ADD_REMOVE)
    ((event, _),) = search(noise).certified
    assert isinstance(event, BestOfRuns)
    run = certify(Charge(event.candidates[0]), delta=DELTA, relation=Neighbouring.ADD_REMOVE).epsilon
    alone = next(probability for _, probability in law_of(event).probabilities())
    return {"mean": mean, "shape": shape, "noise": noise, "epsilon_of_a_run": run, "one_run_only": alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    body = {"command": typed("research.tuning_price"), "seed": None, "versions": package_versions("discreet", "numpy")}
    rows = [price(mean, shape) for mean, shape in LAWS]
    given.out.write_text(json.dumps({**body, "epsilon": EPSILON, "delta": DELTA, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
