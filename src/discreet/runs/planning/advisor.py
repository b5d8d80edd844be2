"""Settings for a budget and a number of records: rules from measurements on public data.

`python -m research.advice` repeats the measurements and writes results/advice.json. `python -m research.records` finds
what the best settings reach; a test compares that with `LOSSES`.
"""

import math
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, final

from discreet import methods
from discreet.core import check
from discreet.core.plain import plain
from discreet.runs.planning.own_loader import loader_prices
from discreet.runs.planning.step_cost import StepCost
from discreet.runs.planning.user_level import Way, ways
from discreet.runs.presets import (
    HEAD_SLOWER,
    PRESETS,
    TABLE_CLIP,
    TABLE_REACH,
    TABLE_SLOWER,
    Preset,
    usual_reach,
    usual_size,
)
from discreet.stages.delta import check_delta
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """What works for one kind of records.

    first   what to do before any number is chosen
    clip    the clipping norm; `reach` is learning rate times clip, for SGD with momentum 0.9
    flags   what the command line needs besides the numbers
    preset  a preset for any records of this kind, whose clip and reach depend on the budget
    slower  what bounds the reach where noise is large, as `usual_reach` takes it; 0: no such bound
    """

    about: str
    first: str
    clip: float
    reach: float
    flags: str
    share: float = 1 / 8
    steps: int = 100
    more_steps: int = 240
    average: float = 0.0
    schedule: str = "linear"
    preset: str = ""
    slower: float = 0.0

    def numbers(self, epsilon: float, records: int) -> tuple[float, float]:
        """Clip and reach for a budget.

        >>> RULES["image"].numbers(3.0, 60_000), RULES["image"].numbers(3.0, 1700)
        ((0.1, 35.0), (0.1, 3.0))
        """
        known = next((one.at(epsilon) for one in PRESETS if one.name == self.preset and not one.data), None)
        clip, reach = (self.clip, self.reach) if known is None else (known.clip, known.reach)
        return clip, usual_reach(reach, epsilon, records, self.slower)


RULES: Final = MappingProxyType(
    {
        "table": Rule(
            about="a linear model on one-hot categories and public bins",
            first="write a public schema: bounds and categories, never learned from the records",
            clip=TABLE_CLIP,
            reach=TABLE_REACH,
            slower=TABLE_SLOWER,
            flags="--data YOUR.csv --label COLUMN --schema schema.json --hold-out 0.2",
        ),
        "text": Rule(
            about="a linear head on a public sentence encoder",
            first='describe the text as {"text": "minilm"} in the schema, or {"text": "words"} without the encoder',
            clip=0.3,
            reach=12.0,
            flags="--data YOUR.csv --label COLUMN --schema schema.json --hold-out 0.2",
        ),
        "image": Rule(
            about="a linear head on scattering coefficients, which need no training",
            first="train on public features instead of pixels; take statistics from public images like yours",
            clip=0.1,
            reach=40.0,
            flags="--data YOUR.npz --classes 10 --model head --features scattering --public-records mnist",
            preset="image",
            slower=HEAD_SLOWER,
        ),
        "photo": Rule(
            about="a linear head on a network that was trained on public photographs",
            first="train on the features of a public network instead of pixels",
            clip=0.1,
            reach=40.0,
            flags="--data YOUR.npz --classes 10 --model head --features efficientnet-lite2",
            slower=HEAD_SLOWER,
        ),
        "network": Rule(
            about="your own network, trained from its present weights",
            first="start from public weights where you can. A table, text, image or photo? Name it with --data",
            clip=0.1,
            reach=0.4,
            flags="--data YOUR.npz --classes 10 --model mlp",
            share=1 / 30,
            steps=900,
            more_steps=900,
            average=0.98,
            schedule="constant",
        ),
    }
)
"""The kinds of records, with the settings that did best on public data of this kind."""

KINDS: Final = MappingProxyType(
    {"adult": "table", "reviews": "text", "digits": "image", "mnist": "image", "fashion-mnist": "image"}
    | {"cifar10": "photo"}
)
"""The kind of each published dataset."""

