"""The privacy statement of a run, for the release of its model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from discreet.core import check
from discreet.core.randomness import KEYED, SEEDED
from discreet.core.relation import Neighbouring
from discreet.data import Task
from discreet.runs.config import RunConfig
from discreet.runs.tuning.bill import TuneBill, TuneSettings
from discreet.runs.tuning.space import Axis, LogRange
from discreet.stages.grid_noise import GridNoise
from discreet.stages.participation import CyclicPoisson, FixedBins, FixedOrder, OnePass, Reshuffled
from discreet.stages.plan import Plan
from discreet.stages.sampling import BallsInBins, FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson
from discreet.stages.schedule import Constant
from discreet.stages.unit import SampledUsers, Unit
from discreet.training.private import Private
from discreet.training.spending import Spent, format_epsilon

if TYPE_CHECKING:
    from discreet.runs.tuning.sweep import TuneResult

_NEIGHBOURS = {
    Neighbouring.ADD_REMOVE: "add/remove: the same data with and without {any_one}",
    Neighbouring.REPLACE_ONE: "replace-one: the same data with {any_one} exchanged for another",
}

_SAMPLING: dict[type[Sampling], str] = {
    Poisson: "Poisson: each {one} joins each step independently with probability {rate:.6g}",
    TruncatedPoisson: "Poisson with probability {rate:.6g}, batches cut to {sampling.cap} {many}",
    FixedSize: "a uniform subset of fixed size in every step, a share of {rate:.6g}",
    BallsInBins: "each {one} joins one step of every epoch, chosen uniformly",
    FullBatch: "all {many} in every step",
    FixedBins: "each {one} joins one step of every epoch, always at the same place, chosen uniformly",
    CyclicPoisson: "each {one} belongs to one of {sampling.parts} parts, which take turns, and joins a step of its "
    "part independently with probability {sampling.parts} x {rate:.6g}",
    FixedOrder: "the user's own loader, the same batches in every epoch; sampling is not credited",
    Reshuffled: "the user's own loader, in a new order in every epoch; sampling is not credited",
    OnePass: "the user's own stream, in which no record comes twice; sampling is not credited",
}


def statement(private: Private, *, data: str) -> str:
    """What a run has spent so far, as a Markdown page; `data` describes the protected records in words.

    Path("privacy-statement.md").write_text(discreet.statement(private, data="the visits of 2024"))
    """
    plan, spent = private.plan, private.spent()
    is_covered = plan.analysis.visible or spent.steps == plan.horizon.steps
    expected = f"all {plan.horizon.steps} steps of a run whose iterates must stay hidden"
    remedy = "finish the run: its certificate covers the final parameters only"
    check.require(is_covered, expected, f"{spent.steps} steps", remedy)
    rows = _rows(plan, spent, data, f"{plan.method} ({plan.bounder})")
    return _page(plan, spent, rows, [_START], [_SCORES, *_NOT_COVERED])


def run_statement(config: RunConfig, plan: Plan, task: Task, spent: Spent, resumes: int) -> str:
    parameters = ", ".join(f"{name}={value}" for name, value in config.parameters) or "no parameters"
    rows = _rows(plan, spent, f"the training records of {task.name}", f"{plan.method} ({parameters})")
    if config.public_records is not None:
        rows.insert(1, ("public records", f"{config.public_records}, which the user declares unprotected"))
    not_covered = [_EVALUATION, *_NOT_COVERED, *([_PUBLIC] if config.public_data else [])]
    return _page(plan, spent, rows, _interruptions(resumes), not_covered)


def tune_statement(plan: Plan, task: Task, settings: TuneSettings, bill: TuneBill, result: TuneResult) -> str:
    """What a search has released and what it cost, as a Markdown page."""
    proven = bill.certificate
    spent = Spent(
        certified=proven,
        claimed=None,
        steps=plan.horizon.steps,
        statement=KEYED,
        warnings=plan.warnings,
        unit=plan.unit.name,
    )
    space = "; ".join(f"{name}: {_axis(axis)}" for name, axis in settings.space.axes)
    scored = (
        f"a share of {settings.held_out:g} of the records, by a count with Gaussian noise of deviation {bill.sigma:.4g}"
        if settings.held_out
        else "the test records, which the user declares public"
    )
    rows = [
        ("protected", f"the training records of {task.name}"),
        ("unit", _unit(plan.unit)),
        ("neighbours", _neighbours(plan)),
        ("epsilon, certified", f"{format_epsilon(proven.epsilon)} for the whole search, by the {proven.accountant}"),
        ("delta", f"{proven.delta:g}"),
        ("searched", space),
        ("number of runs", f"secret: truncated negative binomial, mean {settings.runs:g}, shape {settings.shape:g}"),
        ("scored on", scored),
        ("chosen", ", ".join(f"{name}={value}" for name, value in result.settings.items())),
        ("method", f"{plan.method}, noise {plan.noise:.6g}, {plan.horizon.steps} steps"),
        ("covers", "the chosen model, its settings and its score; listing other runs would cost all of them"),
        ("randomness", KEYED),
    ]
    return _page(plan, spent, rows, [_HIDDEN], [_EVALUATION, _NOT_COVERED[-1]])


def _axis(axis: Axis) -> str:
    if isinstance(axis, LogRange):
        return f"{axis.low:g} to {axis.high:g}, log-uniform"
    return ", ".join(map(str, axis.values))


_HIDDEN = (
    "The number of runs, the runs that were not chosen and how long the search took were shown to nobody who must not "
    "see the records"
)


def _page(
    plan: Plan, spent: Spent, rows: Sequence[tuple[str, str]], also: Sequence[str], not_covered: Sequence[str]
) -> str:
    on_grid, noise, gradients = isinstance(plan.mechanism, GridNoise), *_LIMITS[:2]
    if spent.fixed_rows is not None:
        noise, gradients = (_ON_GRID if on_grid else noise), _FIXED_ROWS.format(rows=spent.fixed_rows)
    elif on_grid:
        noise = f"{_ON_GRID}; {_SUMS}"
    limits = (noise, gradients, *_LIMITS[2:])
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
    parts = [
        "# Privacy statement",
        _headline(spent, plan),
        *(f"**Warning:** {warning}." for warning in spent.warnings),
        table,
        "## What it rests on",
        _bullets([*(text for text in spent.certified.assumptions if text != SEEDED), *limits, *also]),
        "## What is not covered",
        _bullets(not_covered),
    ]
    return "\n\n".join(parts) + "\n"


def _headline(spent: Spent, plan: Plan) -> str:
    proven, records, drawn = spent.certified, plan.horizon.records, plan.unit.sampled
    if spent.seeded:
        return (
            "**This run is NOT private.** Its randomness came from a seed, in all of its steps or in some, and "
            "anyone who knows or guesses the seed can remove the noise. With secret randomness the same run "
            f"would have epsilon {format_epsilon(proven.epsilon)} at delta {proven.delta:g}."
        )
    if not math.isfinite(proven.epsilon):
        return "**This run is NOT private:** no bound on epsilon is proven for it."
    if records is not None and proven.delta >= 1 / records:
        return (
            f"**This run does not protect single {drawn}:** its delta, {proven.delta:g}, is as large as 1/{drawn}. "
            f"What is proven is epsilon {format_epsilon(proven.epsilon)} at that delta."
        )
    whom = f"for every {plan.unit.name}, with all records that belong to the {plan.unit.name}"
    whom = "for every single training record" if plan.unit.is_record else whom
    guarantee = (
        f"the released model is differentially private: **epsilon {format_epsilon(proven.epsilon)}** at delta "
        f"{proven.delta:g}, {whom}. Anything that is computed from the model later has the same guarantee."
    )
    if conditions := proven.conditions:
        said = " and ".join(conditions)
        return f"**{said[:1].upper()}{said[1:]}**, which has not been checked, {guarantee}"
    return guarantee[:1].upper() + guarantee[1:]


def _unit(unit: Unit) -> str:
    if unit.is_record:
        return "one record; a person with several records is protected less"
    used = f"at most {unit.per_user} records of a {unit.name} are used"
    if isinstance(unit, SampledUsers):
        return f"one {unit.name}, with all records; {used} in a step, by their mean gradient"
    return f"one {unit.name}, with all records; {used} in the whole run"


def _neighbours(plan: Plan) -> str:
    name = plan.unit.name
    return _NEIGHBOURS[plan.relation].format(any_one="any one record" if plan.unit.is_record else f"any one {name}")


def _rows(plan: Plan, spent: Spent, data: str, method: str) -> list[tuple[str, str]]:
    proven, horizon = spent.certified, plan.horizon
    seeded = f" ({SEEDED})" if spent.seeded else ""
    claimed = "no claim for this method" if spent.claimed is None else format_epsilon(spent.claimed)
    final = "the final parameters only: earlier ones, for example in a checkpoint, must never be published"
    sampling = _SAMPLING.get(type(plan.sampling), "batches from the user's own loader; sampling is not credited")
    steady = isinstance(plan.schedule, Constant)
    changes = "" if steady else f", changed over the run by {type(plan.schedule).__name__}"
    correlated = ", correlated between steps" if plan.mechanism.remembers else ""
    drawn = plan.unit.sampled  # "records" or "patients"
    bound = f"the bound on one {drawn[:-1]}'s contribution to the sum"
    noise = f"Gaussian, {plan.noise:.6g} times {bound}{changes}{correlated}"
    return [
        ("protected", data),
        ("unit", _unit(plan.unit)),
        ("neighbours", _neighbours(plan)),
        ("epsilon, certified", f"{format_epsilon(proven.epsilon)}{seeded}, by {proven.accountant} accounting"),
        ("epsilon, claimed by the method's paper", claimed),
        ("delta", f"{proven.delta:g}"),
        ("method", method),
        ("sampling", sampling.format(rate=horizon.rate, sampling=plan.sampling, one=drawn[:-1], many=drawn)),
        ("noise", noise),
        ("steps", f"{spent.steps} charged of {horizon.steps} planned"),
        ("covers", "the parameters after every step of the run" if plan.analysis.visible else final),
        ("randomness", spent.statement),
    ]


_LIMITS = (
    "The Gaussian noise is made of floating-point numbers (from 64-bit words of AES-256 in counter mode), not of "
    "real numbers: the proof does not cover attacks on the last bits",
    "Gradients are floating-point numbers, too, and how one is rounded depends on the size of its batch: the proof "
    "does not cover records that are made to lie exactly on a threshold of the model",
    "The numbers of records, batch and steps that the plan used are public",
    "Nothing else that depends on the training records was published: no losses, norms or batch sizes",
)

_ON_GRID = "The Gaussian noise was rounded to a grid exactly, so the proof covers the last bits of what was released"

_SUMS = "the sums of gradients before the noise are floating-point numbers, whose rounding it does not cover"

_FIXED_ROWS = (
    "Rounding of records by the batch is covered: every forward pass had {rows} rows, and a record's row was a secret "
    "draw of its own. Sums were added up in float64, whose rounding docs/proofs/FixedRows.md bounds"
)

_START = (
    "The initial weights and the initial state of the optimizer do not depend on these records, and no learning rate "
    "was chosen by their losses. If the model comes from an earlier private run on these records, the cost of that "
    "run adds up: `discreet account --ledger` takes both ledgers"
)

_SCORES = (
    "Scores: a value that is computed from the model alone is protected. A score also depends on the records that "
    "it was computed on, and no noise protects those"
)

_EVALUATION = (
    "The evaluation records: the accuracies of this run were computed on them without noise, and they are "
    "declared unprotected"
)

_NOT_COVERED = (
    "The choice of hyper-parameters: every other run on the same records has its own epsilon, and the costs add "
    "up. Settings that were chosen on other, public data cost nothing",
    "The running time, and anything else that the training machine reveals",
)

_PUBLIC = "The training records: they are declared public, so values computed from them may be shown"


def _interruptions(resumes: int) -> list[str]:
    if not resumes:
        return []
    resumed = f"The run was resumed {'once' if resumes == 1 else f'{resumes} times'}, each time with fresh randomness"
    return [f"{resumed}. A step that a crash interrupted stays charged and was not repeated"]


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line[:1].upper()}{line[1:].rstrip('.')}." for line in lines)
