"""Private selection: certificates against brute force on small cases, dp-accounting, and an attack on the score."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from discreet.accounting.accountants import certify, rdp_epsilon, renyi_divergences
from discreet.accounting.best_of_runs import PoissonRuns, RunLaw, TruncatedNegativeBinomial, law_of
from discreet.accounting.calibration import calibrate_noise
from discreet.accounting.charges import Charge
from discreet.accounting.events import (
    BestOfRuns,
    CountQuery,
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    event_from_json,
)
from discreet.accounting.rdp import ORDERS
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring

ADD_REMOVE = Neighbouring.ADD_REMOVE
STEP = PoissonSampled(rate=0.03, event=Gaussian(noise=1.5))
LAWS = [
    TruncatedNegativeBinomial.of_mean(shape=0.0, mean=4.0),
    TruncatedNegativeBinomial.of_mean(shape=1.0, mean=10.0),
    TruncatedNegativeBinomial.of_mean(shape=-0.5, mean=3.0),
    TruncatedNegativeBinomial.of_mean(shape=3.0, mean=6.0),
    PoissonRuns(1.5),
    PoissonRuns(5.0),
]
Law = NDArray[np.float64]


def best_of(run: Law, law: RunLaw) -> Law:
    """The law of the best outcome, the later the better, by summing over K; then the probability of K = 0."""
    above = np.concatenate([[0.0], np.cumsum(run)])
    above[-1] = 1.0
    best, none, left = np.zeros(len(run)), 0.0, 1.0
    for k, probability in law.probabilities():
        left -= probability
        if k == 0:
            none = probability
        else:
            best += probability * np.diff(above**k)
        if left < 1e-10:
            break
    return np.append(best, none)


def stick(p: Law, q: Law, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def renyi(p: Law, q: Law, order: float) -> float:
    some = p > 0
    logs = order * np.log(p[some]) + (1 - order) * np.log(q[some])
    return (float(logs.max()) + math.log(float(np.exp(logs - logs.max()).sum()))) / (order - 1)


def pairs(count: int, seed: int) -> list[tuple[Law, Law]]:
    """Pairs of laws on four outcomes: random ones, near ones, and randomised response."""
    random = np.random.default_rng(seed)
    found = [(np.array([0.7, 0.1, 0.1, 0.1]), np.array([0.1, 0.7, 0.1, 0.1]))]
    found.append((np.array([0.95, 0.01, 0.02, 0.02]), np.array([0.95, 0.02, 0.01, 0.02])))
    for index in range(count):
        p = random.dirichlet(np.full(4, 0.3 + index % 3))
        q = p * np.exp(random.normal(0, 0.2 + 0.4 * (index % 4), 4))
        found.append((p + 1e-9, q / q.sum() + 1e-9))
    return [(p / p.sum(), q / q.sum()) for p, q in found]


def epsilon_at(p: Law, q: Law, delta: float) -> float:
    """The exact epsilon >= 0 of a pair in both directions: delta is linear in e^epsilon between the losses."""
    worst = 0.0
    for one, other in ((p, q), (q, p)):
        low, high = 0.0, 60.0
        if stick(one, other, 0.0) <= delta:
            continue
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if stick(one, other, middle) > delta else (low, middle)
        worst = max(worst, high)
    return worst


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_no_order_of_the_outcomes_exceeds_the_profile_bound(law: RunLaw) -> None:
    for p, q in pairs(3, seed=1):
        c = law.ratio(lambda delta, p=p, q=q: epsilon_at(p, q, delta))
        for order in itertools.permutations(range(4)):
            one, other = best_of(p[list(order)], law), best_of(q[list(order)], law)
            for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
                bound = law.mean * max(stick(p, q, epsilon - c), stick(q, p, epsilon - c))
                assert max(stick(one, other, epsilon), stick(other, one, epsilon)) <= bound + 1e-8


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_no_order_of_the_outcomes_exceeds_the_renyi_bound(law: RunLaw) -> None:
    orders = (1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
    for p, q in pairs(3, seed=2):
        run = np.array([max(renyi(p, q, a), renyi(q, p, a)) for a in orders])
        bound = law.renyi(run, orders)
        for order in itertools.permutations(range(4)):
            one, other = best_of(p[list(order)], law), best_of(q[list(order)], law)
            exact = np.array([max(renyi(one, other, a), renyi(other, one, a)) for a in orders])
            assert (exact <= bound + 1e-7).all()


def exceeds(law: RunLaw, *, mean: float, c: float | None) -> bool:
    for p, q in pairs(1, seed=3):
        ratio = law.ratio(lambda delta, p=p, q=q: epsilon_at(p, q, delta)) if c is None else c
        for order, epsilon in itertools.product(itertools.permutations(range(4)), (0.1, 0.5, 1.0, 2.0)):
            one, other = best_of(p[list(order)], law), best_of(q[list(order)], law)
            bound = mean * max(stick(p, q, epsilon - ratio), stick(q, p, epsilon - ratio))
            if stick(one, other, epsilon) > bound + 1e-8:
                return True
    return False


def test_the_brute_force_notices_a_bound_without_one_of_its_terms() -> None:
    """Negative control: neither the factor E[K] nor the ratio can be left out."""
    law = LAWS[1]
    assert not exceeds(law, mean=law.mean, c=None)
    assert exceeds(law, mean=1.0, c=None)
    assert exceeds(law, mean=law.mean, c=0.0)


@pytest.mark.parametrize(("shape", "mean"), [(0.0, 10.0), (1.0, 10.0), (0.5, 30.0), (2.0, 3.0)])
@pytest.mark.parametrize("run", [((Gaussian(2.0), 1),), ((STEP, 320),)], ids=["gaussian", "dp-sgd"])
def test_the_renyi_bound_agrees_with_dp_accounting(
    run: tuple[tuple[Event, int], ...], shape: float, mean: float
) -> None:
    event = run[0][0]
    gaussian = dp_accounting.GaussianDpEvent(2.0 if isinstance(event, Gaussian) else 1.5)
    one = gaussian if isinstance(event, Gaussian) else dp_accounting.PoissonSampledDpEvent(0.03, gaussian)
    orders = [float(order) for order in range(2, 65)]  # its fractional orders are loose
    theirs = RdpAccountant(orders)
    composed = dp_accounting.SelfComposedDpEvent(one, run[0][1])
    theirs.compose(RepeatAndSelectDpEvent(composed, mean, shape))
    ours = law_of(BestOfRuns((run,), mean, shape)).renyi(
        renyi_divergences(run, ADD_REMOVE)[np.isin(ORDERS, orders)], tuple(orders)
    )
    assert np.minimum.accumulate(ours[::-1])[::-1] == pytest.approx(np.array(theirs._rdp), rel=1e-6)


@pytest.mark.parametrize("mean", [2.0, 10.0])
def test_the_poisson_renyi_bound_agrees_with_dp_accounting(mean: float) -> None:
    orders = [float(order) for order in range(2, 65)]
    theirs = RdpAccountant(orders)
    theirs.compose(RepeatAndSelectDpEvent(dp_accounting.GaussianDpEvent(2.0), mean, math.inf))
    run = renyi_divergences(((Gaussian(2.0), 1),), ADD_REMOVE)[np.isin(ORDERS, orders)]
    ours, order = PoissonRuns(mean).renyi(run, tuple(orders)), np.array(orders)
    # Ours also pays for K = 0, at most log(1 + e^-mean / mean) / (order - 1).
    assert (ours >= np.array(theirs._rdp) - 1e-9).all()
    assert (ours <= np.array(theirs._rdp) + math.log1p(math.exp(-mean) / mean) / (order - 1) + 1e-9).all()


@pytest.mark.parametrize(
    ("mean", "shape", "epsilon"),
    [(3.0, 0.0, 2.49213), (10.0, 0.0, 2.93761), (10.0, 1.0, 3.14626), (10.0, None, 4.22821)],
)
def test_golden_numbers_of_one_gaussian_run(mean: float, shape: float | None, epsilon: float) -> None:
    """Found by a program of its own: Brent's method on the exact Gaussian profile with scipy."""
    found = certify(Charge.of(BestOfRuns((((Gaussian(2.0), 1),),), mean, shape)), delta=1e-5, relation=ADD_REMOVE)
    assert found.accountant == "profile of one run"
    assert epsilon <= found.epsilon <= epsilon * 1.003


