"""What a search costs, and the noise of each candidate: from public numbers, before any record is read."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from discreet.accounting.accountants import Certificate, certify
from discreet.accounting.best_of_runs import RunLaw, law_of
from discreet.accounting.calibration import calibrate_noise
from discreet.accounting.charges import Charge, Counted
from discreet.accounting.events import BestOfRuns, CountQuery
from discreet.core import check
from discreet.core.own_files import require_classes
from discreet.core.relation import Neighbouring
from discreet.runs.config import RunConfig, usual_sampling
from discreet.runs.defaults import complete, records_of, settle
from discreet.runs.tuning.space import Setting, Space, applied
from discreet.stages.delta import check_delta
from discreet.stages.sampling import Poisson

Planned = tuple[tuple[str, Setting], ...]

_ROUNDS = 8
_SCORE_SHARE = 0.5  # the epsilon of the score as a share of the whole: less than a run, so that the score is free


@final
@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """A search.

    config      the run that is searched around: its `epsilon` is the budget of the whole search, `out` its directory
    space       what is drawn for each candidate
    runs        E[K], the expected number of candidates
    shape       of the truncated negative binomial law of K: 0 logarithmic, 1 geometric
    held_out    the share of the records that scores the candidates, by a noisy count; 0: the test records do, which you
                declare public
    workers     how many candidates are trained at once; None: one for each core, four at most
    not_before  seconds after the start before which nothing is shown, so that the time tells less about K
    """

    config: RunConfig
    space: Space
    runs: float = 5.0
    shape: float = 0.0
    held_out: float = 0.1
    workers: int | None = None
    not_before: float = 0.0

    def __post_init__(self) -> None:
        config = self.config
        require_classes(config.task, "discreet tune")
        remedy = "give the budget of the whole search: epsilon=3, --epsilon 3"
        check.require(config.epsilon is not None and not config.calibrate_to_claim, "epsilon", "none", remedy)
        check.require(config.seed is None, "secret randomness", f"seed={config.seed}", "drop the seed: it reveals K")
        check.not_negative("seconds", not_before=self.not_before)
        check.not_negative("the share of the records that scores candidates", held_out=self.held_out)
        check.require(self.held_out < 1, "held_out < 1", f"held_out={self.held_out}", "e.g. 0.1")
        sampling = config.sampling or usual_sampling(config.method)
        fits = self.held_out == 0 or sampling == "poisson"
        remedy = "use Poisson sampling, or score on public test records: held_out=0, --score-on-test"
        check.require(fits, "Poisson sampling with held-out records", f"sampling={sampling}", remedy)
        remedy = "drop keep_best: a search pays for one choice, among its runs"
        check.require(not config.keep_best, "the last parameters of each candidate", "keep_best", remedy)
        BestOfRuns((((CountQuery(1.0), 1),),), self.runs, self.shape)  # refuses a law that does not exist
        self.space.check_against(config)

    def to_json(self) -> dict[str, Any]:
        """What a resumed search must repeat."""
        own = {"runs": self.runs, "shape": self.shape, "held_out": self.held_out}
        config = {name: value for name, value in self.config.to_json().items() if name not in ("out", "budget")}
        return {"space": self.space.to_json(), **own, "config": config}


@final
@dataclass(frozen=True, kw_only=True)
class TuneBill:
    """The certified event of a search, the noise of each candidate and of its score.

    noises  the noise multiplier of each planned combination of settings
    sigma   the standard deviation of the noise on the held-out count; 0: the score is public
    records the public number of training records (or users) of a candidate
    unit    whom the certificate protects
    """

    event: BestOfRuns
    certificate: Certificate
    noises: Mapping[Planned, float]
    sigma: float
    records: int
    unit: str = "record"

    @property
    def law(self) -> RunLaw:
        return law_of(self.event)

    @property
    def charge(self) -> Charge:
        return Charge(((self.event, 1),), assumptions=self.certificate.assumptions)

    @property
    def relation(self) -> Neighbouring:
        return self.certificate.relation


def bill_of(settings: TuneSettings) -> TuneBill:
    """Calibrate every candidate so that the best of K of them, with its score, is within the budget."""
    config = complete(settings.config)
    everyone, epsilon = records_of(config, None), config.epsilon
    assert epsilon is not None
    check_delta(config.delta, everyone, accepted=config.accept_large_delta)
    records = max(1, round(everyone * (1 - settings.held_out)))
    relation = Neighbouring(config.relation or Poisson.relations[0])
    calibrated = functools.partial(calibrate_noise, delta=config.delta, relation=relation)
    one = dataclasses.replace(settings.config, records=records, epsilon=None, noise=1.0, budget=None)
    plans = [tuple(sorted(planned.items())) for planned in settings.space.planned()]
    costs = {planned: _charge(one, planned, 1.0) for planned in plans}

    def selection(*candidates: Counted) -> BestOfRuns:
        return BestOfRuns(tuple(dict.fromkeys(candidates)), settings.runs, settings.shape)

    def alone(planned: Planned, noise: float) -> Charge:
        return Charge.of(selection(_charge(one, planned, noise).certified))

    def scoring(sigma: float) -> Charge:
        return Charge.of(selection(((CountQuery(sigma), 1),)))

    sigma = calibrated(scoring, epsilon=_SCORE_SHARE * epsilon) if settings.held_out else 0.0
    scored: tuple[Counted, ...] = (((CountQuery(sigma), 1),),) if sigma else ()
    assumed = tuple(text for cost in costs.values() for text in cost.assumptions)
    target = epsilon
    for _ in range(_ROUNDS):
        by_cost: dict[Counted, float] = {}  # settings of one cost have one noise
        for planned, cost in costs.items():
            if cost.certified not in by_cost:
                by_cost[cost.certified] = calibrated(functools.partial(alone, planned), epsilon=target)
        noises = {planned: by_cost[cost.certified] for planned, cost in costs.items()}
        event = selection(*(_charge(one, planned, noise).certified for planned, noise in noises.items()), *scored)
        charge = Charge(((event, 1),), assumptions=assumed)
        certificate = certify(charge, delta=config.delta, relation=relation)
        if certificate.epsilon <= epsilon:
            break
        # Different settings decide different parts of the bound: a little less for each.
        target *= 0.998 * epsilon / certificate.epsilon
    within, got = certificate.epsilon <= epsilon, f"epsilon={certificate.epsilon:.4g}"
    check.require(within, "candidates within one budget", got, "search fewer settings that change the cost")
    unit = config.protected().name
    return TuneBill(event=event, certificate=certificate, noises=noises, sigma=sigma, records=records, unit=unit)


def candidate_config(settings: TuneSettings, bill: TuneBill, drawn: Mapping[str, Setting], out: str) -> RunConfig:
    """The run of one candidate, with the noise that was planned for its settings."""
    planned = {name for combination in bill.noises for name, _ in combination}
    noise = bill.noises[tuple(sorted((name, value) for name, value in drawn.items() if name in planned))]
    config = dataclasses.replace(
        settings.config, epsilon=None, noise=noise, records=bill.records, out=out, budget=None, eval_every=None
    )
    return applied(config, drawn)


def _charge(config: RunConfig, planned: Planned, noise: float) -> Charge:
    """The cost of a candidate with this noise."""
    _, plan = settle(applied(dataclasses.replace(config, noise=noise), dict(planned)), None)
    return plan.charge()
