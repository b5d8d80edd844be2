"""Bounds of whole runs: events to the numbers that `feedback` and `last_iterate` take."""

import math
from typing import Any

from discreet.accounting import feedback, last_iterate, sampled
from discreet.accounting.events import ClippedFeedback, Gaussian, LastIterateRun, TruncatedPoissonSampled, units
from discreet.accounting.pld import Floats, Parts, Pld, Resolution
from discreet.accounting.rdp import ORDERS, Orders
from discreet.core.relation import Neighbouring


def feedback_mu(event: ClippedFeedback, relation: Neighbouring) -> float | None:
    """Infinite without noise; a run with noise is no Gaussian."""
    return math.inf if event.noise_std_on_mean == 0 else None


def feedback_pld(event: ClippedFeedback, relation: Neighbouring, resolution: Resolution) -> Parts:
    """The mixture of one step for every step: the only bound that composes with other events."""
    held, fresh = feedback.held(event), feedback.fresh(event)
    return [(feedback.mixture_step(rate=event.rate, held=held, fresh=fresh, grid=resolution.grid), event.steps)]


def feedback_epsilon(event: ClippedFeedback, relation: Neighbouring, delta: float) -> tuple[float, str]:
    bound = feedback.epsilon(event, delta=delta)
    return bound.value, f"error feedback, {bound.name}"


def last_iterate_mu(event: LastIterateRun, relation: Neighbouring) -> float | None:
    """With full batches the run is one Gaussian: sqrt(m)/z + shift sqrt(E(m, c)) at the best m."""
    if _noise(event) == 0:
        return math.inf
    if not isinstance(event.step, Gaussian):
        return None
    noise = 1 / sampled.whitened_mu(event.step, relation)
    mu, _ = last_iterate.gaussian_mu(steps=event.steps, noise=noise, shift=_shift(event), factor=event.expansion)
    return mu


def last_iterate_pld(event: LastIterateRun, relation: Neighbouring, resolution: Resolution) -> Parts:
    """All steps, as if every iterate were published: the bound that composes with other events."""
    return [(_step_pld(event, _noise(event) / units(relation), relation, resolution), event.steps)]


def last_iterate_rdp(event: LastIterateRun, relation: Neighbouring, orders: Orders) -> Floats:
    """All steps, as in `last_iterate_pld`."""
    return event.steps * _step_rdp(event, _noise(event) / units(relation), relation, orders)


def last_iterate_epsilon(event: LastIterateRun, relation: Neighbouring, delta: float) -> tuple[float, str]:
    bound = last_iterate.epsilon(last_iterate_run(event, relation), delta=delta)
    return bound.value, bound.name


def _noise(event: LastIterateRun) -> float:
    step = event.step if isinstance(event.step, Gaussian) else event.step.event
    return step.whitened.noise


def _shift(event: LastIterateRun) -> float:
    """The diameter in standard deviations of one update's noise: D / (eta sigma), sigma = z C / b."""
    return event.diameter * event.batch / (event.learning_rate * _noise(event) * event.clip)


def _step(event: LastIterateRun, noise: float, relation: Neighbouring) -> Any:
    """One step with another multiplier, which is relative to the change that one record causes."""
    return sampled.with_noise(event.step, noise * units(relation))


def _step_pld(event: LastIterateRun, noise: float, relation: Neighbouring, resolution: Resolution) -> Pld:
    bound = sampled.truncated_pld if isinstance(event.step, TruncatedPoissonSampled) else sampled.without_pld
    return bound(_step(event, noise, relation), relation, resolution)[0][0]


def _step_rdp(event: LastIterateRun, noise: float, relation: Neighbouring, orders: Orders) -> Floats:
    bound = sampled.truncated_rdp if isinstance(event.step, TruncatedPoissonSampled) else sampled.without_rdp
    return bound(_step(event, noise, relation), relation, orders)


def last_iterate_run(event: LastIterateRun, relation: Neighbouring) -> last_iterate.BoundedRun:
    """The run as `last_iterate` takes it."""
    step = last_iterate.StepBound(
        noise=_noise(event) / units(relation),
        pld=lambda noise, grid: _step_pld(event, noise, relation, Resolution(grid)),
        rdp=lambda noise: _step_rdp(event, noise, relation, ORDERS),
        highest=lambda noise: sampled.highest_loss(_step(event, noise, relation), relation, -50.0),
    )
    return last_iterate.BoundedRun(step=step, steps=event.steps, shift=_shift(event), factor=event.expansion)
