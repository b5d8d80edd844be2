"""A recipe: the stages of a method. A plan: a recipe with the public numbers of one run, and its privacy cost."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from discreet.accounting.charges import Charge, Counted
from discreet.accounting.events import Event, Free, NonPrivate, SelectionQuery
from discreet.core import check
from discreet.stages.delta import check_delta, delta_warning
from discreet.stages.pipeline import Pipeline
from discreet.stages.public_learning import ASSUMPTION
from discreet.stages.sampling import Horizon

OneRelease = Callable[[float], Event]

if TYPE_CHECKING:
    from discreet.accounting.accountants import Certificate


@final
@dataclass(frozen=True, kw_only=True)
class Plan(Pipeline):
    """A complete, public description of a private run, fixed before any record is read.

    `Recipe.for_budget` builds one. The privacy cost is derived from the stages that run, so it cannot differ from
    what is executed.

    noise    the noise multiplier: standard deviation of the noise on the sum, divided by the clipping norm
    horizon  the public numbers of records, batch size and steps
    delta    the delta of the certificate, below 1/records
    accept_large_delta  allow a delta of 1/records or more, which protects no single record

    >>> from discreet import methods
    >>> horizon = Horizon.of_rate(rate=0.01, steps=100)
    >>> plan = methods.dp_sgd(clip=1.0).bind(noise=1.1, horizon=horizon, delta=1e-5)
    >>> plan.certificate().epsilon < 1
    True
    """

    noise: float
    horizon: Horizon
    delta: float
    accept_large_delta: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative("give the noise multiplier, e.g. 1.0", noise=self.noise)
        check_delta(self.delta, self.horizon.records, accepted=self.accept_large_delta)

    # -- privacy cost ----------------------------------------------------------------------------------

    def events(self, steps: int | None = None) -> Counted:
        """The privacy events of the first `steps` steps (default: the whole run), with counts."""
        stop = self.horizon.steps if steps is None else steps
        check.count("give a number of steps of this run", least=0, steps=stop)
        whole = self.analysis.whole_run(self)
        if whole is None:
            releases = (self._release, self._test) if self.has_tests else (self._release,)
            return tuple(itertools.chain.from_iterable(self._bill(release, stop) for release in releases))
        expected = f"at most {self.horizon.steps} steps, because the run is charged as a whole"
        remedy = "bind the recipe to a horizon with more steps"
        check.require(stop <= self.horizon.steps, expected, stop, remedy)
        return ((whole, min(stop, 1)),)

    def charge(self, steps: int | None = None) -> Charge:
        """The privacy cost of the first `steps` steps (default: the whole run), certified and claimed."""
        whole = steps is None or steps == self.horizon.steps
        claimed = self.claims(self) if self.claims is not None and whole and self.unit.keeps_claims else None
        return Charge(self.events(steps), claimed, self.assumptions)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the certificate assumes besides the plan."""
        assumed = (*self.analysis.assumptions(self), *self.unit.assumptions)
        return (*assumed, ASSUMPTION) if self.bounder.public_records else assumed

    def certificate(self, steps: int | None = None) -> Certificate:
        """The certified epsilon of the first `steps` steps (default: the whole run)."""
        from discreet.accounting.accountants import certify

        return certify(self.charge(steps), delta=self.delta, relation=self.relation)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to print next to the epsilon, such as a large delta for the number of records."""
        text = delta_warning(self.delta, self.horizon.records)
        return (text,) if text else ()

    @property
    def outline(self) -> str:
        """The public numbers of the run in one line."""
        horizon = self.horizon
        size = "" if horizon.batch is None else f"batch {horizon.batch:g} of {horizon.records:,} {self.unit.sampled}, "
        return f"{size}noise multiplier {self.noise:.4g}, delta {self.delta:g}, {self.neighbours}"

    @property
    def neighbours(self) -> str:
        """The relation in a few words, with its unit if that is not a record."""
        return str(self.relation) if self.unit.is_record else f"{self.relation} of one {self.unit.name}"

    def event_at(self, step: int) -> Event:
        """The charge to record before the release of `step`."""
        whole = self.analysis.whole_run(self)
        if whole is None:
            return self._due_at(step, self._release)
        return whole if step == 0 else Free()

    def test_at(self, step: int) -> Event:
        """The charge to record before testing the update of `step`."""
        return self._due_at(step, self._test)

    def due(self, charges: int) -> Event:
        """The next charge of a run that has recorded `charges` charges."""
        last = self.horizon.steps - 1
        if self.has_tests:
            step, is_test = divmod(charges, 2)
            return self.test_at(min(step, last)) if is_test else self.event_at(min(step, last))
        return self.event_at(min(self.steps_paid(charges), last))

    @property
    def pays_at_once(self) -> bool:
        """Whether the first charge covers the whole run; the ledger then records the other steps as free."""
        return self.analysis.whole_run(self) is not None

    def steps_paid(self, charges: int) -> int:
        """The number of steps that the first `charges` charges of a run cover."""
        steps = self.horizon.steps
        if self.has_tests:  # a step without its test still counts
            return min((charges + 1) // 2, steps)
        by_epoch = self.sampling.per_epoch and not self.pays_at_once
        return min(charges * (self.horizon.steps_per_epoch if by_epoch else 1), steps)

    def noise_at(self, step: int) -> float:
        return self.noise * self.schedule.factor(step, self.horizon.steps_per_epoch)

    def _bill(self, release: OneRelease, stop: int) -> Counted:
        """The cost of such a release in each of the steps before `stop`."""
        per_epoch = self.horizon.steps_per_epoch
        if self.sampling.per_epoch:
            return tuple((self._due_at(step, release), 1) for step in range(0, stop, per_epoch))
        return tuple((self._sampled(release(factor)), n) for factor, n in self.schedule.pieces(0, stop, per_epoch))

    def _due_at(self, step: int, release: OneRelease) -> Event:
        """The charge for such a release at `step`.

        If one charge covers an epoch, it is due at the first step and uses the smallest noise of the epoch; the other
        steps are free.
        """
        per_epoch = self.horizon.steps_per_epoch
        if not self.sampling.per_epoch:
            return self._sampled(release(self.schedule.factor(step, per_epoch)))
        if step % per_epoch:
            return Free()
        stop = min(step + per_epoch, self.horizon.steps)
        return self._sampled(release(min(factor for factor, _ in self.schedule.pieces(step, stop, per_epoch))))

    def _sampled(self, release: Event) -> Event:
        """The event of a release on a sampled batch; sampling does not make a non-private release private."""
        return release if isinstance(release, NonPrivate) else self.unit.bill(self.sampling, release, self.horizon)

    def _release(self, factor: float) -> Event:
        """One release of the gradient before sampling, with the noise multiplied by `factor`."""
        return self.mechanism.event(self.queries(1.0), self.noise * factor)

    def _test(self, factor: float) -> Event:
        """One test of an update, likewise."""
        (query,) = self.acceptance.queries()
        return SelectionQuery(sigma=query.std(self.noise * factor), sensitivity=query.sensitivity)

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values. `accept_large_delta` is omitted if false, which keeps older digests."""
        fields = super().to_json()
        if not self.accept_large_delta:
            del fields["accept_large_delta"]
        return fields


