"""What certificates promise: properties, extremes, refusals, words, speed."""

import json
import math
import subprocess
import sys

import pytest
from deltas import delta_at
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting.accountants import Certificate, certify, pld_epsilon, rdp_epsilon
from discreet.accounting.charges import Charge
from discreet.accounting.events import (
    BallsInBinsEpoch,
    CountQuery,
    Event,
    Free,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    Queries,
    SelectionQuery,
    TruncatedPoissonSampled,
    Unamplified,
    WithoutReplacement,
)
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from timing import import_time, times_as_long

ADD_REMOVE, REPLACE_ONE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
FINE = 0.005  # what the accountants may add to the truth


def epsilon(charge: Charge, delta: float = 1e-5, relation: Neighbouring = ADD_REMOVE) -> float:
    return certify(charge, delta=delta, relation=relation).epsilon


def poisson(rate: float, noise: float, steps: int = 1) -> Charge:
    return Charge.of(PoissonSampled(rate, Gaussian(noise)), steps)


# Schedules ------------------------------------------------------------------------------------------------


def test_rounding_a_long_schedule_is_safe_and_small() -> None:
    charge = Charge(tuple((PoissonSampled(0.02, Gaussian(4 / k**0.25)), 1) for k in range(1, 301)))
    exact = pld_epsilon(charge, delta=1e-5, relation=ADD_REMOVE, grid=1e-3)
    assert exact <= epsilon(charge) <= exact * (1 + FINE)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "delta"),
    [
        (0.01, 1e4, 1000, 1e-5),  # both directions nearly alike: refining one of them must not end the search
        (1 - 1e-12, 1.0, 10, 1e-5),
        (0.0148, 0.443, 1032, 2e-6),
        (0.029, 8.32, 283, 2e-3),
        (0.192, 0.509, 2004, 2e-9),
    ],
)
def test_the_default_grid_is_fine_enough(rate: float, noise: float, count: int, delta: float) -> None:
    charge = poisson(rate, noise, count)
    found = epsilon(charge, delta)
    for grid in (2.0**-k for k in range(30)):
        finer = pld_epsilon(charge, delta=delta, relation=ADD_REMOVE, grid=grid)
        if finer < found * (1 + 1e-4):  # at a rate next to 1 the Gaussian without sampling is found, exactly
            break
    finest = pld_epsilon(charge, delta=delta, relation=ADD_REMOVE, grid=grid / 4)
    assert finest * (1 - 1e-4) <= found <= finest * 1.002


def test_a_mean_noise_would_not_be_safe() -> None:
    """Negative control: charging a schedule at its average noise understates it."""
    schedule = poisson(0.02, 0.7, 50) + poisson(0.02, 2.1, 50)
    assert epsilon(poisson(0.02, 1.4, 100)) < 0.9 * epsilon(schedule)


# Properties -----------------------------------------------------------------------------------------------

rates = st.floats(0.001, 0.5)
noises = st.floats(0.4, 8.0)
steps = st.integers(1, 2000)
deltas = st.floats(-12.0, -2.0).map(lambda power: 10**power)
SLACK = 1 + FINE  # both sides are upper bounds within this of the truth


@settings(max_examples=15)
@given(rate=rates, noise=noises, count=steps, delta=deltas, more=st.floats(1.05, 3.0))
def test_epsilon_is_monotone(rate: float, noise: float, count: int, delta: float, more: float) -> None:
    found = epsilon(poisson(rate, noise, count), delta)
    assert found >= 0
    assert math.isfinite(found)
    assert found <= epsilon(poisson(rate, noise, math.ceil(count * more)), delta) * SLACK
    assert found <= epsilon(poisson(min(1.0, rate * more), noise, count), delta) * SLACK
    assert found <= epsilon(poisson(rate, noise / more, count), delta) * SLACK
    assert found <= epsilon(poisson(rate, noise, count), delta / more) * SLACK


@settings(max_examples=15)
@given(rate=rates, noise=noises, count=steps, delta=deltas)
def test_the_certificate_is_at_most_every_bound(rate: float, noise: float, count: int, delta: float) -> None:
    charge = poisson(rate, noise, count)
    found = epsilon(charge, delta)
    assert found <= rdp_epsilon(charge, delta=delta, relation=ADD_REMOVE)
    assert found <= pld_epsilon(charge, delta=delta, relation=ADD_REMOVE, grid=0.02) * SLACK
    whole = epsilon(Charge.of(Gaussian(noise), count), delta)
    assert found <= whole * SLACK


some_events = st.one_of(
    st.builds(Gaussian, st.floats(1.0, 20.0)),
    st.builds(PoissonSampled, st.sampled_from([0.01, 0.05]), st.builds(Gaussian, st.floats(0.8, 4.0))),
    st.just(Free()),
)
parts = st.lists(st.tuples(some_events, st.integers(1, 20)), min_size=1, max_size=5)


