"""Bounds of whole runs: events to the numbers that `feedback` and `last_iterate` take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from discreet.accounting.events import (
    ClippedFeedback,
    Gaussian,
    LastIterateRun,
    TruncatedPoissonSampled,
    WithoutReplacement,
    units,
)
from discreet.accounting.pld import Floats, Parts, Pld, Resolution
from discreet.accounting.rdp import ORDERS, Orders
from discreet.accounting.sampled import (
    highest_loss,
    truncated_pld,
    truncated_rdp,
    whitened_mu,
    with_noise,
    without_pld,
    without_rdp,
)
from discreet.core.relation import Neighbouring

if TYPE_CHECKING:
    from discreet.accounting import feedback, last_iterate


# Clipped error feedback -------------------------------------------------------------------------------------


def _feedback_run(event: ClippedFeedback) -> feedback.FeedbackSetting:
    from discreet.accounting import feedback

    return feedback.FeedbackSetting(
        rate=event.rate,
        steps=event.steps,
        batch=event.batch,
        clip=event.clip,
        feedback_clip=event.feedback_clip,
        noise_std=event.noise_std_on_mean,
        preclip=event.preclip,
    )


def feedback_mu(event: ClippedFeedback, relation: Neighbouring) -> float | None:
    """Without noise nothing is hidden."""
    return math.inf if event.noise_std_on_mean == 0 else None


def feedback_pld(event: ClippedFeedback, relation: Neighbouring, resolution: Resolution) -> Parts:
    """The mixture of one step, composed over the run: the one bound that composes with other events."""
    from discreet.accounting import feedback

    run = _feedback_run(event)
    step = feedback.mixture_step(rate=run.rate, held=run.held, fresh=run.fresh, grid=resolution.grid)
    return [(step, event.steps)]


def feedback_epsilon(event: ClippedFeedback, relation: Neighbouring, delta: float) -> tuple[float, str]:
    """The best of the bounds for the run alone."""
    from discreet.accounting import feedback

    bound = feedback.epsilon(_feedback_run(event), delta=delta)
    return bound.value, f"error feedback, {bound.name}"


def feedback_delta(event: ClippedFeedback, relation: Neighbouring, epsilon: float) -> float:
    """The best of the bounds for the run alone."""
    from discreet.accounting import feedback

    return feedback.delta(_feedback_run(event), epsilon=epsilon).value


# Last iterate -----------------------------------------------------------------------------------------------


def last_iterate_mu(event: LastIterateRun, relation: Neighbouring) -> float | None:
    """Full batch: the run is one Gaussian, sqrt(m)/z + shift sqrt(E(m, c)) at the best m."""
    from discreet.accounting import last_iterate

    step = event.step.event if not isinstance(event.step, Gaussian) else event.step
    if step.whitened.noise == 0:
        return math.inf
    if not isinstance(event.step, Gaussian):
        return None
    noise = 1 / whitened_mu(event.step, relation)
    mu, _ = last_iterate.gaussian_mu(steps=event.steps, noise=noise, shift=_shift(event), factor=event.expansion)
    return mu


def last_iterate_pld(event: LastIterateRun, relation: Neighbouring, resolution: Resolution) -> Parts:
    """Composition of all steps: what composes with other events."""
    return [(_step_pld(event, _noise(event) / units(relation), relation, resolution), event.steps)]


def last_iterate_rdp(event: LastIterateRun, relation: Neighbouring, orders: Orders) -> Floats:
    """Composition of all steps: what composes with other events."""
    return event.steps * _step_rdp(event, _noise(event) / units(relation), relation, orders)


def last_iterate_epsilon(event: LastIterateRun, relation: Neighbouring, delta: float) -> tuple[float, str]:
    """The best of the bounds for the run alone."""
    from discreet.accounting import last_iterate

    bound = last_iterate.epsilon(_last_iterate_run(event, relation), delta=delta)
    return bound.value, bound.name


def last_iterate_delta(event: LastIterateRun, relation: Neighbouring, epsilon: float) -> float:
    """The best of the bounds for the run alone."""
    from discreet.accounting import last_iterate

    return last_iterate.delta(_last_iterate_run(event, relation), epsilon=epsilon).value


def _noise(event: LastIterateRun) -> float:
    step = event.step if isinstance(event.step, Gaussian) else event.step.event
    return step.whitened.noise


def _shift(event: LastIterateRun) -> float:
    """The diameter in standard deviations of one update's noise: D / (eta sigma), sigma = z C / b."""
    return event.diameter * event.batch / (event.learning_rate * _noise(event) * event.clip)


def _step_pld(event: LastIterateRun, noise: float, relation: Neighbouring, resolution: Resolution) -> Pld:
    """One step with another multiplier, given against what one record moves."""
    step = with_noise(event.step, noise * units(relation))
    if isinstance(step, TruncatedPoissonSampled):
        return truncated_pld(step, relation, resolution)[0][0]
    assert isinstance(step, WithoutReplacement)
    return without_pld(step, relation, resolution)[0][0]


def _step_rdp(event: LastIterateRun, noise: float, relation: Neighbouring, orders: Orders) -> Floats:
    step = with_noise(event.step, noise * units(relation))
    if isinstance(step, TruncatedPoissonSampled):
        return truncated_rdp(step, relation, orders)
    assert isinstance(step, WithoutReplacement)
    return without_rdp(step, relation, orders)


def _last_iterate_run(event: LastIterateRun, relation: Neighbouring) -> last_iterate.BoundedRun:
    from discreet.accounting import last_iterate

    step = last_iterate.StepBound(
        noise=_noise(event) / units(relation),
        pld=lambda noise, grid: _step_pld(event, noise, relation, Resolution(grid)),
        rdp=lambda noise: _step_rdp(event, noise, relation, ORDERS),
        highest=lambda noise: highest_loss(with_noise(event.step, noise * units(relation)), relation, -50.0),
    )
    return last_iterate.BoundedRun(step=step, steps=event.steps, shift=_shift(event), factor=event.expansion)
