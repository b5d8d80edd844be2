"""Default hyper-parameters for each dataset, chosen on public benchmarks, so they cost no privacy."""

from __future__ import annotations

import dataclasses
import inspect
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.data import Task, load, published_records
from discreet.methods import METHODS
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.runs.config import RunConfig, usual_sampling
from discreet.runs.public_records import check_public_records
from discreet.stages.clipping import Bounder
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon

if TYPE_CHECKING:
    from discreet.runs.comparison.compare import CompareSettings


@final
@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Settings that are used where the user gives none.

    reach  learning rate times the bound on a record's gradient. SGD's learning rate is reach / bound, so that
           methods with different bounds take steps of the same size
    """

    model: str
    batch: int
    epochs: int | None = None
    steps: int | None = None
    clip: float = 1.0
    reach: float = 1.0
    momentum: float = 0.0
    adam_rate: float = 0.002
    average: float = 0.9


_ANY: Final = Defaults(model="mlp", batch=256, epochs=20)
_GREY: Final = Defaults(model="cnn-small", batch=2048, epochs=30, clip=0.1, reach=0.4, momentum=0.9, average=0.98)

DEFAULTS: Final = MappingProxyType(
    {
        "digits": Defaults(model="cnn-digits", batch=256, steps=300, clip=0.2, reach=0.8, adam_rate=0.01, average=0.97),
        "mnist": _GREY,
        "fashion-mnist": _GREY,
        "cifar10": Defaults(model="cnn-550k", batch=1024, epochs=30, clip=0.1, reach=0.2, momentum=0.9, average=0.98),
        "adult": Defaults(model="logistic", batch=1024, epochs=10, clip=1.0, reach=1.0, average=0.95),
    }
)


def load_task(settings: RunConfig | CompareSettings) -> Task:
    own = settings.data.endswith(".npz")  # a published dataset's size and content are known
    return load(
        settings.data,
        data_dir=settings.data_dir,
        download=settings.download,
        classes=settings.classes,
        records=settings.records if own else None,
        public=settings.public_data and own,
    )


def defaults_for(data: str) -> Defaults:
    return DEFAULTS.get(data, _ANY)


def complete(config: RunConfig) -> RunConfig:
    """The run with every default filled in except the learning rate, which needs the plan."""
    usual = defaults_for(config.data)
    epochs, steps = config.epochs, config.steps
    if epochs is None and steps is None:
        epochs, steps = usual.epochs, usual.steps
    taken = inspect.signature(METHODS[config.method].recipe).parameters
    parameters = dict(config.parameters)
    unknown = sorted(set(parameters) - set(taken))
    expected = f"parameters of {config.method} ({', '.join(taken) or 'none'})"
    check.require(not unknown, expected, ", ".join(unknown), "see `discreet methods` for what each method takes")
    if "clip" in taken and "clip" not in parameters:
        parameters["clip"] = usual.clip
    # A certificate that depends on the optimizer's settings must use those of the run.
    stated = {"learning_rate": config.learning_rate, "weight_decay": config.weight_decay or None}
    for name, value in stated.items():
        if name in taken and name not in parameters and value is not None:
            parameters[name] = value
    seen = METHODS[config.method].recipe(**parameters).analysis.visible
    return dataclasses.replace(
        config,
        model=usual.model if config.model is None else config.model,
        parameters=tuple(sorted(parameters.items())),
        batch=usual.batch if config.batch is None and config.sampling != "full-batch" else config.batch,
        epochs=epochs,
        steps=steps,
        sampling=config.sampling or usual_sampling(config.method),
        relation=config.relation or str(config.sampler().relations[0]),
        optimizer=config.optimizer or ("adam" if METHODS[config.method].adam else "sgd"),
        momentum=(usual.momentum if seen else 0.0) if config.momentum is None else config.momentum,
        weight_decay=config.weight_decay or (0.0 if seen else parameters.get("weight_decay", 0.0)),
        average=(usual.average if seen else 0.0) if config.average is None else config.average,
    )


def settle(config: RunConfig, task: Task | None) -> tuple[RunConfig, Plan]:
    """The run with every setting filled in, and its plan; filling it in again changes nothing.

    The plan needs public numbers only: without a task, the records have not been read.
    """
    config = complete(config)
    plan = plan_of(config, task)
    check_public_records(config, plan)
    told = complete(dataclasses.replace(config, learning_rate=learning_rate_of(config, plan)))
    # If the recipe takes the learning rate, the plan must use this one.
    return told, plan if told.parameters == config.parameters else plan_of(told, task)


def records_of(config: RunConfig, task: Task | None) -> int:
    published = published_records(config.data) if task is None else task.records
    records = config.records if config.records is not None else published
    if records is None:
        remedy = "give records (--records), a public number near the size of the data"
        check.refuse("a public number of records", "an npz file whose size is private", remedy)
    return records


def plan_of(config: RunConfig, task: Task | None) -> Plan:
    """The plan of a completed config: the least noise for its budget, or the noise it names."""
    recipe = METHODS[config.method].recipe(**dict(config.parameters))
    recipe = recipe.using(sampling=config.sampler(), relation=Neighbouring(config.relation))
    records = records_of(config, task)
    batch = records if config.batch is None else config.batch  # None stays only with full batches
    horizon = Horizon.of(records=records, batch=batch, epochs=config.epochs, steps=config.steps)
    delta, accepted = config.delta, config.accept_large_delta
    if config.noise is not None:
        return recipe.bind(noise=config.noise, horizon=horizon, delta=delta, accept_large_delta=accepted)
    assert config.epsilon is not None
    calibrated = recipe.for_claim if config.calibrate_to_claim else recipe.for_horizon
    return calibrated(epsilon=config.epsilon, delta=delta, horizon=horizon, accept_large_delta=accepted)


def learning_rate_of(config: RunConfig, plan: Plan) -> float:
    """The user's learning rate, or the one that the certificate fixes, or the default for the data."""
    if config.learning_rate is not None:
        return config.learning_rate
    if isinstance(plan.analysis, LastIterate):
        return plan.analysis.learning_rate
    return usual_learning_rate(config.data, plan.bounder, adam=config.optimizer == "adam")


def usual_learning_rate(data: str, bounder: Bounder, *, adam: bool) -> float:
    """The default for a dataset; with SGD it falls as the bound on a record grows, so that all methods move alike."""
    usual = defaults_for(data)
    if adam:
        return usual.adam_rate
    queries = bounder.vectors(1.0)
    if len(queries) == 1:
        return usual.reach / queries[0].sensitivity
    # Sums that are added up: what counts is the noise that reaches the model in the long run.
    return usual.reach / math.hypot(*(query.share * query.sensitivity for query in queries))


def every_of(config: RunConfig, plan: Plan) -> tuple[int, int]:
    """Steps between evaluations and between checkpoints: about twenty of each in a run."""
    usual = math.ceil(plan.horizon.steps / 20)
    return config.eval_every or usual, config.checkpoint_every or config.eval_every or usual
