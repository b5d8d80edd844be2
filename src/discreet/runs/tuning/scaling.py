"""The linear scaling rule [Panda et al. 2024, arXiv 2212.04486]: try learning rates at small budgets, then extrapolate.

The best learning rate at two small epsilons gives a line, which is read at the epsilon of the final run. Every trial,
every score and the final run are composed, so all of them may be shown. The number of steps is fixed, because the plan
of the final run must not depend on the trials: losses are composed for plans that are fixed in advance.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from discreet.accounting.accountants import Certificate, certify
from discreet.accounting.calibration import calibrate_noise
from discreet.accounting.charges import Charge
from discreet.accounting.events import CountQuery
from discreet.accounting.ledger import Ledger
from discreet.core import check
from discreet.core.files import write_json
from discreet.core.plain import digest
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.runs.config import RunConfig
from discreet.runs.defaults import complete, load_task, plan_of, records_of
from discreet.runs.paying import pay
from discreet.runs.results import RunResult
from discreet.runs.training import train_on
from discreet.runs.tuning.sweep import score_of, split_task
from discreet.stages.unit import Unit

_SCORE_SIGMA = 20.0  # of each noisy count: far below what thousands of held-out records vary by


@final
@dataclass(frozen=True, kw_only=True)
class ScalingResult:
    """The final run of the rule, the learning rate that it used, and the cost of everything together.

    trials  (epsilon of the trial, learning rate, accuracy by a noisy count), all of them charged
    """

    learning_rate: float
    trials: tuple[tuple[float, float, float], ...]
    certified: Certificate
    run: RunResult


@final
@dataclass(frozen=True, kw_only=True)
class ScalingBill:
    """The cost of all trials, their scores and the final run; the runs with their noise.

    trials  the run of each small epsilon, to be tried with every learning rate
    """

    trials: Mapping[float, RunConfig]
    final: RunConfig
    charge: Charge
    certificate: Certificate
    sigma: float = _SCORE_SIGMA


def scaling_bill(
    config: RunConfig, rates: Sequence[float], *, shares: tuple[float, float] = (0.1, 0.2), held_out: float = 0.1
) -> ScalingBill:
    """Calibrate the final run so that everything together is within the budget, before a record is read."""
    low, high = shares
    check.require(
        config.seed is None, "secret randomness", f"seed={config.seed}", "drop the seed: all runs would share it"
    )
    check.require(0 < low < high < 1, "shares 0 < low < high < 1", f"{shares}", "e.g. (0.1, 0.2)")
    check.require(len(set(rates)) > 1, "at least two learning rates", f"{rates}", "e.g. (0.5, 1, 2, 4)")
    check.require(0 < held_out < 1, "0 < held_out < 1", f"held_out={held_out}", "e.g. 0.1")
    epsilon, config = config.epsilon, complete(config)
    if epsilon is None:
        check.refuse("epsilon", "none", "give the budget of everything together")
    relation, records = Neighbouring(config.relation), records_of(config, None)
    part = dataclasses.replace(config, records=round(records * (1 - held_out)), budget=None)
    trials = {share * epsilon: dataclasses.replace(part, epsilon=share * epsilon) for share in shares}
    # A record is in the training part or in the scoring part; charging it for both is simple, and the counts are cheap.
    spent = Charge(((CountQuery(_SCORE_SIGMA), len(shares) * len(rates)),))
    for trial in trials.values():
        spent = spent + plan_of(trial, None).charge() * len(rates)
    whole = dataclasses.replace(config, epsilon=None, noise=1.0, records=records, budget=None)

    def total(noise: float) -> Charge:
        return spent + plan_of(dataclasses.replace(whole, noise=noise), None).charge()

    noise = calibrate_noise(total, epsilon=epsilon, delta=config.delta, relation=relation)
    proven = certify(total(noise), delta=config.delta, relation=relation)
    final_run = dataclasses.replace(whole, noise=noise)
    return ScalingBill(trials=trials, final=final_run, charge=total(noise), certificate=proven)


def scale_linearly(
    config: RunConfig, rates: Sequence[float], *, shares: tuple[float, float] = (0.1, 0.2), held_out: float = 0.1
) -> ScalingResult:
    """Try every learning rate at two shares of the budget, extrapolate, and train with what is left.

    config  the final run; its epsilon pays for everything, its `out` holds the trials and the final run
    """
    bill, out = scaling_bill(config, rates, shares=shares, held_out=held_out), Path(config.out)
    proven = bill.certificate
    if config.budget is not None:
        what = f"linear scaling rule into {out}"
        pay(config.budget, out, bill.charge, proven.relation, what=what, unit=config.protected().name)
    _write_ledger(out, bill.charge, proven, config.protected())
    task = load_task(config)
    training, scoring = split_task(task, held_out, Streams.from_os().init.public_key, config.protected())
    best: dict[float, float] = {}
    trials: list[tuple[float, float, float]] = []
    for epsilon, trial in bill.trials.items():
        for index, rate in enumerate(rates):
            run = dataclasses.replace(trial, learning_rate=rate, out=str(out / f"trial-{epsilon:g}-{index}"))
            train_on(training, dataclasses.replace(run, eval_every=10**9, checkpoint_every=100))
            score = score_of(run, training, scoring, bill.sigma, records_of(bill.final, task) * held_out)
            trials.append((epsilon, rate, score))
        best[epsilon] = max(trials[-len(rates) :], key=lambda one: one[2])[1]
    assert config.epsilon is not None
    rate = extrapolated(best, config.epsilon, rates)
    result = train_on(task, dataclasses.replace(bill.final, learning_rate=rate, out=str(out / "final")))
    return ScalingResult(learning_rate=rate, trials=tuple(trials), certified=proven, run=result)


def extrapolated(best: Mapping[float, float], epsilon: float, rates: Sequence[float]) -> float:
    """The line through the best rates of two budgets, read at epsilon; within a factor of two of the rates tried.

    >>> extrapolated({0.3: 1.0, 0.6: 2.0}, 3.0, (1.0, 8.0))
    10.0
    """
    (e1, r1), (e2, r2) = sorted(best.items())
    found = r1 + (r2 - r1) / (e2 - e1) * (epsilon - e1)
    return float(f"{min(max(found, min(rates) / 2), 2 * max(rates)):.4g}")


def _write_ledger(out: Path, total: Charge, proven: Certificate, unit: Unit) -> None:
    """Charge all trials and the final run before the first record is read."""
    ledger = out / "ledger.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    body: dict[str, Any] = {"events": [[event.to_json(), count] for event, count in total.certified]}
    write_json(out / "scaling.json", body)
    header = {"relation": str(proven.relation), "delta": proven.delta, "plan": digest(body), "seeded": False}
    header |= {} if unit.is_record else {"unit": unit.name}
    with Ledger.create(ledger, header) as writer:
        for event, count in total.certified:
            for _ in range(count):
                writer.append(event, step=0)
