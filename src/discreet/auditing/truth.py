"""The truth table: the certified, claimed and audited epsilon of every method.

The first part lists the attacks: which game is played against which method, and with how many trials.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

import discreet
from discreet.accounting import gdp
from discreet.auditing import broken
from discreet.auditing.bounds import CONFIDENCE
from discreet.auditing.games import Game, PoissonStep, PreparedGame
from discreet.core import check
from discreet.core.command import package_versions
from discreet.core.plain import digest
from discreet.core.relation import Neighbouring
from discreet.core.workers import JobFailed, failure_of, run_jobs, worker_count
from discreet.methods import METHODS, Method
from discreet.methods.dp_ftrl.correlated_noise import Strategy
from discreet.runs.audit_rows import AuditRow
from discreet.stages.participation import FixedBins, FixedOrder, OnePass, Reshuffled
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.unit import CappedRecords, SampledUsers

if TYPE_CHECKING:
    from discreet.auditing.whole_run import TargetRecord

OnProgress = Callable[[str, int, int], None]
"""Receives the label of the current row, its trials so far, and their total."""

NOISE, LITTLE_NOISE = 1.0, 0.5
"""Noise multipliers. Games with a few hundred trials use the smaller one; at the other they would show nothing.

A claim without a certificate is attacked at the usual one, where it is lower."""

COARSE_DELTA = 1e-2
"""The delta at which a few thousand real releases can show something."""

RATE, STEPS = 0.25, 10
"""Of whole runs; where each trial is a training, half of the steps."""

LAST_ITERATE = MappingProxyType(
    {"dpsgd-dc": MappingProxyType({"link": "logistic", "learning_rate": 4.0, "radius": 1.0})}
)
"""Settings of methods that are certified for their final parameters only."""


OWN_LOADERS = MappingProxyType(
    {
        "fixed order": (FixedOrder(), MappingProxyType({})),
        "new order in every epoch": (Reshuffled(), MappingProxyType({"strategy": Strategy.BSR, "bands": 2})),
        "stream": (OnePass(), MappingProxyType({})),
    }
)
"""Correlated noise is attacked under the samplers of the user's own loader, too.

