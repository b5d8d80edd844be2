"""A plan: the frozen, public composition of stages, which knows what it costs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from discreet.accounting import Certificate, Charge, Claim, calibrate_claim, calibrate_noise, certify
from discreet.accounting.events import Event, Free, SelectionQuery
from discreet.core import check
from discreet.core.plain import digest, plain
from discreet.core.relation import Neighbouring
from discreet.stages.acceptance import AcceptAll, Acceptance
from discreet.stages.analysis import Analysis, Composition
from discreet.stages.bounding import Bounder, Query
from discreet.stages.combination import Combination, TakeFirst
from discreet.stages.domain import Domain, Unbounded
from discreet.stages.gaussian import GaussianNoise
from discreet.stages.mechanism import Mechanism
from discreet.stages.sampling import FullBatch, Horizon, Poisson, Sampling, bill_run, event_at
from discreet.stages.schedule import Constant, Schedule
from discreet.stages.selection import Everything, Selection

_EVERYTHING, _GAUSSIAN, _CONSTANT, _POISSON = Everything(), GaussianNoise(), Constant(), Poisson()
_FIRST, _UNBOUNDED, _COMPOSITION, _ALL = TakeFirst(), Unbounded(), Composition(), AcceptAll()


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a private run does, before any record is seen.

    A recipe gives the stages; `for_budget` (or `bind`) adds the noise and the public numbers of the run. The
    charge is derived from the stages themselves: nobody hands a noise multiplier to an accountant.

    >>> from discreet import methods
    >>> horizon = Horizon.of_rate(rate=0.01, steps=100)
    >>> plan = methods.dp_sgd(clip=1.0).bind(noise=1.1, horizon=horizon, delta=1e-5)
    >>> plan.certificate().epsilon < 1
    True
    """

    method: str
    bounder: Bounder
    selection: Selection = _EVERYTHING
    mechanism: Mechanism = _GAUSSIAN
    combination: Combination = _FIRST
    acceptance: Acceptance = _ALL
    domain: Domain = _UNBOUNDED
    schedule: Schedule = _CONSTANT
    sampling: Sampling = _POISSON
    analysis: Analysis = _COMPOSITION
    relation: Neighbouring = Neighbouring.ADD_REMOVE
    noise: float | None = None
    horizon: Horizon | None = None
    delta: float | None = None
    claims: Callable[[Plan], Claim | None] | None = None

    def __post_init__(self) -> None:
        check.require(
            self.relation in self.sampling.relations,
            f"a relation that {type(self.sampling).__name__} is proven for "
            f"({' or '.join(str(relation) for relation in self.sampling.relations)})",
            str(self.relation),
            "change the relation or the sampling",
        )
        if self.noise is not None:
            check.not_negative(
                "noise is the standard deviation on the sum divided by the clip", noise=self.noise
            )
        if self.delta is not None:
            check.inside_unit("delta is far below 1/records, e.g. 1e-5", delta=self.delta)
        self.combination.check(self.bounder, self.selection)
        self._check_tests()
        self.analysis.check(self)

    # -- completing a plan -----------------------------------------------------------------------------

    def bind(self, *, noise: float, horizon: Horizon, delta: float) -> Plan:
        """The plan with its noise and the public numbers of the run."""
        return dataclasses.replace(self, noise=noise, horizon=horizon, delta=delta)

    def for_budget(
        self,
        *,
        epsilon: float,
        delta: float,
        records: int,
        batch: float,
        epochs: int | None = None,
        steps: int | None = None,
    ) -> Plan:
        """The plan with the least noise whose certificate stays within (epsilon, delta)."""
        horizon = Horizon.of(records=records, batch=batch, epochs=epochs, steps=steps)
        return self.for_horizon(epsilon=epsilon, delta=delta, horizon=horizon)

    def for_horizon(self, *, epsilon: float, delta: float, horizon: Horizon) -> Plan:
        """`for_budget` for a horizon that is already there."""

        def charge(noise: float) -> Charge:
            return self.bind(noise=noise, horizon=horizon, delta=delta).charge()

        noise = calibrate_noise(charge, epsilon=epsilon, delta=delta, relation=self.relation)
        return self.bind(noise=noise, horizon=horizon, delta=delta)

    def for_claim(self, *, epsilon: float, delta: float, horizon: Horizon) -> Plan:
        """The plan with the noise that its paper CLAIMS to be enough: `certificate` says what is proven for it."""

        def claim(noise: float) -> Claim | None:
            return self.bind(noise=noise, horizon=horizon, delta=delta).charge().claimed

        noise = calibrate_claim(claim, epsilon=epsilon, delta=delta)
        return self.bind(noise=noise, horizon=horizon, delta=delta)

    # -- what it costs ---------------------------------------------------------------------------------

    def charge(self, steps: int | None = None) -> Charge:
        """What the first `steps` steps cost (default: the whole run), certified and claimed."""
        horizon = self.known_horizon
        stop = horizon.steps if steps is None else steps
        check.count("count steps of this run", least=0, steps=stop)
        whole = self.analysis.whole_run(self)
        check.require(
            whole is None or stop <= horizon.steps,
            f"at most the {horizon.steps} steps that the run is priced for as a whole",
            stop,
            "bind the plan to a longer horizon",
        )
        if whole is None:
            releases = (self._release, self._test) if self.has_tests else (self._release,)
            bills = (
                bill_run(self.sampling, self.schedule, release, horizon, 0, stop) for release in releases
            )
            certified = tuple(itertools.chain.from_iterable(bills))
        else:
            certified = ((whole, min(stop, 1)),)
        claimed = self.claims(self) if self.claims is not None and stop == horizon.steps else None
        return Charge(certified, claimed, self.analysis.assumptions(self))

    def event_at(self, step: int) -> Event:
        """The charge that is due before the release of `step`."""
        whole = self.analysis.whole_run(self)
        if whole is None:
            return event_at(self.sampling, self.schedule, self._release, self.known_horizon, step)
        return whole if step == 0 else Free()

    def test_at(self, step: int) -> Event:
        """The charge that is due before the test of the update of `step`."""
        return event_at(self.sampling, self.schedule, self._test, self.known_horizon, step)

    def due(self, charges: int) -> Event:
        """The next charge of a run that has made `charges` of them."""
        last = self.known_horizon.steps - 1
        if self.has_tests:
            step, is_test = divmod(charges, 2)
            return self.test_at(min(step, last)) if is_test else self.event_at(min(step, last))
        return self.event_at(min(self.steps_paid(charges), last))

    @property
    def has_tests(self) -> bool:
        """Whether updates are tested before they are kept."""
        return bool(self.acceptance.queries())

    @property
    def pays_at_once(self) -> bool:
        """Whether the first charge pays for the run; the ledger then counts the other steps as free."""
        return self.analysis.whole_run(self) is not None

    def certificate(self, steps: int | None = None) -> Certificate:
        """The epsilon that is proven for the first `steps` steps."""
        return certify(self.charge(steps), delta=self.known_delta, relation=self.relation)

    def steps_paid(self, charges: int) -> int:
        """How many steps the first `charges` charges of a run pay for."""
        horizon = self.known_horizon
        if self.has_tests:  # a step whose test was never made is lost
            return min((charges + 1) // 2, horizon.steps)
        by_epoch = self.sampling.per_epoch and not self.pays_at_once
        return min(charges * (horizon.steps_per_epoch if by_epoch else 1), horizon.steps)

    def _release(self, factor: float) -> Event:
        return self.mechanism.event(self.queries(1.0), self.known_noise * factor)

    def _test(self, factor: float) -> Event:
        noise = self.known_noise * factor
        (query,) = self.acceptance.queries()
        return SelectionQuery(sigma=query.std(noise), sensitivity=query.sensitivity)

    def _check_tests(self) -> None:
        check.require(
            not self.has_tests or isinstance(self.sampling, (Poisson, FullBatch)),
            "Poisson or full batches for an update that is tested on a fresh sample",
            type(self.sampling).__name__,
            "change the sampling: the price of a second draw is proven for these",
        )
        check.require(
            not self.has_tests or self.analysis.composes,
            "an analysis that charges every release, for updates that are tested",
            type(self.analysis).__name__,
            "drop the test or the analysis: what is kept tells more than the last iterate",
        )

    def queries(self, scale: float) -> tuple[Query, ...]:
        """All queries on one sample, vectors first."""
        return *self.bounder.vectors(scale), *self.bounder.scalars()

    def noise_at(self, step: int) -> float:
        """The noise multiplier of a step."""
        return self.known_noise * self.schedule.factor(step, self.known_horizon.steps_per_epoch)

    # -- what is known ---------------------------------------------------------------------------------

    @property
    def known_horizon(self) -> Horizon:
        if self.horizon is None:
            check.refuse("a plan with a horizon", "a recipe", "call plan.for_budget(...) first")
        return self.horizon

    @property
    def known_noise(self) -> float:
        if self.noise is None:
            check.refuse("a plan with its noise", "a recipe", "call plan.for_budget(...) first")
        return self.noise

    @property
    def known_delta(self) -> float:
        if self.delta is None:
            check.refuse("a plan with a delta", "a recipe", "call plan.for_budget(...) first")
        return self.delta

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        fields = {
            f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "claims"
        }
        return {"is": "Plan", **fields}

    @property
    def digest(self) -> str:
        """A hash that changes with anything the plan does."""
        return digest(self.to_json())