@settings(max_examples=15)
@given(items=parts, order=st.randoms(use_true_random=False), cut=st.integers(0, 5))
def test_composition_is_free_of_order_and_of_cuts(items: list[tuple[Event, int]], order: object, cut: int) -> None:
    charge = Charge(tuple(items))
    shuffled = list(items)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    again = Charge(tuple(shuffled[:cut])) + Charge(tuple(shuffled[cut:]))
    assert again == charge
    assert hash(again) == hash(charge)
    assert epsilon(again) == epsilon(charge)


def test_repeating_is_adding() -> None:
    step = poisson(0.01, 1.0)
    assert step * 6 == step + step + step + step + step + step == 6 * step
    assert epsilon(step * 600) > 1.5 * epsilon(step * 100)  # a forgotten count would cost nothing


# Extremes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(0.0),
        CountQuery(0.0),
        SelectionQuery(0.0, 1.0),
        Queries((Gaussian(1.0), Gaussian(0.0))),
        PoissonSampled(0.01, Gaussian(0.0)),
        TruncatedPoissonSampled(0.01, 20, 1000, Gaussian(0.0)),
        BallsInBinsEpoch(3, Gaussian(0.0)),
        Unamplified(Gaussian(0.0)),
        NonPrivate(),
    ],
    ids=lambda event: event.kind,
)
def test_without_noise_epsilon_is_infinite(event: Event) -> None:
    certificate = certify(Charge.of(event) + poisson(0.01, 1.0), delta=1e-5, relation=ADD_REMOVE)
    assert certificate.epsilon == math.inf
    assert certificate.to_json()["epsilon"] == "inf"
    assert delta_at(Charge.of(event), epsilon=3.0, relation=ADD_REMOVE) == 1.0


def test_nothing_costs_nothing() -> None:
    for charge in (Charge(), Charge.of(Free(), 1000)):
        assert epsilon(charge) == 0
        assert pld_epsilon(charge, delta=1e-5, relation=ADD_REMOVE) == 0
        assert rdp_epsilon(charge, delta=1e-5, relation=ADD_REMOVE) == 0
        assert delta_at(charge, epsilon=0.0, relation=ADD_REMOVE) == 0


@pytest.mark.parametrize("delta", [1e-300, 1e-50, 1e-15, 0.5, 1 - 1e-9])
@pytest.mark.parametrize(
    ("rate", "noise", "count"),
    [(1e-9, 1.0, 10), (0.01, 1e-6, 1000), (0.01, 1e6, 1000), (0.999999, 1.0, 10), (0.5, 0.02, 1), (0.3, 5.0, 10**7)],
)
def test_extremes_give_numbers(rate: float, noise: float, count: int, delta: float) -> None:
    found = epsilon(poisson(rate, noise, count), delta)
    assert found >= 0
    assert not math.isnan(found)


@pytest.mark.parametrize("mu", [1e-9, 1e-3, 1.0, 1e3, 1e8])
def test_exact_gaussians_stay_numbers(mu: float) -> None:
    for delta in (1e-300, 1e-5, 0.9):
        found = epsilon(Charge.of(Gaussian(1 / mu)), delta)
        assert 0 <= found < math.inf
        assert 0 <= delta_at(Charge.of(Gaussian(1 / mu)), epsilon=found, relation=ADD_REMOVE) <= delta * (1 + 1e-6)


# What is not proven is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (PoissonSampled(0.1, Gaussian(1.0)), REPLACE_ONE),
        (TruncatedPoissonSampled(0.1, 5, 20, Gaussian(1.0)), REPLACE_ONE),
        (WithoutReplacement(20, 5, Gaussian(1.0)), ADD_REMOVE),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_samplers_are_refused_under_the_wrong_relation(event: Event, relation: Neighbouring) -> None:
    with pytest.raises(Refused, match=f"{event.kind} under .*got relation={relation}.*Remedy"):
        certify(Charge.of(event), delta=1e-5, relation=relation)


def test_an_unknown_event_is_refused() -> None:
    class Guess(Event, kind="guess"):
        pass

    with pytest.raises(Refused, match="proven bound"):
        certify(Charge.of(Guess()), delta=1e-5, relation=ADD_REMOVE)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, math.nan, "1e-5"])
def test_bad_deltas_are_refused(delta: float) -> None:
    for ask in (certify, pld_epsilon, rdp_epsilon):
        with pytest.raises(Refused, match="Remedy"):
            ask(Charge.of(Gaussian(1.0)), delta=delta, relation=ADD_REMOVE)


def test_bad_epsilons_and_grids_are_refused() -> None:
    with pytest.raises(Refused):
        delta_at(Charge.of(Gaussian(1.0)), epsilon=-1.0, relation=ADD_REMOVE)
    with pytest.raises(Refused):
        pld_epsilon(poisson(0.1, 1.0), delta=1e-5, relation=ADD_REMOVE, grid=0.0)


