"""Attacks with one user more or less stay below the certificate, and show where there would be none."""

import numpy as np
import pytest

from discreet import CappedRecords, SampledUsers, methods
from discreet.auditing.users import UserCanaries, user_game
from discreet.core.check import Refused
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon
from discreet.stages.unit import EachRecord

DELTA = 1e-2


def plan(unit: object, *, rate: float = 1.0, noise: float = 1.0, steps: int = 1) -> Plan:
    horizon = Horizon.of(records=1000, batch=1000 * rate, steps=steps)
    recipe = methods.dp_sgd(clip=0.5).using(unit=unit)  # type: ignore[arg-type]
    return recipe.bind(noise=noise, horizon=horizon, delta=DELTA, accept_large_delta=True)


@pytest.mark.parametrize("each", [1, 3, 60])
def test_sampled_users_with_many_huge_records(each: int) -> None:
    """Confidence 99.9 %: false alarms below 0.1 %. A full batch is the worst case."""
    row = user_game(plan(SampledUsers(per_user=3)), trials=4000, each=each).play(generator=np.random.default_rng(1))
    assert 0.4 * row.certified < row.audited <= row.certified


@pytest.mark.parametrize(("rate", "noise", "steps", "share"), [(1.0, 4.0, 1, 0.4), (0.3, 1.5, 2, 0.3)])
def test_capped_records_of_users(rate: float, noise: float, steps: int, share: float) -> None:
    which = plan(CappedRecords(per_user=4), rate=rate, noise=noise, steps=steps)
    row = user_game(which, trials=4000, each=30).play(generator=np.random.default_rng(2))
    assert share * row.certified < row.audited <= row.certified


def test_the_certificate_for_records_is_exceeded() -> None:
    """Negative control: what one record costs does not cover a user with four."""
    which = plan(CappedRecords(per_user=4), noise=4.0)
    row = user_game(which, trials=4000, each=30).play(generator=np.random.default_rng(3))
    record = plan(EachRecord(), noise=4.0).certificate().epsilon
    assert row.audited > record


def test_less_noise_is_noticed() -> None:
    """Negative control: the releases of half the noise exceed the certificate of the whole."""
    half = UserCanaries(plan=plan(SampledUsers(per_user=3), noise=0.4), each=10)
    prepared = user_game(plan(SampledUsers(per_user=3), noise=1.0), trials=4000)
    row = type(prepared)(**{**vars(prepared), "game": half}).play(generator=np.random.default_rng(4))
    assert row.audited > row.certified


def test_plans_for_records_are_refused() -> None:
    with pytest.raises(Refused, match="a plan that protects users"):
        UserCanaries(plan=plan(EachRecord()))
