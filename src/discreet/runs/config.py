"""The settings of a run: public values, stored as one JSON object."""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, final

from discreet.core import check
from discreet.core.own_files import TASKS, is_own, is_table
from discreet.core.relation import Neighbouring
from discreet.methods import METHODS
from discreet.stages.participation import CyclicPoisson, FixedBins, FixedOrder, OnePass, Reshuffled
from discreet.stages.sampling import BallsInBins, FixedSize, FullBatch, OwnLoader, Poisson, Sampling, TruncatedPoisson
from discreet.stages.unit import CappedRecords, EachRecord, SampledUsers, Unit

SAMPLERS: Final = MappingProxyType(
    {
        "poisson": Poisson,
        "truncated-poisson": TruncatedPoisson,
        "fixed-size": FixedSize,
        "balls-in-bins": BallsInBins,
        "full-batch": FullBatch,
        "fixed-bins": FixedBins,
        "cyclic-poisson": CyclicPoisson,
    }
)
"""Samplers by the names of the command line."""

LOADERS: Final = MappingProxyType(
    {"own-loader": OwnLoader, "fixed-order": FixedOrder, "reshuffled": Reshuffled, "one-pass": OnePass}
)
"""Samplers of the user's own loader, which a run directory does not have; they can be priced."""

CAPPED: Final = "truncated-poisson"

UNITS: Final[MappingProxyType[str, type[SampledUsers | CappedRecords]]] = MappingProxyType(
    {"users": SampledUsers, "records": CappedRecords}
)
"""What is drawn in a run that protects users, by the names of the command line."""

OPTIMIZERS: Final = ("sgd", "adam")

SCHEDULES: Final = ("constant", "linear", "cosine")

_LARGEST: Final = 1e30  # of a learning rate: torch converts it to float32, and a step multiplies it

# Settings that were added later, and their value in the runs before.
_LATER: Final = MappingProxyType(
    {"accept_large_delta": False, "keep_best": False, "sample": "users"}
    | dict.fromkeys(("unit", "per_user", "fixed_rows"))
    | dict.fromkeys(("public_records", "preset", "features", "schedule", "budget"))
    | dict.fromkeys(("label", "schema", "test", "hold_out", "task"))
)

# Settings that may differ when a run is resumed: they do not change what is computed.
FREE_TO_CHANGE: Final = frozenset(
    {"data_dir", "download", "micro_batch", "eval_every", "checkpoint_every", "device", "out", "budget"}
)