Loss = tuple[str, str, int, float, float]  # kind, data, records, epsilon, points below training without privacy

LOSSES: Final[tuple[Loss, ...]] = (
    ("image", "digits", 1437, 1.0, 9.7),
    ("image", "digits", 1437, 2.0, 5.8),
    ("image", "digits", 1437, 3.0, 3.5),
    ("image", "digits", 1437, 8.0, 2.8),
    ("image", "fashion-mnist", 60000, 1.0, 3.7),
    ("image", "fashion-mnist", 60000, 3.0, 2.4),
    ("image", "mnist", 60000, 3.0, 0.8),
    ("photo", "cifar10", 50000, 1.0, 2.5),
    ("photo", "cifar10", 50000, 2.0, 1.7),
    ("photo", "cifar10", 50000, 3.0, 1.5),
    ("photo", "cifar10", 50000, 8.0, 1.2),
    ("table", "adult", 32561, 1.0, 0.4),
    ("table", "adult", 32561, 3.0, 0.3),
    ("table", "adult", 32561, 8.0, 0.1),
    ("text", "reviews", 18113, 3.0, 1.1),
)
"""What the best settings lost, from results/records.json."""


@final
@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The question: public numbers, and what is to be trained.

    data        a kind of `RULES`, or a published dataset
    parameters  of your own network; None for a linear model on public features
    minutes     the time that training may take; needs `cost`
    users       if users are to be protected: their public number, and how many records of one are used at most
    """

    records: int
    epsilon: float
    delta: float | None = None
    data: str = "network"
    parameters: int | None = None
    minutes: float | None = None
    cost: StepCost | None = None
    users: int | None = None
    per_user: int | None = None

    def __post_init__(self) -> None:
        check.count("the public number of records, e.g. 50000", records=self.records)
        both = (self.users is None) == (self.per_user is None)
        remedy = "give --users and --per-user, the largest number of records of one user that are used"
        check.require(both, "users and per_user together", "one of them", remedy)
        check.positive("the budget of the whole run, e.g. 2", epsilon=self.epsilon)
        known = (*RULES, *KINDS)
        close = get_close_matches(self.data, known, n=1)
        remedy = f"the nearest is {close[0]}" if close else "name the kind"
        check.require(self.data in known, f"data to be one of {', '.join(known)}", repr(self.data), remedy)
        if self.delta is not None:
            check_delta(self.delta, self.records, accepted=False)
        if self.parameters is not None:
            check.count("the number of trainable parameters", parameters=self.parameters)
        if self.minutes is not None:
            check.positive("the time that training may take", minutes=self.minutes)

    @property
    def kind(self) -> str:
        if self.cost is not None or self.parameters is not None:
            return "network"
        return KINDS.get(self.data, self.data)


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """One setting with its reason."""

    name: str
    value: str
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class Advice:
    """Settings, the reason for each, and the command and the line of Python that use them."""

    method: str
    delta: float
    batch: int
    steps: int
    epochs: int
    clip: float
    learning_rate: float
    momentum: float
    average: float
    schedule: str
    noise: float
    lines: tuple[Line, ...]
    command: str
    python: str

    def to_json(self) -> dict[str, Any]:
        return dict(plain(self))


def usual_delta(records: int) -> float:
    """The largest power of ten that is at most 1/(10 records).

    >>> usual_delta(50_000), usual_delta(10_000)
    (1e-06, 1e-05)
    """
    return float(f"1e-{math.ceil(math.log10(10 * records) - 1e-9)}")


def size_of(records: int, rule: Rule) -> tuple[int, int]:
    """Batch and steps of a rule for this many records."""
    return usual_size(records, share=rule.share, steps=rule.steps, more_steps=rule.more_steps)


def advise(of: Wanted) -> Advice:
    """Settings for a budget. Nothing is read and nothing is trained.

    Guarantee: the noise multiplier is certified to stay within the budget; the rest is experience on public data.
    """
    rule, preset = RULES[of.kind], _preset(of)
    delta = usual_delta(of.records) if of.delta is None else of.delta
    batch, steps = size_of(of.records, rule)
    clip, reach = rule.numbers(of.epsilon, of.records)
    if preset is not None:
        known = preset.at(of.epsilon)
        clip, reach, batch = known.clip, known.reach, min(known.batch, of.records)
        steps = steps if known.steps is None else known.steps
    steps, late = _in_time(of, steps, batch)
    recipe, protected = methods.dp_sgd(clip=clip), None
    if of.users is not None and of.per_user is not None:
        numbers = {"users": of.users, "records": of.records, "per_user": of.per_user, "batch": batch, "steps": steps}
        protected = ways(recipe, epsilon=of.epsilon, delta=delta, **numbers)
        plan = protected[0].plan
        batch = int(plan.horizon.size.batch)
    else:
        plan = recipe.for_budget(epsilon=of.epsilon, delta=delta, records=of.records, batch=batch, steps=steps)
    found: dict[str, Any] = {
        "method": "dp-sgd",
        "delta": delta,
        "batch": batch,
        "steps": steps,
        "epochs": math.ceil(steps * plan.horizon.rate),
        "clip": clip,
        "learning_rate": float(f"{reach / clip:.3g}"),
        "momentum": 0.9,
        "average": rule.average,
        "schedule": rule.schedule,
        "noise": plan.noise,
    }
    lines = _lines(of, rule, found, late, reach)
    command = _command(of, rule, found, preset is not None and protected is None)
    python = _python(plan, of.epsilon)
    if protected is not None:
        better, other = protected
        said = f"noise on the mean gradient {better.effective:.3g} clips, with the other way {other.effective:.3g}"
        lines = (
            Line(name="unit", value=f"{better.words}, at most {of.per_user} records of a user", reason=said),
            *lines,
        )
        python = _python(plan, of.epsilon, f".using(unit=discreet.{type(plan.unit).__name__}(per_user={of.per_user}))")
        command = _user_command(of, command, better) if ".csv" in command else python
    return Advice(**found, lines=lines, command=command, python=python)


def _preset(of: Wanted) -> Preset | None:
    """The best settings for a published dataset, unless a network of the user is asked for."""
    known = (preset for preset in PRESETS if preset.data == of.data and preset.name == "best")
    return next(known, None) if of.kind != "network" else None


def _in_time(of: Wanted, steps: int, batch: int) -> tuple[int, str]:
    """The steps that the time allows, and what to say about it."""
    if of.minutes is None:
        return steps, ""
    if of.cost is None:
        check.refuse("--model with --minutes", "none", "name a model whose step can be measured, or drop --minutes")
    each = of.cost.seconds_per_record * batch
    fitting = max(1, int(60 * of.minutes / each))
    if fitting >= steps:
        return steps, f"about {steps * each / 60:.0f} of {of.minutes:g} minutes on this machine"
    return fitting, f"{steps} would be better and take about {steps * each / 60:.0f} minutes on this machine"


def _lines(of: Wanted, rule: Rule, found: dict[str, Any], late: str, reach: float) -> tuple[Line, ...]:
    steps = f"{found['steps']}, {found['epochs']} epochs"
    rate, decay = f"{found['learning_rate']:g}, SGD with momentum 0.9", found["schedule"]
    falling = "falls to zero" if decay == "linear" else "stays"
    averaged = f"decay {found['average']:g}" if found["average"] else "none"
    return (
        Line(name="model", value=rule.about, reason=rule.first),
        Line(name="method", value="dp-sgd", reason="no certified method beat it by a point in our comparisons"),
        Line(name="delta", value=f"{found['delta']:g}", reason="at most 1/(10 records)"),
        Line(name="batch", value=f"{found['batch']:,}", reason="large batches need the least noise per record"),
        Line(name="steps", value=steps, reason=late or "more steps need more noise; these did best on public data"),
        Line(name="clip", value=f"{found['clip']:g}", reason="small clips did best; the learning rate makes up for it"),
        Line(name="learning rate", value=rate, reason=f"{reach:.3g} / clip, and {falling} over the run"),
        Line(
            name="average",
            value=averaged,
            reason="free: post-processing" if found["average"] else "a learning rate that falls does the same",
        ),
        Line(
            name="noise", value=f"{found['noise']:.4g}", reason="calibrated: the certified epsilon stays within budget"
        ),
        _expected(of),
        _own_loader(of, found),
    )


def _expected(of: Wanted) -> Line:
    """What accuracy to expect, from the nearest measurements of the same kind, or of the dataset itself."""
    near = [loss for loss in LOSSES if loss[0] == of.kind]
    near = [loss for loss in near if loss[1] == of.data] or near
    if not near:
        return Line(name="expect", value="not measured", reason="compare on public data like yours: discreet compare")
    size = math.log(of.epsilon * of.records)

    def distance(loss: Loss) -> float:
        return abs(math.log(loss[2] * loss[3]) - size)

    nearest = [loss for loss in near if distance(loss) <= min(map(distance, near)) + 1e-9]
    points = sorted({f"{loss[4]:.1f}" for loss in nearest}, key=float)
    places = (f"{data}: {records:,} records, epsilon {epsilon:g}" for _, data, records, epsilon, _ in nearest)
    ahead = size - math.log(nearest[0][2] * nearest[0][3])  # more records or budget lose less
    bound = "about" if abs(ahead) <= math.log(2.5) else ("at most" if ahead > 0 else "more than")
    value = f"{bound} {' to '.join(points)} points below training without privacy"
    return Line(name="expect", value=value, reason=f"measured on {' and '.join(places)}")


def _own_loader(of: Wanted, found: dict[str, Any]) -> Line:
    """What the user's own loader would cost instead of Poisson sampling."""
    horizon = Horizon.of(records=of.records, batch=found["batch"], steps=found["steps"])
    short = {
        "fixed-order": "in a fixed order",
        "reshuffled": "with shuffle=True",
        "own-loader": "in any order",
        "one-pass": "as a stream without repeated records",
    }
    prices = {row.sampling: row.times for row in loader_prices(horizon, epsilon=of.epsilon, delta=found["delta"])}
    shown = [f"{times:.2g} {words}" for name, words in short.items() if (times := prices[name]) is not None]
    value = f"{', '.join(shown)} times the noise of Poisson sampling on the parameters"
    return Line(
        name="own loader", value=value, reason="draw from the dataset if you can; else correlated noise: dp-ftrl"
    )