def attacked(law: TruncatedNegativeBinomial, noise: float, delta: float) -> float:
    """The exact epsilon of a selection whose score is the released number itself: one Gaussian count."""
    from scipy.stats import norm

    y = np.linspace(-12 * noise, 12 * noise + 1, 400_001)
    worst = 0.0
    for mean, other in ((1.0, 0.0), (0.0, 1.0)):
        densities = [
            law.mean
            * (law.gamma / (1 - (1 - law.gamma) * norm.cdf(y, at, noise))) ** (law.shape + 1)
            * norm.pdf(y, at, noise)
            for at in (mean, other)
        ]
        low, high = 0.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            excess = np.maximum(densities[0] - math.exp(middle) * densities[1], 0).sum() * (y[1] - y[0])
            low, high = (middle, high) if excess > delta else (low, middle)
        worst = max(worst, low)
    return worst


@pytest.mark.parametrize(("shape", "mean"), [(0.0, 10.0), (1.0, 10.0), (0.0, 100.0)])
def test_an_attack_on_the_score_stays_below_and_comes_near(shape: float, mean: float) -> None:
    event = BestOfRuns((((Gaussian(2.0), 1),),), mean, shape)
    shown = attacked(TruncatedNegativeBinomial.of_mean(shape=shape, mean=mean), 2.0, 1e-5)
    certified = certify(Charge.of(event), delta=1e-5, relation=ADD_REMOVE).epsilon
    one = certify(Charge.of(Gaussian(2.0)), delta=1e-5, relation=ADD_REMOVE).epsilon
    assert one < shown <= certified
    assert shown > 0.65 * certified


