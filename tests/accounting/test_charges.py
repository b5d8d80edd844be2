"""Claims: the papers' own numbers, and silence where their hypotheses fail."""

import math

import pytest

from discreet.accounting.accountants import certify, rdp_epsilon
from discreet.accounting.charges import AccountedClaim, Accounting, Charge, Claim
from discreet.accounting.events import ClippedFeedback, Free, Gaussian, PoissonSampled
from discreet.accounting.rdp import sampled_gaussian
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.methods.dicesgd.recipes import DiceClaim
from discreet.methods.dpsgd_dc.recipes import LastIterateClaim, _lemma_a13
from discreet.methods.geodp.recipes import GeoDpOneStepClaim


def accounted(count: int = 2344, by: Accounting = Accounting.PLD) -> AccountedClaim:
    step = PoissonSampled(0.017, Gaussian(1.1))
    return AccountedClaim(events=((step, count),), by=by, theorem="Theorem 1", assumes="projection is free")


# Accounted claims -------------------------------------------------------------------------------------------


def test_accounted_claims_are_dp_sgd_accounting() -> None:
    assert accounted().epsilon(1e-5) == pytest.approx(4.2586, rel=1e-3)
    by_rdp = accounted(by=Accounting.RDP).epsilon(1e-5)
    charge = Charge.of(PoissonSampled(0.017, Gaussian(1.1)), 2344)
    assert by_rdp == rdp_epsilon(charge, delta=1e-5, relation=Neighbouring.ADD_REMOVE)
    assert by_rdp == pytest.approx(4.656, abs=1e-3)


def test_accounted_claims_compose() -> None:
    joined = accounted(1000).joined(accounted(1344))
    assert joined is not None
    assert joined.epsilon(1e-5) == accounted(2344).epsilon(1e-5)
    assert accounted(586).repeated(4) == joined
    assert accounted().joined(accounted(by=Accounting.RDP)) is None


def test_claims_ride_along_with_charges() -> None:
    step = PoissonSampled(0.017, Gaussian(1.1))
    charge = Charge.of(step, claimed=accounted(1))
    assert (charge * 2344).claimed == accounted(2344)
    assert (charge + charge).claimed == accounted(2)
    assert (charge + Charge()).claimed == accounted(1)
    assert (Charge.of(Free()) + charge).claimed == accounted(1)
    # A part that no paper speaks about silences the claim for the whole.
    assert (charge + Charge.of(Gaussian(3.0))).claimed is None
    assert (charge * 0).claimed is None


def test_a_claim_is_never_used_for_the_certificate() -> None:
    step = PoissonSampled(0.017, Gaussian(1.1))
    cheap = AccountedClaim(events=((Gaussian(1000.0), 1),), by=Accounting.PLD, theorem="none", assumes="everything")
    plain, dressed = Charge.of(step, 100), Charge.of(step, 100, claimed=cheap)
    relation = Neighbouring.ADD_REMOVE
    assert certify(plain, delta=1e-5, relation=relation) == certify(dressed, delta=1e-5, relation=relation)


# GeoDP ------------------------------------------------------------------------------------------------------


def test_geodp_claims_one_step() -> None:
    claim = GeoDpOneStepClaim(noise=1.0, beta=1.0)
    assert claim.epsilon(1e-5) == pytest.approx(4.84481, abs=1e-5)
    assert claim.to_json(1e-5) == {"epsilon": claim.epsilon(1e-5), "delta": 1e-5, "theorem": claim.theorem}


def test_geodp_adds_the_uncovered_directions_to_delta() -> None:
    claim = GeoDpOneStepClaim(noise=2.0, beta=0.9)
    assert claim.delta(1e-5) == pytest.approx(0.1 + 1e-5)
    assert GeoDpOneStepClaim(noise=0.0, beta=1.0).epsilon(1e-5) == math.inf


def test_geodp_says_nothing_about_several_steps() -> None:
    several = GeoDpOneStepClaim(noise=1.0, beta=1.0).repeated(10)
    assert several.steps == 10
    assert several.epsilon(1e-5) is None
    assert several.to_json(1e-5) is None
    assert several.one_step(1e-5) == pytest.approx(4.84481, abs=1e-5)
    assert several.joined(GeoDpOneStepClaim(noise=1.0, beta=1.0)) == GeoDpOneStepClaim(noise=1.0, beta=1.0, steps=11)
    assert several.joined(GeoDpOneStepClaim(noise=2.0, beta=1.0)) is None


# DiceSGD ----------------------------------------------------------------------------------------------------


def dice(*, records: int = 10_000, batch: float = 100, clip: float = 1.0, feedback: float = 1.0) -> DiceClaim:
    # Theorem 3.8 at epsilon 1: sigma^2 = 32 T (C1^2 + 2 (B C2)^2) ln(1/delta) / N^2.
    variance = 32 * 1000 * (clip**2 + 2 * (batch * feedback) ** 2) * math.log(1e5) / records**2
    run = ClippedFeedback(
        rate=batch / records,
        steps=1000,
        batch=batch,
        clip=clip,
        feedback_clip=feedback,
        noise_std_on_mean=math.sqrt(variance),
    )
    return DiceClaim(run=run, records=records)


