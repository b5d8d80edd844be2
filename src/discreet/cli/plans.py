"""The flags that describe a plan, and the plan that they describe."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, final

from discreet.cli import recipes
from discreet.cli.flags import (
    AcceptDeltaFlag,
    BatchFlag,
    CapFlag,
    DeltaFlag,
    EpochsFlag,
    EpsilonFlag,
    MethodFlag,
    NoiseFlag,
    RelationFlag,
    SamplingFlag,
    SamplingName,
    StepsFlag,
    flag,
)
from discreet.core import check
from discreet.methods import Method
from discreet.runs.config import SAMPLERS
from discreet.stages import sampling
from discreet.stages.recipe import Recipe
from discreet.stages.sampling import Horizon, Sampling
from discreet.stages.schedule import Constant, Period, Schedule, Table

_WITHOUT_RATE = (SamplingName.FULL_BATCH, SamplingName.OWN_LOADER)


@final
@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """Everything that names a plan for accounting."""

    method: MethodFlag = None
    noise: NoiseFlag = None
    epsilon: EpsilonFlag = None
    delta: DeltaFlag = None
    accept_delta: AcceptDeltaFlag = False
    rate: Annotated[float | None, flag("Probability that a record joins a step.", "Run")] = None
    records: Annotated[int | None, flag("Public number of records.", "Run")] = None
    batch: BatchFlag = None
    steps: StepsFlag = None
    epochs: EpochsFlag = None
    schedule: Annotated[
        str | None, flag("Noise factors: constant, a list such as 1,0.9,0.8, or a JSON file with such a list.", "Run")
    ] = None
    schedule_per: Annotated[Period | None, flag("What the list counts (default: step).", "Run")] = None
    relation: RelationFlag = None
    sampling: SamplingFlag = None
    cap: CapFlag = None
    recipe_flags: recipes.Given = field(default_factory=dict)

    def given(self) -> list[str]:
        """The flags that were given."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "recipe_flags"]
        own = [name for name in names if not (getattr(self, name) is None or getattr(self, name) is False)]
        own += [name for name, value in self.recipe_flags.items() if value is not None]
        return ["--" + name.replace("_", "-") for name in own]


def not_both(flags: PlanFlags, first: tuple[str, ...], second: tuple[str, ...]) -> None:
    """Refuse flags that say the same thing twice."""
    given = flags.given()
    one, other = [f for f in first if f in given], [f for f in second if f in given]
    expected, got = f"{' with '.join(first)} or {' with '.join(second)}", " and ".join([*one, *other])
    check.require(not (one and other), expected, got, "they contradict each other: drop one of them")


def recipe_of(flags: PlanFlags) -> tuple[Method, Recipe]:
    """The method and its recipe, with the stages that the flags exchange."""
    method = recipes.method_called(flags.method)
    recipe: Recipe = method.recipe(**recipes.arguments(method, flags.recipe_flags))
    has_schedule = flags.schedule is not None or flags.schedule_per is not None
    has_sampling = flags.sampling is not None or flags.cap is not None
    return method, recipe.using(
        schedule=schedule_from(flags.schedule, flags.schedule_per) if has_schedule else None,
        sampling=sampling_from(flags.sampling, flags.cap) if has_sampling else None,
        relation=flags.relation,
    )


def horizon_of(flags: PlanFlags) -> Horizon:
    """The public numbers of the run."""
    not_both(flags, ("--rate",), ("--records", "--batch"))
    not_both(flags, ("--steps",), ("--epochs",))
    check.require(flags.steps is not None or flags.epochs is not None, "--steps or --epochs", "none", "give either")
    rate = flags.rate
    if rate is None and flags.records is None and flags.batch is None and flags.sampling in _WITHOUT_RATE:
        rate = 1.0  # neither sampling is billed by its rate
    if rate is not None:
        if flags.steps is not None:
            return Horizon.of_rate(rate=rate, steps=flags.steps)
        check.count("count the passes over the data", epochs=flags.epochs)
        once = Horizon.of_rate(rate=rate, steps=1)
        return dataclasses.replace(once, steps=(flags.epochs or 0) * once.steps_per_epoch)
    if flags.records is None or flags.batch is None:
        given = [f for f in flags.given() if f in ("--records", "--batch")]
        check.refuse("--rate, or --records with --batch", "".join(given) or "none", "say what a step samples")
    return Horizon.of(records=flags.records, batch=flags.batch, steps=flags.steps, epochs=flags.epochs)


def sampling_from(name: SamplingName | None, cap: int | None) -> Sampling:
    """The sampling that --sampling and --cap name."""
    truncated = name is SamplingName.TRUNCATED_POISSON
    if truncated and cap is not None:
        return sampling.TruncatedPoisson(cap)
    check.require(not truncated, "--cap with --sampling truncated-poisson", "none", "give the largest batch")
    if cap is not None or name is None:
        check.refuse("--cap only with --sampling truncated-poisson", f"--cap {cap}", "drop it, or choose that sampling")
    return sampling.OwnLoader() if name is SamplingName.OWN_LOADER else SAMPLERS[name.value]()


def schedule_from(text: str | None, period: Period | None) -> Schedule:
    """The schedule that --schedule and --schedule-per name."""
    if text is None or text.strip() == "constant":
        check.require(period is None, "--schedule-per with a list", f"--schedule {text or 'not given'}", "drop it")
        return Constant()
    factors, own = _factors(text)
    check.require(
        period is None or own is None or period is own,
        f"--schedule-per {own.value if own else ''}",
        f"--schedule-per {period.value if period else ''}",
        f"{text} already says what it counts: drop the flag",
    )
    return Table(factors, period or own or Period.STEP)


def _factors(text: str) -> tuple[tuple[float, ...], Period | None]:
    parts = [part.strip() for part in text.split(",")]
    try:
        return tuple(float(part) for part in parts), None
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
