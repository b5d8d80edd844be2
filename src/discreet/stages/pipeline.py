"""The stages of one private step: the common part of `Recipe` and `Plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from discreet.core import check
from discreet.core.plain import check_frozen, digest, plain
from discreet.core.relation import Neighbouring
from discreet.stages.acceptance import AcceptAll, Acceptance
from discreet.stages.analysis import Analysis, Composition
from discreet.stages.clipping import Bounder, Query
from discreet.stages.combination import Combination, TakeFirst
from discreet.stages.domain import Domain, Unbounded
from discreet.stages.noise import GaussianNoise, Mechanism
from discreet.stages.sampling import FullBatch, Poisson, Sampling
from discreet.stages.schedule import Constant, Schedule
from discreet.stages.selection import Everything, Selection
from discreet.stages.unit import EachRecord, Unit

if TYPE_CHECKING:
    from discreet.accounting.charges import Claim
    from discreet.stages.plan import Plan

_EVERYTHING, _GAUSSIAN, _CONSTANT, _POISSON = Everything(), GaussianNoise(), Constant(), Poisson()
_FIRST, _UNBOUNDED, _COMPOSITION, _ALL = TakeFirst(), Unbounded(), Composition(), AcceptAll()
_RECORD = EachRecord()


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One field per stage; the constructor refuses stages that do not fit together.

    method       name of the method in METHODS
    sampling     how batches are drawn
    bounder      per-record gradient norms -> weights that bound each record's contribution
    selection    which coordinates are active in a step
    mechanism    bounded sums -> noisy sums
    schedule     factor on the noise multiplier for each step
    combination  noisy sums -> one gradient
    acceptance   whether an update is tested before it is kept
    domain       set to which the parameters are projected
    analysis     how the certificate is derived
    relation     which two datasets are neighbours
    unit         whom the certificate protects: a record, or a user with all records
    claims       plan -> the claim of the method's paper
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
    unit: Unit = _RECORD
    claims: Callable[[Plan], Claim | None] | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name != "claims":
                check_frozen(field.name, getattr(self, field.name))
        sampler, proven = type(self.sampling).__name__, " or ".join(map(str, self.sampling.relations))
        expected, remedy = f"a relation that {sampler} is proven for ({proven})", "change `relation` or `sampling`"
        check.require(self.relation in self.sampling.relations, expected, str(self.relation), remedy)
        self.combination.check(self.bounder, self.selection)
        self.selection.check(self)
        self._check_tests()
        self.analysis.check(self)
        self.unit.check(self)
        self.mechanism.fits(self)

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
        unit: Unit | None = None,
        claims: Callable[[Plan], Claim | None] | None = None,
    ) -> Self:
        """Return a copy with other stages. The certificate follows from the new stages.

        >>> from discreet import OwnLoader, methods
        >>> methods.dp_sgd(clip=1.0).using(sampling=OwnLoader()).sampling
        OwnLoader()
        """
        given = {name: stage for name, stage in locals().items() if name != "self" and stage is not None}
        return dataclasses.replace(self, **given)

    def queries(self, scale: float) -> tuple[Query, ...]:
        """All queries on one batch, vector queries first and row counts last; `scale` is the bounder's public state."""
        counting = self.selection.counting
        counts = () if counting is None else (counting.query(),)
        return *self.bounder.vectors(scale), *self.bounder.scalars(), *counts

    @property
    def has_tests(self) -> bool:
        """Whether updates are tested before they are kept."""
        return bool(self.acceptance.queries())

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, without the claim. The unit is omitted if it is a record, as in older runs."""
        left_out = {"claims", "unit"} if self.unit.is_record else {"claims"}
        names = (field.name for field in dataclasses.fields(self) if field.name not in left_out)
        return {"is": type(self).__name__, **{name: plain(getattr(self, name)) for name in names}}

    @property
    def digest(self) -> str:
        """A hash that changes with every setting."""
        return digest(self.to_json())

    def _check_tests(self) -> None:
        fits = not self.has_tests or isinstance(self.sampling, (Poisson, FullBatch))
        remedy = "change `sampling`: the cost of the test's fresh batch is proven for these two only"
        check.require(fits, "Poisson or FullBatch sampling for tested updates", type(self.sampling).__name__, remedy)
        expected = "an analysis that charges every release, for tested updates"
        remedy = "remove `acceptance`, or use analysis=Composition()"
        check.require(not self.has_tests or self.analysis.composes, expected, type(self.analysis).__name__, remedy)