With a new order in every epoch the certificate is exact if no column of C reaches the end of the run."""

CORRELATED_TIMES = 2
"""Correlated noise gets more trials: they are cheap, and its certificate is to be approached closely."""

USERS = MappingProxyType(
    {"sampled users": (SampledUsers(per_user=3), NOISE), "capped records": (CappedRecords(per_user=4), 4 * NOISE)}
)
"""Units other than a record, with a noise multiplier at which the certificate can be approached."""
USER_RECORDS = 20


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """The number of trials in each world.

    scalar     of games with one number a trial
    canaries   of releases with many canaries
    runs       of releases with one record
    copies     of whole runs, many models at a time
    trainings  of whole runs, one model at a time; 0: only last iterates, with `few` trials
    times      multiplies what a demonstration needs
    """

    scalar: int
    canaries: int
    runs: int
    copies: int = 0
    trainings: int = 0
    few: int = 0
    times: int = 1


QUICK = Effort(scalar=20_000_000, canaries=100_000, runs=600, copies=20_000, few=100)
FULL = Effort(scalar=100_000_000, canaries=1_000_000, runs=10_000, copies=200_000, trainings=1000, few=2000, times=4)


@final
@dataclass(frozen=True, kw_only=True)
class Attack:
    """A row of the table that is still to be played."""

    method: str
    label: str
    prepare: Callable[[], PreparedGame]

    def row(self, listener: OnProgress | None = None, generator: np.random.Generator | None = None) -> AuditRow:
        advance = None if listener is None else functools.partial(listener, self.label)
        return self.prepare().play(generator=generator, advance=advance)


def attacks_on(method: Method, effort: Effort) -> Iterator[Attack]:
    """One step, and whole runs: with a crafted gradient and with a mislabelled record."""
    from discreet.auditing.whole_run import couples_nothing, crafted_gradient, mislabelled_record

    def attack(words: str, prepare: Callable[[], PreparedGame]) -> Attack:
        return Attack(method=method.name, label=f"{method.name}, {words}", prepare=prepare)

    yield attack("one step", functools.partial(_one_step, method, effort))
    recipe = method.recipe()
    for words, (sampling, settings) in OWN_LOADERS.items() if isinstance(recipe.sampling, FixedBins) else ():
        own = method.recipe(**settings).using(sampling=sampling, relation=Neighbouring.REPLACE_ONE)
        yield attack(words, functools.partial(_own_loader, own, words, effort))
    independent = couples_nothing(recipe)
    trials, steps = (effort.copies, STEPS) if independent else (effort.trainings, STEPS // 2)
    records: dict[str, TargetRecord] = {"crafted gradient": crafted_gradient(), "data canary": mislabelled_record()}
    for words, record in records.items() if trials else ():
        words = f"whole run, {words}"
        yield attack(words, functools.partial(_whole_run, recipe, record, words, steps, trials))
    if method.name in LAST_ITERATE and effort.few:
        recipe, words = method.recipe(**LAST_ITERATE[method.name]), "last iterate, data canary"
        play = functools.partial(_whole_run, recipe, mislabelled_record(), words, STEPS // 2, effort.few)
        yield attack("last iterate", play)


def _one_step(method: Method, effort: Effort) -> PreparedGame:
    """What the method really releases at a sampling rate of 1, where sampling hides nothing."""
    from discreet.auditing.correlated import CorrelatedCanaries
    from discreet.auditing.releases import Canaries, ReleaseGame, game_for
    from discreet.auditing.rows import RowCanaries

    recipe = method.recipe()
    game: Canaries | ReleaseGame | CorrelatedCanaries | RowCanaries
    if recipe.mechanism.remembers:  # a step has no price of its own: a short run is attacked
        game = CorrelatedCanaries(recipe, delta=COARSE_DELTA)
    elif recipe.selection.counting is not None:
        game = RowCanaries(recipe, noise=NOISE, delta=COARSE_DELTA)
    else:
        game = game_for(recipe, noise=NOISE, delta=COARSE_DELTA)
    many = isinstance(game, Canaries | CorrelatedCanaries | RowCanaries)
    if not many and method.certified:
        game = game_for(recipe, noise=LITTLE_NOISE, delta=COARSE_DELTA)
    steps = "one step" if game.attacked.steps == 1 else f"{game.attacked.steps} steps"
    trials = effort.canaries if many else effort.runs
    trials *= CORRELATED_TIMES if isinstance(game, CorrelatedCanaries) else 1
    return _against(game.attacked.plan, game, f"{steps}, crafted gradient", trials)


def _own_loader(recipe: Recipe, words: str, effort: Effort) -> PreparedGame:
    """The places of a record that the sampler names as the worst."""
    from discreet.auditing.correlated import CorrelatedCanaries

    game = CorrelatedCanaries(recipe, delta=COARSE_DELTA)
    words = f"{game.attacked.steps} steps, {words}, crafted gradient"
    return _against(game.attacked.plan, game, words, CORRELATED_TIMES * effort.canaries)


def _whole_run(recipe: Recipe, record: TargetRecord, words: str, steps: int, trials: int) -> PreparedGame:
    """A small model, trained to the end through `Private`."""
    from discreet.auditing.whole_run import WholeRun, couples_nothing

    noise = NOISE if couples_nothing(recipe) else LITTLE_NOISE
    game = WholeRun(recipe, record, rate=RATE, steps=steps, noise=noise, delta=COARSE_DELTA)
    return _against(game.plan, game, words, trials)


def _against(plan: Plan, game: Game, words: str, trials: int) -> PreparedGame:
    """A game against the real releases of a plan."""
    claim, horizon = plan.charge().claimed, plan.horizon
    return PreparedGame(
        game=game,
        method=plan.method,
        parameters={"game": words, "noise": plan.noise, "rate": horizon.rate, "steps": horizon.steps},
        trials=trials,
        delta=COARSE_DELTA,
        certified=plan.certificate().epsilon,
        claimed=None if claim is None else claim.epsilon(COARSE_DELTA),
    )


def statistic(effort: Effort) -> Attack:
    """DP-SGD's full-batch step by its sufficient statistic: how close an attack comes at a small delta."""
    exact = gdp.epsilon(1 / NOISE, broken.DELTA)
    prepared = PreparedGame(
        game=PoissonStep(noise=NOISE),
        method="dp-sgd",
        parameters={"game": "one step, sufficient statistic", "noise": NOISE, "rate": 1.0, "steps": 1},
        trials=effort.scalar,
        delta=broken.DELTA,
        certified=exact,
        analytic=exact,
    )
    return Attack(method="dp-sgd", label="dp-sgd, one number a trial", prepare=lambda: prepared)


def users(words: str, effort: Effort) -> Attack:
    """DP-SGD's full-batch step against a user with many records, whose gradients all exceed the clip."""

    def prepare() -> PreparedGame:
        from discreet.auditing.users import UserCanaries

        unit, noise = USERS[words]
        recipe = METHODS["dp-sgd"].recipe().using(unit=unit)
        horizon = Horizon.of(records=1000, batch=1000, steps=1)
        plan = recipe.bind(noise=noise, horizon=horizon, delta=COARSE_DELTA, accept_large_delta=True)
        game = UserCanaries(plan=plan, each=USER_RECORDS)
        return _against(plan, game, f"one step, {words}, {USER_RECORDS} records of a user", effort.canaries)

    return Attack(method="dp-sgd", label=f"dp-sgd, {words}", prepare=prepare)