def test_bad_counts_are_refused() -> None:
    for count in (-1, 1.5, True, "3"):
        with pytest.raises(Refused):
            Charge.of(Gaussian(1.0), count)  # type: ignore[arg-type]
    with pytest.raises(Refused):
        Charge.of(Gaussian(1.0)) * -1
    with pytest.raises(Refused, match="an event"):
        Charge((("gaussian", 1),))  # type: ignore[arg-type]


# Samplers without amplification ---------------------------------------------------------------------------


def test_unamplified_steps_cost_full_gaussians() -> None:
    full = epsilon(Charge.of(Gaussian(4.0), 30))
    assert epsilon(Charge.of(Unamplified(Gaussian(8.0)), 30)) == full  # every batch may move by two clips
    assert epsilon(Charge.of(BallsInBinsEpoch(30, Gaussian(4.0)))) == pytest.approx(full, rel=1e-9)
    assert full > epsilon(poisson(0.1, 4.0, 30))


def test_taking_everything_is_no_sampling() -> None:
    assert epsilon(poisson(1.0, 2.0, 7)) == epsilon(Charge.of(Gaussian(2.0), 7))
    whole = Charge.of(WithoutReplacement(50, 50, Gaussian(2.0)), 7)
    assert epsilon(whole, relation=REPLACE_ONE) == epsilon(Charge.of(Gaussian(2.0), 7), relation=REPLACE_ONE)


def test_the_count_query_is_billed() -> None:
    """Opacus before 1.6 charged the gradient alone."""
    both = Charge.of(PoissonSampled(0.01, Queries((Gaussian(1.0), CountQuery(5.0)))), 1000)
    combined = (1.0 + 10.0**-2) ** -0.5
    assert epsilon(both) == pytest.approx(epsilon(poisson(0.01, combined, 1000)), rel=1e-9)
    assert epsilon(both) > epsilon(poisson(0.01, 1.0, 1000))


# What a certificate says ----------------------------------------------------------------------------------


def test_a_certificate_says_what_it_rests_on() -> None:
    charge = poisson(0.01, 1.0, 10) + Charge((), None, ("the clip was chosen on public data",))
    certificate = certify(charge, delta=1e-5, relation=ADD_REMOVE)
    body = json.loads(json.dumps(certificate.to_json()))
    assert body["accountant"] == "PLD"
    assert body["relation"] == "add/remove"
    assert body["delta"] == 1e-5
    assert body["epsilon"] == certificate.epsilon
    assert "the clip was chosen on public data" in body["assumptions"]
    assert any("sampled independently" in words for words in body["assumptions"])


def test_the_winner_is_named() -> None:
    assert certify(Charge.of(Gaussian(1.0)), delta=1e-5, relation=ADD_REMOVE).accountant == "exact Gaussian"
    assert certify(poisson(0.01, 1.0), delta=1e-5, relation=ADD_REMOVE).accountant == "PLD"
    assert certify(Charge.of(NonPrivate()), delta=1e-5, relation=ADD_REMOVE).accountant == "none"
    assert Certificate(1.0, 1e-5, ADD_REMOVE, "PLD").assumptions == ()


# Speed and imports ----------------------------------------------------------------------------------------


def test_long_runs_and_long_schedules_cost_little_more_than_short_ones() -> None:
    """Measured: 7 times as long for 1000 times the steps, 1.5 for ten times the entries; no repeat hits a cache."""

    def steps(count: int, repeat: int) -> None:
        epsilon(poisson(0.0123 + repeat * 1e-4, 1.0, count))

    def entries(count: int, repeat: int) -> None:
        rate = 0.017 + repeat * 1e-4
        epsilon(Charge(tuple((PoissonSampled(rate, Gaussian(3.1 / k**0.25)), 1) for k in range(1, count + 1))))

    epsilon(poisson(0.3, 2.0))  # imports
    assert times_as_long(lambda repeat: steps(10**6, repeat), lambda repeat: steps(10**3, repeat)) < 50
    assert times_as_long(lambda repeat: entries(1000, repeat), lambda repeat: entries(100, repeat)) < 8


def test_accounting_starts_without_torch_and_quickly() -> None:
    program = (
        "import sys, discreet.accounting.accountants; print('torch' in sys.modules, 'dp_accounting' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    assert import_time("discreet.accounting.accountants") < 4 * import_time("numpy")


def test_accounting_a_run_does_not_load_torch() -> None:
    program = (
        "import sys; from discreet.accounting.accountants import certify; "
        "from discreet.accounting.charges import Charge; from discreet.core.relation import Neighbouring; "
        "from discreet.accounting.events import Gaussian, PoissonSampled; "
        "charge = Charge.of(PoissonSampled(0.1, Gaussian(1.0)), 10); "
        "certify(charge, delta=1e-5, relation=Neighbouring.ADD_REMOVE); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