def test_the_law_of_k_is_a_law_with_its_mean() -> None:
    for law in LAWS:
        ks = list(itertools.islice(law.probabilities(), 5000))
        assert math.fsum(p for _, p in ks) == pytest.approx(1, abs=1e-9)
        assert math.fsum(k * p for k, p in ks) == pytest.approx(law.mean, rel=1e-6)
        first = ks[0][0]
        assert law.draw(0.0) == first
        assert law.draw(ks[0][1] * 1.0001) == first + 1
    assert TruncatedNegativeBinomial.of_mean(shape=0.0, mean=10.0).least_with(0.99) > 10


def test_a_candidate_costs_as_much_as_its_worst_setting_at_each_order_and_delta() -> None:
    cheap, dear = ((Gaussian(4.0), 1),), ((STEP, 320), (CountQuery(2.0), 1))
    alone, both = (
        certify(Charge.of(BestOfRuns(c, 5.0)), delta=1e-5, relation=ADD_REMOVE) for c in ((dear,), (cheap, dear))
    )
    assert both.epsilon == alone.epsilon
    assert set(both.assumptions) >= {text for text in alone.assumptions if "sampled independently" in text} != set()


def test_a_selection_composes_with_a_run_by_renyi_divergences() -> None:
    event = BestOfRuns((((STEP, 320),),), 5.0)
    total = Charge.of(event) + Charge.of(STEP, 320)
    found = certify(total, delta=1e-5, relation=ADD_REMOVE)
    assert found.accountant == "RDP"
    assert found.epsilon == rdp_epsilon(total, delta=1e-5, relation=ADD_REMOVE)
    assert found.epsilon > certify(Charge.of(event), delta=1e-5, relation=ADD_REMOVE).epsilon


def test_each_candidate_gets_the_noise_that_the_whole_budget_allows() -> None:
    def charge(noise: float) -> Charge:
        return Charge.of(BestOfRuns((((PoissonSampled(0.03, Gaussian(noise)), 320),),), 8.0))

    noise = calibrate_noise(charge, epsilon=3.0, delta=1e-5, relation=ADD_REMOVE)
    assert 2.98 <= certify(charge(noise), delta=1e-5, relation=ADD_REMOVE).epsilon <= 3.0


def test_a_selection_of_runs_without_a_bound_has_none() -> None:
    event = BestOfRuns((((NonPrivate(), 1),),), 5.0)
    assert certify(Charge.of(event), delta=1e-5, relation=ADD_REMOVE).epsilon == math.inf


def test_the_event_survives_json_and_refuses_what_it_is_not_proven_for() -> None:
    event = BestOfRuns((((STEP, 320), (CountQuery(2.0), 1)), ((Gaussian(3.0), 2),)), 5.0, None)
    assert event_from_json(event.to_json()) == event
    with pytest.raises(Refused, match="mean > 1"):
        BestOfRuns((((STEP, 1),),), 1.0)
    with pytest.raises(Refused, match="shape > -1"):
        BestOfRuns((((STEP, 1),),), 2.0, -1.0)
    with pytest.raises(Refused, match="no selections"):
        BestOfRuns((((event, 1),),), 2.0)
    with pytest.raises(Refused, match="at least one cost"):
        BestOfRuns((), 2.0)
    with pytest.raises(Refused, match="poisson-sampled under"):
        certify(Charge.of(event), delta=1e-5, relation=Neighbouring.REPLACE_ONE)


@pytest.mark.parametrize(("shape", "mean"), [(500.0, 2000.0), (-0.5, 20.0), (1e5, 300.0), (0.0, 1.001), (None, 2000.0)])
def test_the_law_that_is_drawn_is_the_one_that_is_certified(shape: float | None, mean: float) -> None:
    """The first probability of (500, 2000) is below the smallest float: all were 0, and K was always ten million."""
    law = law_of(BestOfRuns((((Gaussian(1.0), 1),),), mean, shape))
    drawn = list(itertools.islice(law.probabilities(), 50_000))
    assert math.fsum(p for _, p in drawn) == pytest.approx(1, abs=1e-10)
    assert math.fsum(k * p for k, p in drawn) == pytest.approx(law.mean, rel=1e-8)
    assert law.draw(0.0) == min(k for k, p in drawn if p > 0)
    assert law.draw(1 - 2**-53) < 50_000  # also if the probabilities add up to less than 1 by rounding
    if isinstance(law, TruncatedNegativeBinomial):  # the variance, from f''(1) = mean (1 + shape) (1 - gamma) / gamma
        second = math.fsum(k * (k - 1) * p for k, p in drawn)
        assert second == pytest.approx(law.mean * (1 + law.shape) * (1 - law.gamma) / law.gamma, rel=1e-6)


@pytest.mark.parametrize(("shape", "mean"), [(0.0, 1e6), (-0.9, 5.0), (-0.999, 5.0), (None, 1e7)])
def test_a_law_that_cannot_be_drawn_is_refused(shape: float | None, mean: float) -> None:
    """Draws end at ten million: the certificate would be that of another law."""
    with pytest.raises(Refused, match="expect fewer runs"):
        law_of(BestOfRuns((((Gaussian(1.0), 1),),), mean, shape))