@final
@dataclass(frozen=True, kw_only=True)
class Recipe(Pipeline):
    """What a method does in each step. `for_budget`, `for_claim` and `bind` turn it into a `Plan`.

    >>> from discreet import methods
    >>> recipe = methods.dp_sgd(clip=0.1)
    >>> plan = recipe.for_budget(epsilon=3.0, delta=1e-5, records=60_000, batch=1024, epochs=20)
    >>> plan.certificate().epsilon <= 3.0
    True
    """

    def bind(self, *, noise: float, horizon: Horizon, delta: float, accept_large_delta: bool = False) -> Plan:
        """Return the plan with this noise multiplier, horizon and delta.

        delta must be below 1/records, unless `accept_large_delta` is true.
        """
        stages = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        stages |= self.mechanism.fitted(self, horizon)
        return Plan(**stages, noise=noise, horizon=horizon, delta=delta, accept_large_delta=accept_large_delta)

    def for_budget(
        self,
        *,
        epsilon: float,
        delta: float,
        records: int,
        batch: float,
        epochs: int | None = None,
        steps: int | None = None,
        accept_large_delta: bool = False,
    ) -> Plan:
        """Return the plan with the smallest noise multiplier whose certificate stays within (epsilon, delta).

        Give the length of the run as `epochs` or as `steps`.
        """
        horizon = Horizon.of(records=records, batch=batch, epochs=epochs, steps=steps)
        return self.for_horizon(epsilon=epsilon, delta=delta, horizon=horizon, accept_large_delta=accept_large_delta)

    def for_horizon(self, *, epsilon: float, delta: float, horizon: Horizon, accept_large_delta: bool = False) -> Plan:
        """Like `for_budget`, for an existing `Horizon`."""
        from discreet.accounting.calibration import calibrate_noise

        bind = functools.partial(self.bind, horizon=horizon, delta=delta, accept_large_delta=accept_large_delta)
        relation = self.relation
        noise = calibrate_noise(lambda z: bind(noise=z).charge(), epsilon=epsilon, delta=delta, relation=relation)
        return bind(noise=noise)

    def for_claim(self, *, epsilon: float, delta: float, horizon: Horizon, accept_large_delta: bool = False) -> Plan:
        """Return the plan with the noise multiplier that the paper CLAIMS to suffice.

        The plan's `certificate` states the epsilon that is proven for it, which may be larger.
        """
        from discreet.accounting.calibration import calibrate_claim

        bind = functools.partial(self.bind, horizon=horizon, delta=delta, accept_large_delta=accept_large_delta)
        return bind(noise=calibrate_claim(lambda z: bind(noise=z).charge().claimed, epsilon=epsilon, delta=delta))