@final
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one training run; None means the default for the data (see `defaults`).

    data, data_dir, download   a dataset's name or an npz file, where to look for it, whether to fetch it
    classes, records           public facts about your own npz file
    model, method, parameters  names, and the recipe's arguments as pairs
    epsilon or noise           the budget, or the noise multiplier; you must choose delta
    calibrate_to_claim         calibrate the noise to the epsilon that the method's paper claims
    batch, epochs or steps     public numbers
    sampling, cap, relation    how batches are drawn; `cap` is for truncated-poisson. None: as the method does
    learning_rate              with SGD and an adaptive clipping norm: the rate at the start
    average                    decay of the average of the released parameters; 0 turns it off
    micro_batch                the most records in memory at once; None: estimated from the memory
    fixed_rows                 rows of every forward pass, in place of micro_batch: the certificate then covers how
                               the gradients of records are rounded. Poisson batches get a cap that this needs
    seed                       None: randomness of the operating system. A seeded run is not private
    accept_large_delta         delta may be 1/records or more, which protects no single record
    public_records             a dataset's name or an npz file: records that need no protection, for gep, b-gep and
                               the statistics of public features
    preset                     settings by name that replace the defaults of the data; `discreet presets` lists them
    features                   public features in place of the records; () for none
    schedule                   how the learning rate falls: constant, linear or cosine
    task                       what is predicted in your own file: classification, regression or multilabel
    label, schema              of a table (.csv, .parquet, .npz): the column to predict (multilabel: columns a,b,c), and
                               the public schema as JSON text
    test, hold_out             of a table: a file with test records, or the share of rows that is held out for tests.
                               No epsilon protects these records
    unit, per_user             of a table: the column that names the owner of each record, who is then protected with
                               all records, and the largest number of records of an owner that are used (public)
    sample                     "users": `records` and `batch` count users, each with one clipped mean gradient;
                               "records": records are drawn, of each user at most `per_user` in the whole run
    public_data                the training records are public, so their accuracy may be shown
    budget                     the budget file of the records; the run is charged to it before they are read
    keep_best                  publish the parameters with the best accuracy on the test records, which you declare
                               public; a choice by private records would have to be paid for (see `discreet.tune`)
    eval_every                 steps between evaluations; checkpoint_every likewise
    out                        a directory that does not exist yet
    """

    delta: float
    out: str
    data: str = "digits"
    data_dir: str | None = None
    download: bool = False
    classes: int | None = None
    records: int | None = None
    model: str | None = None
    method: str = "dp-sgd"
    parameters: tuple[tuple[str, Any], ...] = ()
    epsilon: float | None = None
    noise: float | None = None
    calibrate_to_claim: bool = False
    batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    sampling: str | None = None
    cap: int | None = None
    relation: str | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    weight_decay: float = 0.0
    average: float | None = None
    micro_batch: int | None = None
    seed: int | None = None
    public_data: bool = False
    eval_every: int | None = None
    checkpoint_every: int | None = None
    device: str = "cpu"
    accept_large_delta: bool = False
    public_records: str | None = None
    preset: str | None = None
    features: tuple[str, ...] | None = None
    schedule: str | None = None
    label: str | None = None
    schema: str | None = None
    test: str | None = None
    hold_out: float | None = None
    task: str | None = None
    budget: str | None = None
    keep_best: bool = False
    unit: str | None = None
    per_user: int | None = None
    sample: str = "users"
    fixed_rows: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple((str(name), value) for name, value in self.parameters))
        check.inside_unit("choose delta; use at most 1/(10 * records), e.g. 1e-5", delta=self.delta)
        _one_of("method", self.method, METHODS)
        if self.sampling is not None:
            _one_of("sampling", self.sampling, SAMPLERS)
        self._check_either("epsilon", "noise", (self.epsilon is None) != (self.noise is None))
        self._check_either("epochs", "steps", self.epochs is None or self.steps is None)
        if self.epsilon is not None:
            check.positive("epsilon is the budget of the whole run, e.g. 3", epsilon=self.epsilon)
        is_valid, remedy = self.epsilon is not None or not self.calibrate_to_claim, "give the epsilon of the claim"
        check.require(is_valid, "epsilon with calibrate_to_claim", f"noise={self.noise!r}", remedy)
        if self.schedule is not None:
            _one_of("schedule", self.schedule, SCHEDULES)
        if self.features is not None:
            object.__setattr__(self, "features", tuple(self.features))
        if self.optimizer is not None:
            _one_of("optimizer", self.optimizer, OPTIMIZERS)
        if self.relation is not None:
            _one_of("relation", self.relation, tuple(str(relation) for relation in Neighbouring))
        if self.learning_rate is not None:
            check.positive("the step on the noisy mean gradient", learning_rate=self.learning_rate)
            check.require(self.learning_rate <= _LARGEST, f"learning_rate <= {_LARGEST:g}", self.learning_rate, "less")
        check.not_negative("as in torch.optim", momentum=self.momentum or 0.0, weight_decay=self.weight_decay)
        if self.average is not None and self.average != 0:
            check.inside_unit("the decay of the average, e.g. 0.99; 0 turns it off", average=self.average)
        if self.micro_batch is not None:
            check.count("the most records in memory at once", micro_batch=self.micro_batch)
        given, is_valid = f"cap={self.cap!r} with {self.sampling}", (self.sampling == CAPPED) == (self.cap is not None)
        remedy = "cap is the largest number of records in a batch"
        check.require(is_valid, f"cap with {CAPPED}, and only there", given, remedy)
        self._check_table()
        self._check_unit()
        if self.fixed_rows is not None:
            check.count("the rows of every forward pass, e.g. 64", fixed_rows=self.fixed_rows)
        every = {"eval_every": self.eval_every, "checkpoint_every": self.checkpoint_every}
        check.count("count steps", **{name: value for name, value in every.items() if value is not None})

    def _check_table(self) -> None:
        """What describes a table comes with a table, and only there."""
        given = [name for name in ("label", "schema", "test", "hold_out") if getattr(self, name) is not None]
        if self.task is not None:
            _one_of("task", self.task, TASKS)
            remedy = "leave it out: published datasets have classes"
            check.require(is_own(self.data), "a file of your own with task", self.data, remedy)
        if not is_table(self.data, self.label):
            remedy = "leave them out, or pass a table"
            if Path(self.data).is_dir():
                remedy = f"for a folder of pictures: `discreet images {self.data} --classes a,b --out pictures.npz`"
            check.require(not given, f"no {', '.join(given)} with {self.data}", "them", remedy)
            return
        missing = [name for name in ("label", "schema") if name not in given]
        remedy = "name the column to predict (--label) and a public schema (--schema schema.json)"
        check.require(not missing, f"{' and '.join(missing)} for the table {self.data}", "none", remedy)

    def _check_unit(self) -> None:
        """Owners come with a table and a cap."""
        _one_of("sample", self.sample, UNITS)
        fits = is_table(self.data) or self.unit is None
        check.require(fits, "a table with --unit", self.data, "pass a .csv or .parquet file, or use discreet.Private")
        both = (self.unit is None) == (self.per_user is None)
        remedy = "give --unit COLUMN and --per-user N, the largest number of records of one owner"
        check.require(both, "unit and per_user together", "one of them", remedy)
        if self.unit is not None:
            self.protected()

    def protected(self) -> Unit:
        """Whom the run protects: every record, or the owners that the column names ("patient_id": patients)."""
        if self.unit is None or self.per_user is None:
            return EachRecord()
        return UNITS[self.sample](per_user=self.per_user, name=noun_of(self.unit))

    def _check_either(self, one: str, other: str, is_valid: bool) -> None:
        got = f"{one}={getattr(self, one)!r} and {other}={getattr(self, other)!r}"
        check.require(is_valid, f"either {one} or {other}", got, "give one of the two")

    def to_json(self) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, usual in _LATER.items():
            if fields[name] == usual:  # so that runs keep the digests they had before it could be said
                del fields[name]
        return {**fields, "parameters": [list(pair) for pair in self.parameters]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The settings that `to_json` wrote; an unknown name is refused."""
        known = {f.name for f in dataclasses.fields(RunConfig)}
        unknown = sorted(set(body) - known)
        check.require(not unknown, "settings of a run", f"{', '.join(unknown)}", "use the version that wrote it")
        pairs = tuple((name, value) for name, value in body.get("parameters", ()))
        return cls(**{**body, "parameters": pairs})

    def sampler(self) -> Sampling:
        """The sampling stage; without a name, that of the method."""
        return sampler_of(self.sampling or usual_sampling(self.method), self.cap)

    def check_resumes(self, begun: Self) -> None:
        remedy = "resume with the settings of the run, or begin a new one in another directory"
        for field in dataclasses.fields(self):
            expected, got = getattr(begun, field.name), getattr(self, field.name)
            same, got = field.name in FREE_TO_CHANGE or expected == got, f"{field.name}={got!r}"
            check.require(same, f"{field.name}={expected!r}, as the run began", got, remedy)