def against_claim(method: str, effort: Effort) -> Attack:
    """A published mechanism against its paper's claim."""

    def prepare() -> PreparedGame:
        prepared = broken.CLAIMS[method]()
        return dataclasses.replace(prepared, trials=prepared.trials * effort.times)

    return Attack(method=method, label=f"{method}, as published", prepare=prepare)


def attacks(effort: Effort, method: str | None = None) -> tuple[Attack, ...]:
    """The rows of the table: every method and every claim that is known to be wrong, or those of one method."""
    found = list(itertools.chain.from_iterable(attacks_on(each, effort) for each in METHODS.values()))
    found += [
        statistic(effort),
        *(users(words, effort) for words in USERS),
        *(against_claim(name, effort) for name in broken.CLAIMS),
    ]
    known = sorted({attack.method for attack in found})
    check.require(method is None or method in known, f"a method of {', '.join(known)}", repr(method), "or use --all")
    return tuple(attack for attack in found if method in (None, attack.method))


def truth_table(
    planned: Sequence[Attack],
    *,
    effort: Effort,
    listener: OnProgress | None = None,
    workers: int | None = 1,
    kept: KeptRows | None = None,
    older: Sequence[AuditRow] = (),
) -> tuple[AuditRow, ...]:
    """The row of every attack, in order.

    effort   the one that the attacks were planned with
    workers  number of processes; None: one for each core, four at most
    kept     storage for finished rows, which are stored as they end; stored rows are not played again
    older    rows of an earlier table; those that a game of today would give, but for chance, are not played again
    """
    made = {} if kept is None else kept.made(effort)
    for attack in planned if older else ():
        game = attack.prepare()
        made.update((attack.label, row) for row in older if game.would_give(row))
    missing = [attack for attack in planned if attack.label not in made]

    def keep(label: str, row: AuditRow) -> None:
        made[label] = row
        if kept is not None:
            kept.add(label, row, effort)

    if worker_count(len(missing), workers) <= 1:
        for attack in missing:
            keep(attack.label, attack.row(listener))
    else:
        orders = [{"label": attack.label, "effort": asdict(effort)} for attack in missing]
        told = _Finished([attack.label for attack in missing], keep, listener)
        run_jobs(f"{__name__}:play_label", orders, told, workers=workers, threads=1)
    return tuple(made[attack.label] for attack in planned)


def play_label(order: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """In a worker: attacks hold functions that cannot be sent, labels can, and each label is there once."""
    planned = attacks(Effort(**order["effort"]))
    return next(attack for attack in planned if attack.label == order["label"]).row().to_json()


def document(rows: Iterable[AuditRow], *, command: str) -> dict[str, Any]:
    """The table as a JSON value, with the command and the versions of packages."""
    return {
        "rows": [row.to_json() for row in rows],
        "confidence": CONFIDENCE,
        "command": command,
        "versions": package_versions("discreet", "numpy", "scipy", "torch"),
    }


@final
class KeptRows:
    """Finished rows in a file, one a line, so that an interrupted table can be resumed.

    Only finished rows are stored, so no partial result can decide whether a row counts. A stored row is used only for
    the same game, effort and code, since its certificate belongs to the code that computed it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:  # fail now, not after hours, if the file cannot be written
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # remove a line that was cut short

    def made(self, effort: Effort) -> dict[str, AuditRow]:
        """The stored rows, by label."""
        try:
            entries = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
            return {e["label"]: AuditRow.from_json(e["row"]) for e in entries if e["made"] == _making(effort)}
        except (KeyError, TypeError, ValueError) as error:
            check.refuse(f"rows of a truth table in {self.path}", error, "delete the file and start again")

    def add(self, label: str, row: AuditRow, effort: Effort) -> None:
        line = json.dumps({"label": label, "row": row.to_json(), "made": _making(effort)}, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def discard(self) -> None:
        """Delete the file: the table is finished and stored elsewhere."""
        self.path.unlink()


def _making(effort: Effort) -> dict[str, Any]:
    return {"effort": asdict(effort), "code": _code()}


@functools.cache
def _code() -> str:
    """A digest of the library's source."""
    folder = Path(discreet.__file__).parent
    return digest([path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))])


@final
class _Finished:
    """Passes on the rows that workers finish."""

    def __init__(self, labels: list[str], keep: Callable[[str, AuditRow], None], listener: OnProgress | None) -> None:
        self._labels, self._keep, self._listener = labels, keep, listener

    def started(self, job: int) -> None: ...

    def news(self, job: int, news: Any) -> None: ...

    def ended(self, job: int, result: Any, failure: Exception | None) -> None:
        if failure is not None:
            kind = check.Refused if isinstance(failure, check.Refused) else JobFailed
            raise kind(f"{self._labels[job]}: {failure_of(failure)}") from failure
        row = AuditRow.from_json(result)
        if self._listener is not None:
            self._listener(self._labels[job], row.parameters["trials"], row.parameters["trials"])
        self._keep(self._labels[job], row)
