"""Ways to train a private model, each through `discreet.Private`: the ledger certifies the epsilon of every one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final, final

import torch
import torch.nn.functional as F
from torch import nn

import discreet
from discreet import methods
from discreet.core.streams import Streams
from discreet.data import Task, build
from discreet.runs.config import learning_rate_factor
from discreet.runs.presets import Defaults
from research.heads.layers import Moments, RandomFeatures, Scaled, ScaleThenPrivatise, shifted, standardised

DELTA: Final = 1e-5

Setting = Mapping[str, float]


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """Records, a budget, and the settings from which every way starts."""

    task: Task
    epsilon: float
    known: Defaults


@final
@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model, and the epsilon that its ledger certifies."""

    model: nn.Module
    epsilon: float


@final
@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train. Each tries as many settings as the others: those of `grid`."""

    name: str
    about: str
    grid: Callable[[Defaults], tuple[Setting, ...]]
    train: Callable[[Problem, Setting, Streams], Trained]


def _model(problem: Problem, streams: Streams, name: str | None = None) -> nn.Module:
    seed = int(streams.init.uniform64(1)[0] >> 1)
    return build(name or problem.known.model, shape=problem.task.shape, classes=problem.task.classes, seed=seed)


def _plan(problem: Problem, clip: float, *, steps: int | None = None, full: bool = False) -> discreet.Plan:
    """A plan of DP-SGD for the budget of the problem; `full`: every step takes all records."""
    records, known = len(problem.task.train), problem.known
    recipe = methods.dp_sgd(clip=clip)
    return (recipe.using(sampling=discreet.FullBatch()) if full else recipe).for_budget(
        epsilon=problem.epsilon,
        delta=DELTA,
        records=records,
        batch=records if full else known.batch,
        steps=steps or known.steps,
    )


def _fit(
    problem: Problem,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: discreet.Plan,
    streams: Streams,
    views: int = 1,
) -> Trained:
    """Train with the schedule and the average of the problem."""
    known, rates = problem.known, [group["lr"] for group in optimizer.param_groups]
    augment = None if views == 1 else lambda batch: (shifted(batch[0]), batch[1])
    private = discreet.Private(
        model,
        optimizer,
        plan,
        problem.task.train,
        streams=streams,
        average=known.average or None,
        views=views,
        augment=augment,
    )
    with closing(private):
        for x, y in private:
            factor = learning_rate_factor(known.schedule, private.progress.step / plan.horizon.steps)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            private.step(F.cross_entropy(model(x), y, reduction="none"))
        epsilon = private.spent().certified.epsilon
        if private.average is not None:
            with private.averaged():
                weights = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict(weights)
    return Trained(model=model, epsilon=epsilon)


def _with_sgd(problem: Problem, model: nn.Module, setting: Setting, streams: Streams, views: int = 1) -> Trained:
    clip, steps = setting["clip"], int(setting.get("steps", 0)) or None
    plan = _plan(problem, clip, steps=steps, full=steps is not None)
    rate, momentum = setting["reach"] / clip, problem.known.momentum
    return _fit(problem, model, torch.optim.SGD(model.parameters(), rate, momentum), plan, streams, views)


def _sgd(problem: Problem, setting: Setting, streams: Streams) -> Trained:
    return _with_sgd(problem, _model(problem, streams), setting, streams)


def _adamw(problem: Problem, setting: Setting, streams: Streams) -> Trained:
    model = _model(problem, streams)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting["rate"], weight_decay=0.01)
    return _fit(problem, model, optimizer, _plan(problem, setting["clip"]), streams)


def _scaled(problem: Problem, setting: Setting, streams: Streams) -> Trained:
    # The optimizer writes the scale, which comes from releases alone.
    layer = discreet.public(Scaled(math.prod(problem.task.shape), problem.task.classes))
    return _fit(problem, layer, ScaleThenPrivatise(layer, setting["rate"]), _plan(problem, setting["clip"]), streams)


def _least_squares(problem: Problem, setting: Setting, streams: Streams) -> Trained:
    """Release X'X and X'Y once, with all records, and solve the normal equations from the release.

    A record of length 1 contributes (x x', weight x y'), of length sqrt(1 + weight^2): the clip leaves it whole.
    """
    task, weight = problem.task, setting["weight"]
    clip = math.sqrt(1 + weight**2)
    plan, moments = _plan(problem, clip, steps=1, full=True), Moments(math.prod(task.shape), task.classes)
    optimizer = torch.optim.SGD(moments.parameters(), lr=float(len(task.train)))  # the sum, not the mean
    with closing(discreet.Private(moments, optimizer, plan, task.train, streams=streams)) as private:
        for x, y in private:
            second, cross = moments(x)
            answers = (cross * F.one_hot(y, task.classes)).sum(1)
            private.step(-second.sum(1) - weight * answers)
        epsilon = private.spent().certified.epsilon
    ridge = setting["ridge"] * plan.noise * clip * math.sqrt(2 * math.prod(task.shape))
    head = build("head", shape=task.shape, classes=task.classes, seed=0)
    with torch.no_grad():
        (linear,) = (layer for layer in head.modules() if isinstance(layer, nn.Linear))
        linear.weight.copy_(moments.solved(ridge, weight))
    return Trained(model=head, epsilon=epsilon)


def _second_layer(problem: Problem, setting: Setting, streams: Streams) -> Trained:
    single = build("head", shape=problem.task.shape, classes=64, seed=0)
    hidden = nn.Sequential(*list(single)[:-1], nn.Linear(math.prod(problem.task.shape), 64), nn.Tanh())  # type: ignore[arg-type]
    return _with_sgd(problem, nn.Sequential(*hidden, nn.Linear(64, problem.task.classes)), setting, streams)


def _random_features(problem: Problem, setting: Setting, streams: Streams) -> Trained:
    more = RandomFeatures(math.prod(problem.task.shape), 1000)
    head = build("head", shape=(more.width,), classes=problem.task.classes, seed=0)
    return _with_sgd(problem, nn.Sequential(more, head), setting, streams)


def _cnn(standard: bool, views: int) -> Callable[[Problem, Setting, Streams], Trained]:
    def train(problem: Problem, setting: Setting, streams: Streams) -> Trained:
        model = _model(problem, streams)
        return _with_sgd(problem, standardised(model) if standard else model, setting, streams, views)

    return train


def _around(known: Defaults) -> tuple[Setting, ...]:
    pairs = ((1.0, 1.0), (1.0, 0.5), (1.0, 2.0), (3.0, 1.0))
    return tuple({"clip": known.clip * wider, "reach": known.reach * faster} for wider, faster in pairs)


def _reaches(known: Defaults) -> tuple[Setting, ...]:
    return tuple({"clip": known.clip, "reach": known.reach * faster} for faster in (0.5, 1.0, 2.0, 4.0))


def _slower(known: Defaults) -> tuple[Setting, ...]:
    return tuple({"clip": 0.3, "reach": reach} for reach in (0.3, 1.0, 3.0, 10.0))


def _full(known: Defaults) -> tuple[Setting, ...]:
    pairs = (
        (25, 0.25),
        (25, 0.5),
        (50, 0.1),
        (50, 0.25),
    )  # much below the preset: with so little noise, 1.0 oscillates
    return tuple({"clip": known.clip, "reach": known.reach * faster, "steps": steps} for steps, faster in pairs)


def _rates(known: Defaults) -> tuple[Setting, ...]:
    return tuple({"clip": known.clip, "rate": rate} for rate in (0.03, 0.1, 0.3, 1.0))


def _ridges(known: Defaults) -> tuple[Setting, ...]:
    return tuple({"weight": 0.5, "ridge": ridge} for ridge in (0.7, 1.0, 1.5, 2.5))


HEADS: Final = (
    Way(name="SGD", about="the preset: a softmax head, momentum, linear decay", grid=_around, train=_sgd),
    Way(name="full batch", about="the same, every step with all records", grid=_full, train=_sgd),
    Way(name="AdamW", about="AdamW on the noisy gradients", grid=_rates, train=_adamw),
    Way(
        name="scale-then-privatise",
        about="gradients scaled by Adam's second moments before clip and noise (arXiv 2507.01129)",
        grid=_rates,
        train=_scaled,
    ),
    Way(
        name="least squares",
        about="one release of X'X and X'Y, then ridge regression (arXiv 2211.13403)",
        grid=_ridges,
        train=_least_squares,
    ),
    Way(name="second layer", about="64 hidden units", grid=_slower, train=_second_layer),
    Way(
        name="random features",
        about="1000 random ReLU features beside the others",
        grid=_around,
        train=_random_features,
    ),
)

NETWORKS: Final = (
    Way(name="plain", about="the default of the data", grid=_reaches, train=_cnn(standard=False, views=1)),
    Way(
        name="weight standardisation",
        about="each filter with mean 0 and variance 1 (arXiv 2204.13650)",
        grid=_reaches,
        train=_cnn(standard=True, views=1),
    ),
    Way(
        name="four views",
        about="four copies of each record, moved by at most one pixel",
        grid=_reaches,
        train=_cnn(standard=False, views=4),
    ),
    Way(name="both", about="both of these", grid=_reaches, train=_cnn(standard=True, views=4)),
)