def noun_of(column: str) -> str:
    """The name of a unit from that of its column.

    >>> noun_of("patient_id"), noun_of("userID"), noun_of("id")
    ('patient', 'user', 'user')
    """
    words = re.sub(r"[^A-Za-z0-9]+", " ", re.sub(r"[\W_]*(id|Id|ID)$", "", column)).strip()
    return words if words[:1].isalpha() else "user"


def sampler_of(name: str, cap: int | None = None) -> Sampling:
    """The sampling stage of this name; `cap` is for truncated-poisson."""
    if cap is not None:
        return TruncatedPoisson(cap)
    sampler: Sampling = {**SAMPLERS, **LOADERS}[name]()
    return sampler


def usual_sampling(method: str) -> str:
    """The name of the sampler that a method is made for."""
    own = type(METHODS[method].recipe().sampling)
    return next(name for name, kind in SAMPLERS.items() if kind is own)


def _one_of(name: str, value: object, known: Any) -> None:
    check.require(value in known, f"{name} to be one of {', '.join(known)}", f"{name}={value!r}", "choose one of these")


def learning_rate_factor(schedule: str, done: float) -> float:
    """The factor on the learning rate when this part of the run is done.

    >>> [learning_rate_factor(name, 0.25) for name in ("constant", "linear")]
    [1.0, 0.75]
    >>> [round(learning_rate_factor("cosine", done), 3) for done in (0.0, 0.5, 0.75)]
    [1.0, 0.5, 0.146]
    """
    if schedule == "linear":
        return 1 - done
    return (1 + math.cos(math.pi * done)) / 2 if schedule == "cosine" else 1.0
