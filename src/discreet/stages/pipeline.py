"""The stages of one private step, in order: what a recipe and a plan have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

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
from discreet.stages.sampling import FullBatch, Poisson, Sampling
from discreet.stages.schedule import Constant, Schedule
from discreet.stages.selection import Everything, Selection

if TYPE_CHECKING:
    from discreet.accounting import Claim
    from discreet.stages.plan import Plan

_EVERYTHING, _GAUSSIAN, _CONSTANT, _POISSON = Everything(), GaussianNoise(), Constant(), Poisson()
_FIRST, _UNBOUNDED, _COMPOSITION, _ALL = TakeFirst(), Unbounded(), Composition(), AcceptAll()


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One field per stage, checked against each other. The two kinds are `Recipe` and `Plan`.

    method       the name in METHODS
    sampling     which records join a step
    bounder      per-record norms -> weights, which bound what one record adds
    selection    which coordinates take part in a step
    mechanism    bounded sums -> noisy sums
    schedule     a factor on the noise multiplier for each step
    combination  noisy sums -> one gradient
    acceptance   whether an update is tested before it is kept
    domain       where the parameters may lie
    analysis     the argument by which the certificate holds
    relation     which two datasets count as neighbours
    claims       a plan -> what the method's paper claims for it
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
    claims: Callable[[Plan], Claim | None] | None = None

    def __post_init__(self) -> None:
        check.require(
            self.relation in self.sampling.relations,
            f"a relation that {type(self.sampling).__name__} is proven for "
            f"({' or '.join(str(relation) for relation in self.sampling.relations)})",
            str(self.relation),
            "change the relation or the sampling",
        )
        self.combination.check(self.bounder, self.selection)
        self._check_tests()
        self.analysis.check(self)

    def using(
        self,
        *,
        method: str | None = None,
        bounder: Bounder | None = None,
        selection: Selection | None = None,
        mechanism: Mechanism | None = None,
        combination: Combination | None = None,
        acceptance: Acceptance | None = None,
        domain: Domain | None = None,
        schedule: Schedule | None = None,
        sampling: Sampling | None = None,
        analysis: Analysis | None = None,
        relation: Neighbouring | None = None,
        claims: Callable[[Plan], Claim | None] | None = None,
    ) -> Self:
        """The same with some stages exchanged; the certificate follows from the new ones.

        >>> from discreet import OwnLoader, methods
        >>> methods.dp_sgd(clip=1.0).using(sampling=OwnLoader()).sampling
        OwnLoader()
        """
        given: dict[str, Any] = {
            "method": method,
            "bounder": bounder,
            "selection": selection,
            "mechanism": mechanism,
            "combination": combination,
            "acceptance": acceptance,
            "domain": domain,
            "schedule": schedule,
            "sampling": sampling,
            "analysis": analysis,
            "relation": relation,
            "claims": claims,
        }
        return dataclasses.replace(
            self, **{name: stage for name, stage in given.items() if stage is not None}
        )

    def queries(self, scale: float) -> tuple[Query, ...]:
        """All queries on one sample, vectors first; `scale` is the bounder's public state."""
        return *self.bounder.vectors(scale), *self.bounder.scalars()

    @property
    def has_tests(self) -> bool:
        """Whether updates are tested before they are kept."""
        return bool(self.acceptance.queries())

    def to_json(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        fields = {
            field.name: plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name != "claims"
        }
        return {"is": type(self).__name__, **fields}

    @property
    def digest(self) -> str:
        """A hash that changes with anything that a step does."""
        return digest(self.to_json())

    def _check_tests(self) -> None:
        check.require(
            not self.has_tests or isinstance(self.sampling, (Poisson, FullBatch)),
            "Poisson or full batches for an update that is tested on a fresh sample",
            type(self.sampling).__name__,
            "change the sampling: the price of a second sample is proven for these two only",
        )
        check.require(
            not self.has_tests or self.analysis.composes,
            "an analysis that charges every release, for updates that are tested",
            type(self.analysis).__name__,
            "drop the test or the analysis: accepted updates reveal more than the last iterate",
        )
