"""`discreet account` and `discreet calibrate`: what a plan costs before it runs."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.accounting.accountants import Certificate, certify
from discreet.accounting.calibration import calibrate_batch, calibrate_steps
from discreet.accounting.charges import Charge
from discreet.accounting.ledger import merge, read
from discreet.cli.flags import JsonFlag, ToClaimFlag, required_delta, required_epsilon, required_noise
from discreet.cli.output import emit
from discreet.cli.plans import PlanFlags, horizon_of, not_both, recipe_of
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe
from discreet.stages.sampling import Horizon


class Unknown(enum.Enum):
    """What calibration solves for."""

    NOISE = "noise"
    STEPS = "steps"
    BATCH = "batch"


def account(
    flags: PlanFlags,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(help="A run's ledger, instead of a method; several on the same data compose.", show_default=False),
    ] = None,
    curve: Annotated[Path | None, typer.Option(help="Draw epsilon against steps here (.svg, .png).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The certified epsilon of a plan or of ledgers, beside the one that the method's paper claims."""
    if ledger:
        _account_ledgers(flags, ledger, curve, as_json)
        return
    not_both(flags, ("--noise",), ("--epsilon",))
    if curve is not None:
        from discreet.report.charts import check_picture

        check_picture(curve)
    method, recipe = recipe_of(flags)
    is_budget = flags.epsilon is not None
    plan = _calibrated(recipe.for_horizon, flags) if is_budget else _bound(recipe, flags, horizon_of(flags))
    solved = {"noise": plan.noise} if is_budget else {}
    points = None if curve is None else _saved(plan, curve)
    _show_plan(method.name, plan, solved, as_json)
    if points is not None and not as_json:
        from discreet.report import terminal

        terminal.show(terminal.curve(points), f"written to {curve}")