def _command(of: Wanted, rule: Rule, found: dict[str, Any], has_preset: bool) -> str:
    budget = f"--epsilon {of.epsilon:g} --delta {found['delta']:g}"
    if has_preset:
        return f"discreet train --data {of.data} --preset best {budget} --out runs/advised"
    flags = rule.flags if of.cost is None else f"--data YOUR.npz --classes 10 --model {of.cost.model}"
    numbers = f"--records {of.records} --batch {found['batch']} --steps {found['steps']} --clip {found['clip']:g}"
    training = f"--learning-rate {found['learning_rate']:g} --momentum 0.9 --schedule {found['schedule']}"
    return f"discreet train {flags} {numbers} {training} --average {found['average']:g} {budget} --out runs/advised"


def _user_command(of: Wanted, command: str, way: Way) -> str:
    """The command for a table, which has a column of owners."""
    drawn = f"--unit COLUMN --per-user {of.per_user} --sample {way.words.removeprefix('sample ')}"
    return command.replace(f"--records {of.records}", f"--records {way.plan.horizon.size.records} {drawn}")


def _python(plan: Plan, epsilon: float, using: str = "") -> str:
    """The line of Python that builds the plan."""
    clip, size = plan.queries(1.0)[0].sensitivity, plan.horizon.size
    batch = int(size.batch) if size.batch == int(size.batch) else size.batch
    numbers = f"delta={plan.delta:g}, records={size.records}, batch={batch}, steps={plan.horizon.steps}"
    return f"plan = methods.dp_sgd(clip={clip:g}){using}.for_budget(epsilon={epsilon:g}, {numbers})"