def test_dice_claims_what_its_noise_was_chosen_for() -> None:
    assert dice().epsilon(1e-5) == pytest.approx(1.0, rel=1e-12)


def test_dice_claims_less_with_a_pre_clip() -> None:
    from dataclasses import replace

    claim = dice()
    clipped = replace(claim, run=replace(claim.run, preclip=2.0))
    assert clipped.epsilon(1e-5) == pytest.approx(math.sqrt(3 / 20_001), rel=1e-12)


def test_dice_claims_nothing_outside_its_hypotheses() -> None:
    assert dice(batch=2001).epsilon(1e-5) is None
    assert dice(batch=2000).epsilon(1e-5) is not None
    assert dice(feedback=0.5).epsilon(1e-5) is None
    assert dice().repeated(2) is None
    assert dice().repeated(1) == dice()


# DPSGD-GC and DPSGD-DC --------------------------------------------------------------------------------------


def figure_one(steps: int) -> LastIterateClaim:
    return LastIterateClaim(
        records=8,
        batch=2,
        clip=2.0,
        noise_std_on_mean=4.0,
        steps=steps,
        learning_rate=0.2,
        smoothness=1.0,
        diameter=1.0,
    )


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, 0.034375), (10, 0.34375), (50, 1.684375), (100, 1.684375), (500, 1.684375)]
)
def test_theorem_3_4_at_figure_1(steps: int, expected: float) -> None:
    assert figure_one(steps).rdp(1.1) == pytest.approx(expected, rel=1e-9)


def test_theorem_3_3_grows_for_ever() -> None:
    open_domain = LastIterateClaim(records=8, batch=2, clip=2.0, noise_std_on_mean=4.0, steps=500)
    assert open_domain.rdp(1.1) == pytest.approx(17.1875)


def test_the_conversion_is_lemma_2_4_at_its_best_order() -> None:
    claim = figure_one(10)
    orders = [1 + 0.001 * k for k in range(1, 60_000)]
    best = min(claim.rdp(order) + math.log(1e5) / (order - 1) for order in orders)
    found = claim.epsilon(1e-5)
    assert found is not None
    assert found == pytest.approx(best, rel=1e-6)
    assert found <= best * (1 + 1e-12)


def test_the_strengthened_form_counts_where_its_conditions_hold() -> None:
    large = LastIterateClaim(records=10_000, batch=100, clip=1.0, noise_std_on_mean=0.2, steps=1000)
    slope = 2 * 1000 / (10_000 * 100 * 0.04)
    plain = slope + 2 * math.sqrt(slope * math.log(1e5))
    found = large.epsilon(1e-5)
    assert found is not None
    assert found < 0.5 * plain
    crowded = LastIterateClaim(records=400, batch=100, clip=1.0, noise_std_on_mean=0.2, steps=1000)
    slope = 2 * 1000 / (400 * 100 * 0.04)
    assert crowded.epsilon(1e-5) == pytest.approx(slope + 2 * math.sqrt(slope * math.log(1e5)))


def test_lemma_a13_is_a_bound_where_it_applies() -> None:
    applied = 0
    for rate in (0.001, 0.01, 0.2):
        for noise in (4.1, 8.0, 20.0):
            for order in (2.0, 4.0, 8.0, 16.0, 32.0, 64.0):
                if _lemma_a13(order, rate, noise):
                    applied += 1
                    assert sampled_gaussian(rate, noise, (order,))[0] <= 2 * order * rate**2 / noise**2
    assert applied > 20
    assert not _lemma_a13(2.0, 0.3, 10.0)
    assert not _lemma_a13(2.0, 0.01, 4.0)
    assert not _lemma_a13(10_000.0, 0.01, 5.0)


def test_no_noise_no_claim_of_privacy() -> None:
    claim = LastIterateClaim(records=100, batch=10, clip=1.0, noise_std_on_mean=0.0, steps=1)
    assert claim.epsilon(1e-5) == math.inf
    body = claim.to_json(1e-5)
    assert body is not None
    assert body["epsilon"] == "inf"


# All of them ------------------------------------------------------------------------------------------------

CLAIMS: list[Claim] = [accounted(), GeoDpOneStepClaim(noise=1.0, beta=1.0), dice(), figure_one(10)]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: type(claim).__name__)
def test_every_claim_names_its_theorem_and_what_it_assumes(claim: Claim) -> None:
    assert claim.theorem
    assert claim.assumes
    smaller, larger = claim.epsilon(1e-3), claim.epsilon(1e-9)
    assert smaller is not None
    assert larger is not None
    assert 0 < smaller < larger
    body = claim.to_json(1e-5)
    assert body is not None
    assert set(body) == {"epsilon", "delta", "theorem"}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: type(claim).__name__)
def test_bad_deltas_are_refused(claim: Claim) -> None:
    with pytest.raises(Refused):
        claim.epsilon(0.0)


def test_half_a_domain_is_refused() -> None:
    with pytest.raises(Refused, match="diameter"):
        LastIterateClaim(records=8, batch=2, clip=2.0, noise_std_on_mean=4.0, steps=1, diameter=1.0)
