"""`discreet account` and `discreet calibrate`: what a plan costs before it runs."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, final

import typer

from discreet.accounting.accountants import Certificate, certify
from discreet.accounting.calibration import calibrate_batch, calibrate_steps
from discreet.accounting.charges import Charge
from discreet.accounting.ledger import merge, read
from discreet.cli import flags as shared
from discreet.cli import recipes
from discreet.cli.flags import JsonFlag, emit, flag, required_delta, required_epsilon, required_noise
from discreet.core import check
from discreet.methods import Method
from discreet.report import charts
from discreet.runs.config import sampler_of
from discreet.runs.folder_bill import folder_bill
from discreet.runs.planning.planner import epsilon_curve
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon, Sampling
from discreet.stages.schedule import Constant, Period, Schedule, Table
from discreet.stages.unit import CappedRecords

Unknown = Literal["noise", "steps", "batch"]  # what calibration solves for


@final
@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """Everything that names a plan for accounting."""

    method: shared.MethodFlag = None
    noise: shared.NoiseFlag = None
    epsilon: shared.EpsilonFlag = None
    delta: shared.DeltaFlag = None
    accept_delta: shared.AcceptDeltaFlag = False
    rate: Annotated[float | None, flag("Probability that a record joins a step.", "Run")] = None
    records: Annotated[int | None, flag("Public number of records.", "Run")] = None
    batch: Annotated[float | None, flag("Expected records in a step (public).", "Run")] = None
    steps: shared.StepsFlag = None
    epochs: shared.EpochsFlag = None
    schedule: Annotated[
        str | None, flag("Noise factors: constant, a list such as 1,0.9,0.8, or a JSON file with such a list.", "Run")
    ] = None
    schedule_per: Annotated[Period | None, flag("What the list counts (default: step).", "Run")] = None
    relation: shared.RelationFlag = None
    sampling: shared.SamplingFlag = None
    cap: shared.CapFlag = None
    per_user: Annotated[int | None, flag("Price a user with this many records, drawn one by one.", "Guarantee")] = None
    recipe_flags: recipes.Given = field(default_factory=dict)

    def given(self, *among: str) -> list[str]:
        """The flags that were given, of these or of all."""
        own = [name for name, value in shared.given(self, leave_out=("recipe_flags",)).items() if value is not False]
        own += [name for name, value in self.recipe_flags.items() if value is not None]
        every = ["--" + name.replace("_", "-") for name in own]
        return [name for name in every if not among or name in among]

    def budget(self) -> dict[str, float]:
        return {"epsilon": required_epsilon(self.epsilon), "delta": required_delta(self.delta)}


def account(
    flags: PlanFlags,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(help="A run's ledger, instead of a method; several on the same data compose.", show_default=False),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="A folder of runs: one bill for showing all, the best, or one fixed in advance.")
    ] = None,
    curve: Annotated[Path | None, typer.Option(help="Draw epsilon against steps here (.svg, .png).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The certified epsilon of a plan or of ledgers, beside the one that the method's paper claims."""
    if folder is not None:
        _account_folder(flags, folder, [*(["--ledger"] if ledger else []), *(["--curve"] if curve else [])], as_json)
        return
    if ledger:
        _account_ledgers(flags, ledger, curve, as_json)
        return
    _not_both(flags, ("--noise",), ("--epsilon",))
    if curve is not None:
        charts.check_picture(curve)
    method, recipe = recipe_of(flags)
    is_budget = flags.epsilon is not None
    plan = _calibrated(recipe.for_horizon, flags) if is_budget else _bound(recipe, flags, _horizon(flags))
    points = None if curve is None else _saved(plan, curve)
    _show_plan(method.name, plan, {"noise": plan.noise} if is_budget else {}, as_json)
    if points is not None and not as_json:
        from discreet.report import terminal

        terminal.show(terminal.curve(points), f"written to {curve}")


