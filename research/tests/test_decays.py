"""Decays as arguments of the recipes, and the choice among them on public stand-in data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from discreet import methods
from discreet.core.check import Refused
from discreet.methods.d2p2.recipes import Decay, InverseFourthRoot, InverseRoot, decaying
from discreet.stages.sampling import Horizon
from discreet.stages.schedule import Constant, Exponential, Linear, Period
from research import best_schedule as schedules
from research.best_schedule import DecayCandidate, ScheduleTrial, choose_schedule

HORIZON = Horizon.of(records=1000, batch=100, epochs=4)


@pytest.mark.parametrize("recipe", [methods.d2p2_sgd, methods.d2p_sgd])
def test_every_decay_is_a_choice_of_the_recipes(recipe: type) -> None:
    for given, expected in (
        ({}, InverseFourthRoot()),
        ({"decay": "inverse-root"}, InverseRoot()),
        ({"decay": "constant"}, Constant()),
        ({"decay": "linear", "decay_to": 0.5, "decay_over": 4}, Linear(last=0.5, periods=4)),
        ({"decay": "exponential", "decay_to": 0.25, "decay_over": 4}, Exponential(rho=4.0, periods=4)),
        (
            {"decay": "linear", "decay_to": 0.5, "decay_over": 40, "decay_per": "step"},
            Linear(last=0.5, periods=40, period=Period.STEP),
        ),
    ):
        plan = recipe(**given)
        assert plan.schedule == expected
        assert plan.bind(noise=1.0, horizon=HORIZON, delta=1e-5).certificate().epsilon > 0


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"decay": "linear"}, "decay_to and decay_over"),
        ({"decay": "exponential", "decay_to": 0.5}, "decay_to and decay_over"),
        ({"decay": "linear", "decay_over": 4}, "decay_to and decay_over"),
        ({"decay": "constant", "decay_to": 0.5, "decay_over": 4}, "decay_to and decay_over"),
        ({"decay_to": 0.5, "decay_over": 4}, "decay_to and decay_over"),
        ({"decay": "linear", "decay_to": 1.5, "decay_over": 4}, "decay_to < 1"),
        ({"decay": "exponential", "decay_to": 0.0, "decay_over": 4}, "decay_to > 0"),
        ({"decay": "linear", "decay_to": 0.5, "decay_over": 1}, "periods"),
    ],
)
def test_a_decay_without_its_end_or_with_one_too_many_is_refused(given: dict[str, object], part: str) -> None:
    with pytest.raises(Refused, match=part):
        methods.d2p_sgd(**given)  # type: ignore[arg-type]


def test_a_stronger_decay_costs_more_at_the_same_first_noise() -> None:
    def price(to: float) -> float:
        recipe = methods.d2p_sgd(decay=Decay.LINEAR, decay_to=to, decay_over=4)
        return recipe.bind(noise=1.0, horizon=HORIZON, delta=1e-5).certificate().epsilon

    assert price(0.9) < price(0.7) < price(0.5)


# -- the choice -----------------------------------------------------------------------------------------------------


def scripted(monkeypatch: pytest.MonkeyPatch, found: dict[str, tuple[float, float]]) -> None:
    """Trials with these means and errors instead of training."""

    def trial(candidate: DecayCandidate, *_: object) -> ScheduleTrial:
        mean, error = found[str(candidate)]
        return ScheduleTrial(candidate=candidate, accuracy=mean, error=error, first_noise=2.0, last_noise=1.0)

    monkeypatch.setattr(schedules, "_try", trial)


SOME = (
    DecayCandidate(decay=Decay.CONSTANT),
    DecayCandidate(decay=Decay.LINEAR, to=0.5),
    DecayCandidate(decay=Decay.INVERSE_ROOT),
)


def test_the_best_is_chosen_where_it_stands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, {"constant": (0.8, 0.01), "linear to 0.5": (0.9, 0.01), "inverse-root": (0.7, 0.01)})
    choice = choose_schedule(epsilon=2.0, delta=1e-5, epochs=6, candidates=SOME)
    assert choice.schedule == Linear(last=0.5, periods=6)
    assert len(choice.trials) == 3
    assert choice.table.splitlines()[1].startswith("linear to 0.5")
    assert "chosen" in choice.table


def test_the_mildest_is_chosen_where_luck_may_have_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, {"constant": (0.89, 0.01), "linear to 0.5": (0.895, 0.02), "inverse-root": (0.7, 0.01)})
    assert choose_schedule(epsilon=2.0, delta=1e-5, epochs=6, candidates=SOME).schedule == Constant()


def test_a_real_choice_keeps_to_the_budget() -> None:
    heard: list[ScheduleTrial] = []
    some = (SOME[0], SOME[1])
    choice = choose_schedule(
        epsilon=3.0, delta=1e-5, epochs=4, steps=8, seeds=(0, 1), candidates=some, listener=heard.append
    )
    assert tuple(heard) == choice.trials
    constant, linear = choice.trials
    assert constant.first_noise == constant.last_noise
    assert linear.first_noise > constant.first_noise > linear.last_noise
    assert linear.last_noise == pytest.approx(linear.first_noise / 2)
    plan = methods.automatic().bind(
        noise=constant.first_noise, horizon=Horizon.of(records=1437, batch=256, steps=8), delta=1e-5
    )
    assert 3.0 * 0.99 <= plan.certificate().epsilon <= 3.0
    assert choice.candidate in some


def test_a_file_is_no_stand_in(tmp_path: object) -> None:
    import numpy as np

    file = f"{tmp_path}/own.npz"
    x, y = np.zeros((20, 3), dtype=np.float32), np.arange(20) % 2
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(Refused, match="npz file"):
        choose_schedule(epsilon=2.0, delta=1e-5, epochs=3, stand_in=file)


@pytest.mark.parametrize(
    ("given", "part"),
    [({"epochs": 1}, "epochs"), ({"epochs": 4, "candidates": ()}, "candidates"), ({"epochs": 4, "seeds": ()}, "seeds")],
)
def test_what_cannot_be_chosen_is_refused(given: dict[str, object], part: str) -> None:
    with pytest.raises(Refused, match=part):
        choose_schedule(epsilon=2.0, delta=1e-5, **given)  # type: ignore[arg-type]


def test_strength_is_the_first_noise_over_the_last() -> None:
    assert [candidate.strength(4) for candidate in SOME] == [1.0, 2.0, 2.0]
    assert DecayCandidate(decay=Decay.EXPONENTIAL, to=0.5).strength(4) == pytest.approx(2**0.75)


def test_the_order_of_candidates_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    same = (0.9, 0.01)
    scripted(monkeypatch, {"constant": same, "linear to 0.5": same, "inverse-root": same})
    for some in (SOME, SOME[::-1]):
        assert choose_schedule(epsilon=2.0, delta=1e-5, epochs=6, candidates=some).schedule == Constant()


def test_the_stretched_schedule_has_the_same_shape() -> None:
    schedule = decaying(Decay.INVERSE_ROOT, Period.EPOCH)
    table = schedules.stretched(schedule, 3, 9)
    assert table.factors == tuple(schedule.factor(epoch, 1) for epoch in (0, 0, 0, 1, 1, 1, 2, 2, 2))


def test_tuning_is_imported_without_torch() -> None:
    script = "import sys, research.best_schedule; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