def calibrate(
    flags: PlanFlags,
    solve: Annotated[Unknown, typer.Option(help="What to choose; steps and batch need --noise.")] = Unknown.NOISE,
    calibrate_to_claim: ToClaimFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """The least noise, the most steps or the largest batch whose certificate stays within a budget."""
    method, recipe = recipe_of(flags)
    is_valid = solve is Unknown.NOISE or not calibrate_to_claim
    remedy = "only noise can be calibrated to a claim: drop one of the two"
    check.require(is_valid, "--calibrate-to-claim for the noise", f"--solve {solve.value}", remedy)
    if solve is Unknown.NOISE:
        not_both(flags, ("--noise",), ("--epsilon",))
        plan = _calibrated(recipe.for_claim if calibrate_to_claim else recipe.for_horizon, flags)
        solved: dict[str, Any] = {}
    elif solve is Unknown.STEPS:
        plan = _most_steps(recipe, flags)
        solved = {"steps": plan.horizon.steps}
    else:
        plan = _largest_batch(recipe, flags)
        solved = {"batch": int(plan.horizon.size.batch)}
    _show_plan(method.name, plan, {"noise": plan.noise, **solved}, as_json)


# -- inside -------------------------------------------------------------------------------------------------


def _bound(recipe: Recipe, flags: PlanFlags, horizon: Horizon) -> Plan:
    """The plan with the noise that --noise gives."""
    return recipe.bind(
        noise=required_noise(flags.noise),
        horizon=horizon,
        delta=required_delta(flags.delta),
        accept_large_delta=flags.accept_delta,
    )


def _calibrated(calibrate: Callable[..., Plan], flags: PlanFlags) -> Plan:
    """The plan with the least noise for --epsilon."""
    return calibrate(
        epsilon=required_epsilon(flags.epsilon),
        delta=required_delta(flags.delta),
        horizon=horizon_of(flags),
        accept_large_delta=flags.accept_delta,
    )


def _most_steps(recipe: Recipe, flags: PlanFlags) -> Plan:
    """The plan with the most steps that the budget pays for."""
    given = [flag for flag in flags.given() if flag in ("--steps", "--epochs")]
    remedy = "drop it: the number of steps is the result"
    check.require(not given, "neither --steps nor --epochs with --solve steps", " and ".join(given), remedy)
    once = horizon_of(dataclasses.replace(flags, steps=1))

    def plan(steps: int) -> Plan:
        return _bound(recipe, flags, dataclasses.replace(once, steps=steps))

    budget = {"epsilon": required_epsilon(flags.epsilon), "delta": required_delta(flags.delta)}
    steps = calibrate_steps(lambda steps: plan(steps).charge(), relation=recipe.relation, **budget)
    check.require(steps > 0, "a budget that pays for one step", f"epsilon={flags.epsilon}", "raise noise or budget")
    return plan(steps)


def _largest_batch(recipe: Recipe, flags: PlanFlags) -> Plan:
    """The plan with the largest batch that the budget pays for."""
    given = [flag for flag in flags.given() if flag in ("--batch", "--rate")]
    remedy = "drop it: the batch is the result; give --records"
    check.require(not given, "neither --batch nor --rate with --solve batch", " and ".join(given), remedy)
    if flags.records is None:
        check.refuse("--records with --solve batch", "none", "give the public number of records")
    check.count("records is a public number", records=flags.records)

    def plan(batch: int) -> Plan:
        return _bound(recipe, flags, horizon_of(dataclasses.replace(flags, batch=float(batch))))

    budget = {"epsilon": required_epsilon(flags.epsilon), "delta": required_delta(flags.delta)}
    batch = calibrate_batch(lambda size: plan(size).charge(), largest=flags.records, relation=recipe.relation, **budget)
    return plan(batch)


def _account_ledgers(flags: PlanFlags, paths: list[Path], curve: Path | None, as_json: bool) -> None:
    given = [flag for flag in flags.given() if flag not in ("--delta", "--relation")]
    given += ["--curve"] if curve is not None else []
    remedy = "the ledger determines the cost: drop the flags that describe a plan"
    check.require(not given, "--ledger with --delta alone", " and ".join(given), remedy)
    records = {path: read(path) for path in paths}
    for path, record in records.items():
        check.require(record.length > 0, f"at least one charge in {path}", "none", "name the ledger of a run")
    relation = flags.relation or records[paths[0]].relation
    remedy = "an epsilon holds for one relation: drop --relation, or account for these runs separately"
    for path, record in records.items():
        check.require(record.relation is relation, f"relation {relation} in {path}", f"{record.relation}", remedy)
    _show("ledger", merge(paths), required_delta(flags.delta), relation, {}, as_json)


def _show_plan(name: str, plan: Plan, solved: Mapping[str, Any], as_json: bool) -> None:
    _show(name, plan.charge(), plan.delta, plan.relation, solved, as_json, plan.warnings)


def _show(
    name: str,
    charge: Charge,
    delta: float,
    relation: Neighbouring,
    solved: Mapping[str, Any],
    as_json: bool,
    warnings: Sequence[str] = (),
) -> None:
    certificate: Certificate = certify(charge, delta=delta, relation=relation)
    claimed = None if charge.claimed is None else charge.claimed.to_json(delta)
    if as_json:
        warned = {"warnings": list(warnings)} if warnings else {}
        emit({"method": name, "certified": certificate.to_json(), "claimed": claimed, **solved, **warned})
        return
    from discreet.report import terminal

    lines = [f"Warning: {warning}" for warning in warnings]
    terminal.show(terminal.account_table(name, certificate, claimed, solved), *lines)


def _saved(plan: Plan, path: Path) -> Sequence[tuple[int, float]]:
    """The curve, once its picture is written."""
    from discreet.report import charts
    from discreet.runs.planner import epsilon_curve

    points = epsilon_curve(plan)
    chart = charts.epsilon_chart(f"{plan.method}, delta {plan.delta:g}, {plan.relation}", points)
    charts.save(chart, path, titled=True)
    return points