def calibrate(
    flags: PlanFlags,
    solve: Annotated[Unknown, typer.Option(help="What to choose; steps and batch need --noise.")] = "noise",
    calibrate_to_claim: shared.ToClaimFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """The least noise, the most steps or the largest batch whose certificate stays within a budget."""
    method, recipe = recipe_of(flags)
    is_valid = solve == "noise" or not calibrate_to_claim
    remedy = "only noise can be calibrated to a claim: drop one of the two"
    check.require(is_valid, "--calibrate-to-claim for the noise", f"--solve {solve}", remedy)
    solved: dict[str, Any] = {}
    if solve == "noise":
        _not_both(flags, ("--noise",), ("--epsilon",))
        plan = _calibrated(recipe.for_claim if calibrate_to_claim else recipe.for_horizon, flags)
    elif solve == "steps":
        plan = _most_steps(recipe, flags)
        solved = {"steps": plan.horizon.steps}
    else:
        plan = _largest_batch(recipe, flags)
        solved = {"batch": int(plan.horizon.size.batch)}
    _show_plan(method.name, plan, {"noise": plan.noise, **solved}, as_json)


def _not_both(flags: PlanFlags, first: tuple[str, ...], second: tuple[str, ...]) -> None:
    one, other = flags.given(*first), flags.given(*second)
    expected, got = f"{' with '.join(first)} or {' with '.join(second)}", " and ".join([*one, *other])
    check.require(not (one and other), expected, got, "they contradict each other: drop one of them")


def recipe_of(flags: PlanFlags) -> tuple[Method, Recipe]:
    """The method and its recipe, with the stages that the flags exchange."""
    method = recipes.method_called(flags.method)
    recipe: Recipe = method.recipe(**recipes.arguments(method, flags.recipe_flags))
    recipe = recipe.using(schedule=_schedule(flags), sampling=_sampling(flags), relation=flags.relation)
    return method, recipe if flags.per_user is None else recipe.using(unit=CappedRecords(per_user=flags.per_user))


def _horizon(flags: PlanFlags) -> Horizon:
    _not_both(flags, ("--rate",), ("--records", "--batch"))
    _not_both(flags, ("--steps",), ("--epochs",))
    check.require(flags.steps is not None or flags.epochs is not None, "--steps or --epochs", "none", "give either")
    rate, unsized = flags.rate, not flags.given("--rate", "--records", "--batch")
    if unsized and flags.sampling in ("full-batch", "own-loader"):
        rate = 1.0  # neither sampling is billed by its rate
    if rate is not None:
        if flags.steps is not None:
            return Horizon.of_rate(rate=rate, steps=flags.steps)
        check.count("count the passes over the data", epochs=flags.epochs)
        once = Horizon.of_rate(rate=rate, steps=1)
        return dataclasses.replace(once, steps=(flags.epochs or 0) * once.steps_per_epoch)
    if flags.records is None or flags.batch is None:
        got = "".join(flags.given("--records", "--batch")) or "none"
        check.refuse("--rate, or --records with --batch", got, "say what a step samples")
    return Horizon.of(records=flags.records, batch=flags.batch, steps=flags.steps, epochs=flags.epochs)


def _sampling(flags: PlanFlags) -> Sampling | None:
    """The sampling that --sampling and --cap name; None without these flags."""
    name, cap, capped = flags.sampling, flags.cap, flags.sampling == "truncated-poisson"
    is_valid, remedy = not capped or cap is not None, "give the largest batch"
    check.require(is_valid, "--cap with --sampling truncated-poisson", "none", remedy)
    is_valid, remedy = capped or cap is None, "drop it, or choose that sampling"
    check.require(is_valid, "--cap only with --sampling truncated-poisson", f"--cap {cap}", remedy)
    return None if name is None else sampler_of(name, cap)


def _schedule(flags: PlanFlags) -> Schedule | None:
    """The schedule that --schedule and --schedule-per name; None without these flags."""
    text, period = flags.schedule, flags.schedule_per
    if text is None or text.strip() == "constant":
        check.require(period is None, "--schedule-per with a list", f"--schedule {text or 'not given'}", "drop it")
        return None if text is None else Constant()
    factors, own = _factors(text)
    if period is not None and own is not None and period is not own:
        remedy = f"{text} already says what it counts: drop the flag"
        check.refuse(f"--schedule-per {own.value}", f"--schedule-per {period.value}", remedy)
    return Table(factors, period or own or Period.STEP)


def _factors(text: str) -> tuple[tuple[float, ...], Period | None]:
    try:
        return tuple(float(part) for part in text.split(",")), None
    except ValueError:
        pass
    remedy = 'say constant, 1,0.9,0.8 or a file with [1, 0.9] or {"factors": [1, 0.9], "per": "epoch"}'
    if not Path(text).is_file():
        check.refuse("--schedule to be constant, a list of numbers or a JSON file", repr(text), remedy)
    try:
        body = json.loads(Path(text).read_text(encoding="utf-8"))
        table = body if isinstance(body, dict) else {"factors": body}
        period = Period(table["per"]) if "per" in table else None
        if not set(table) <= {"factors", "per"} or not all(type(item) in (int, float) for item in table["factors"]):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        check.refuse(f"a list of numbers in {text}", "something else", remedy)
    return tuple(float(item) for item in table["factors"]), period


def _bound(recipe: Recipe, flags: PlanFlags, horizon: Horizon) -> Plan:
    noise, delta = required_noise(flags.noise), required_delta(flags.delta)
    return recipe.bind(noise=noise, horizon=horizon, delta=delta, accept_large_delta=flags.accept_delta)


def _calibrated(calibrate: Callable[..., Plan], flags: PlanFlags) -> Plan:
    return calibrate(**flags.budget(), horizon=_horizon(flags), accept_large_delta=flags.accept_delta)


def _most_steps(recipe: Recipe, flags: PlanFlags) -> Plan:
    given, remedy = flags.given("--steps", "--epochs"), "drop it: the number of steps is the result"
    check.require(not given, "neither --steps nor --epochs with --solve steps", " and ".join(given), remedy)
    once = _horizon(dataclasses.replace(flags, steps=1))

    def plan(steps: int) -> Plan:
        return _bound(recipe, flags, dataclasses.replace(once, steps=steps))

    steps = calibrate_steps(lambda steps: plan(steps).charge(), relation=recipe.relation, **flags.budget())
    check.require(steps > 0, "a budget that pays for one step", f"epsilon={flags.epsilon}", "raise noise or budget")
    return plan(steps)


def _largest_batch(recipe: Recipe, flags: PlanFlags) -> Plan:
    given, remedy = flags.given("--batch", "--rate"), "drop it: the batch is the result; give --records"
    check.require(not given, "neither --batch nor --rate with --solve batch", " and ".join(given), remedy)
    records = flags.records
    if records is None:
        check.refuse("--records with --solve batch", "none", "give the public number of records")
    check.count("records is a public number", records=records)

    def plan(batch: int) -> Plan:
        return _bound(recipe, flags, _horizon(dataclasses.replace(flags, batch=float(batch))))

    budget = flags.budget()
    return plan(calibrate_batch(lambda size: plan(size).charge(), largest=records, relation=recipe.relation, **budget))


def _account_ledgers(flags: PlanFlags, paths: list[Path], curve: Path | None, as_json: bool) -> None:
    given = [name for name in flags.given() if name not in ("--delta", "--relation")]
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
    charge, delta = merge(paths), required_delta(flags.delta)
    _show("ledger", charge, certify(charge, delta=delta, relation=relation), {}, as_json)


def _account_folder(flags: PlanFlags, folder: Path, others: list[str], as_json: bool) -> None:
    given = [name for name in flags.given() if name != "--delta"] + others
    remedy = "the ledgers determine the cost: drop the other flags"
    check.require(not given, "--folder with --delta alone", " and ".join(given), remedy)
    bill = folder_bill(folder, delta=required_delta(flags.delta))
    if as_json:
        emit(bill.to_json())
        return
    from discreet.report import terminal

    terminal.show(terminal.bill_table(str(folder), bill))


def _show_plan(name: str, plan: Plan, solved: Mapping[str, Any], as_json: bool) -> None:
    _show(name, plan.charge(), plan.certificate(), solved, as_json, *plan.warnings)


def _show(
    name: str, charge: Charge, certificate: Certificate, solved: Mapping[str, Any], as_json: bool, *warnings: str
) -> None:
    claimed = None if charge.claimed is None else charge.claimed.to_json(certificate.delta)
    if as_json:
        warned = {"warnings": list(warnings)} if warnings else {}
        emit({"method": name, "certified": certificate.to_json(), "claimed": claimed, **solved, **warned})
        return
    from discreet.report import terminal

    lines = [f"Warning: {warning}" for warning in warnings]
    terminal.show(terminal.account_table(name, certificate, claimed, solved), *lines)


def _saved(plan: Plan, path: Path) -> Sequence[tuple[int, float]]:
    """The curve, once its picture is written."""
    points = epsilon_curve(plan)
    chart = charts.epsilon_chart(f"{plan.method}, delta {plan.delta:g}, {plan.relation}", points)
    charts.save(chart, path, titled=True)
    return points
