"""Fill in the settings of a run that the user left out, and derive its plan."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import TYPE_CHECKING

from discreet.core import check
from discreet.core.own_files import CLASSIFICATION, is_own, is_table, require_classes
from discreet.core.relation import Neighbouring
from discreet.data import Task, load, published_records
from discreet.data.features import extract, needs_public
from discreet.data.features.store import Progress
from discreet.data.models import check_name
from discreet.data.tables import load_table, read_schema
from discreet.methods import METHODS
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.runs.config import CAPPED, RunConfig, usual_sampling
from discreet.runs.presets import Defaults, usual
from discreet.runs.public_records import check_public_records, load_named
from discreet.stages.clipping import Bounder
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon, TruncatedPoisson

if TYPE_CHECKING:
    from discreet.runs.comparison.compare import CompareSettings


def load_task(settings: RunConfig | CompareSettings, progress: Progress | None = None) -> Task:
    """The data of a run, with public features in place of records where the settings name any."""
    own = is_own(settings.data)  # a published dataset's size and content are known
    task = (
        _load_own_table(settings)
        if is_table(settings.data, settings.label)
        else load(
            settings.data,
            data_dir=settings.data_dir,
            download=settings.download,
            classes=settings.classes,
            records=settings.records if own else None,
            public=settings.public_data and own,
            task=settings.task or CLASSIFICATION,
        )
    )
    names, public = features_of(settings), None
    if not names:
        return task
    if needs_public(names):
        public = load_named(public_of(settings), settings, task)
    told = progress if progress is None or task.public else _without_numbers(progress)
    return extract(task, names, public=public, data_dir=settings.data_dir, progress=told)


def _without_numbers(progress: Progress) -> Progress:
    """Progress that does not tell how many records there are, which is private."""
    return lambda name, done, total: progress(name, 0, 0)


def _load_own_table(settings: RunConfig | CompareSettings) -> Task:
    expected, remedy = "no classes with a table", "the schema lists the classes of the label"
    check.require(settings.classes is None, expected, f"classes={settings.classes}", remedy)
    return load_table(
        settings.data,
        label=str(settings.label),
        schema=read_schema(str(settings.schema)),
        task=settings.task or CLASSIFICATION,
        test=settings.test,
        hold_out=settings.hold_out,
        records=settings.records,
        public=settings.public_data,
        unit=settings.unit,
    )


def features_of(settings: RunConfig | CompareSettings) -> tuple[str, ...]:
    """The public features of a run: those that the user names, or the usual ones."""
    return usual(settings).features if settings.features is None else settings.features


def public_of(settings: RunConfig | CompareSettings) -> str | None:
    """The public records that the user names, or those that the usual features take statistics from."""
    named = settings.public_records
    return named or (usual(settings).public_records if needs_public(features_of(settings)) else None)


def complete(config: RunConfig) -> RunConfig:
    """The run with every default filled in except the learning rate, which needs the plan."""
    known = usual(config)
    if config.model is not None:
        check_name(config.model)
    if config.model == "logistic":
        require_classes(config.task, "the model logistic")
    epochs, steps = config.epochs, config.steps
    if epochs is None and steps is None:
        epochs, steps = known.epochs, known.steps
    taken = inspect.signature(METHODS[config.method].recipe).parameters
    parameters = dict(config.parameters)
    unknown = sorted(set(parameters) - set(taken))
    expected = f"parameters of {config.method} ({', '.join(taken) or 'none'})"
    check.require(not unknown, expected, ", ".join(unknown), "see `discreet methods` for what each method takes")
    if "clip" in taken and "clip" not in parameters:
        parameters["clip"] = known.clip
    # A certificate that depends on the optimizer's settings must use those of the run.
    stated = {"learning_rate": config.learning_rate, "weight_decay": config.weight_decay or None}
    for name, value in stated.items():
        if name in taken and name not in parameters and value is not None:
            parameters[name] = value
    seen = METHODS[config.method].recipe(**parameters).analysis.visible
    # What every run had before it could be said stays unsaid: such runs keep their digests.
    features, schedule = features_of(config), config.schedule or (known.schedule if seen else "constant")
    return dataclasses.replace(
        config,
        features=features if features or known.features else None,
        public_records=public_of(config),
        schedule=None if schedule == known.schedule == "constant" else schedule,
        model=known.model if config.model is None else config.model,
        parameters=tuple(sorted(parameters.items())),
        batch=known.batch if config.batch is None and config.sampling != "full-batch" else config.batch,
        epochs=epochs,
        steps=steps,
        sampling=config.sampling or usual_sampling(config.method),
        relation=config.relation or str(config.sampler().relations[0]),
        optimizer=config.optimizer or ("adam" if METHODS[config.method].adam else "sgd"),
        momentum=(known.momentum if seen else 0.0) if config.momentum is None else config.momentum,
        weight_decay=config.weight_decay or (0.0 if seen else parameters.get("weight_decay", 0.0)),
        average=(known.average if seen else 0.0) if config.average is None else config.average,
    )


def settle(config: RunConfig, task: Task | None) -> tuple[RunConfig, Plan]:
    """The run with every setting filled in, and its plan; filling it in again changes nothing.

    The plan needs public numbers only: without a task, the records have not been read.
    """
    config = _with_cap(complete(config), task)
    plan = plan_of(config, task)
    check_public_records(config, plan)
    told = complete(dataclasses.replace(config, learning_rate=learning_rate_of(config, plan)))
    # If the recipe takes the learning rate, the plan must use this one.
    return told, plan if told.parameters == config.parameters else plan_of(told, task)


def _with_cap(config: RunConfig, task: Task | None) -> RunConfig:
    """With fixed rows, Poisson batches get a cap that they hardly ever reach; the plan pays for it."""
    if config.fixed_rows is None or config.sampling != "poisson" or config.batch is None:
        return config
    horizon = Horizon.of(records=records_of(config, task), batch=config.batch, steps=1)
    cap = TruncatedPoisson.seldom_cut(horizon, multiple_of=config.fixed_rows).cap
    return dataclasses.replace(config, sampling=CAPPED, cap=cap)


def records_of(config: RunConfig, task: Task | None) -> int:
    published = published_records(config.data) if task is None else task.records
    records = config.records if config.records is not None else published
    if records is None:
        remedy = "give records (--records), a public number near the size of the data"
        check.refuse("a public number of records", "a file whose size is private", remedy)
    return records


def plan_of(config: RunConfig, task: Task | None) -> Plan:
    """The plan of a completed config: the least noise for its budget, or the noise it names."""
    recipe = METHODS[config.method].recipe(**dict(config.parameters))
    recipe = recipe.using(sampling=config.sampler(), relation=Neighbouring(config.relation))
    recipe = recipe.using(unit=config.protected())
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
    return usual_learning_rate(usual(config), plan.bounder, adam=config.optimizer == "adam")


def usual_learning_rate(known: Defaults, bounder: Bounder, *, adam: bool) -> float:
    """The default of a run; with SGD it falls as the bound on a record grows, so that all methods move alike."""
    if adam:
        return known.adam_rate
    queries = bounder.vectors(1.0)
    if len(queries) == 1:
        return known.reach / queries[0].sensitivity
    # Sums that are added up: what counts is the noise that reaches the model in the long run.
    return known.reach / math.hypot(*(query.share * query.sensitivity for query in queries))


def every_of(config: RunConfig, plan: Plan) -> tuple[int, int]:
    """Steps between evaluations and between checkpoints: about twenty of each in a run."""
    usual = math.ceil(plan.horizon.steps / 20)
    return config.eval_every or usual, config.checkpoint_every or config.eval_every or usual


def check_device(name: str) -> None:
    """Refuse a device that torch does not know or that this machine does not have."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        check.refuse(f"a device of this machine as device={name!r}", reason, "leave the device out to use the CPU")


def check_keeps_best(config: RunConfig, plan: Plan, task: Task) -> None:
    """Refuse to choose a checkpoint where that would cost privacy that is not paid for."""
    if config.keep_best:
        remedy = "drop keep_best: the certificate covers the final parameters only"
        check.require(plan.analysis.visible, "a method whose iterates may all be seen", config.method, remedy)
        remedy = "choose by public test records, or pay for the choice with `discreet tune`"
        check.require(len(task.test) > 0, "public test records to choose a checkpoint by", "none", remedy)
