"""D2P2-SGD (arXiv 2509.09485), Figures 4 to 6: the impact of sigma, batch and reduction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Final

from discreet.methods import METHODS
from discreet.runs import RunConfig
from discreet.stages.sampling import Horizon
from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.d2p2.settings import (
    DELTA,
    FAMILY,
    GUESSES,
    PUBLISHED,
    RECORDS,
    UNIT,
    Member,
    Setting,
    figure,
    first_seed,
    reduced,
)
from research.reproductions.experiment import Curve, Outcome, Row, Status

_REMOVED: Final = "share of dimensions removed"
_SIGMAS: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)


def figures_4_5_6(bench: Bench) -> Outcome:
    """Change one of sigma 3, batch 1024 and reduction 0.3 at a time; fewer epochs than the paper's 40."""
    setting = dataclasses.replace(PUBLISHED, epochs=1 if bench.quick else 16)
    sigmas = (1.0, 6.0) if bench.quick else (1.0, 3.0, 10.0)
    batches = (512.0, 1024.0) if bench.quick else (256.0, 512.0, 1024.0)
    reductions = (0.3, 0.9) if bench.quick else (0.0, 0.1, 0.3, 0.6, 0.9)
    rows: list[Row] = []

    def curve(name: str, axis: str, values: tuple[float, ...], run: Callable[[float], RunConfig]) -> Curve:
        own = [accuracy_row(f"{name}, {axis} {value:g}", (first_seed(bench, run(value)),)) for value in values]
        rows.extend(own)
        return Curve(name=name, x=values, y=tuple(row.ours or 0.0 for row in own))

    def with_sigma(member: Member, sigma: float) -> RunConfig:
        return setting.config(method=member.method, parameters=member.published, noise=sigma)

    def with_batch(batch: float) -> RunConfig:
        return dataclasses.replace(setting, batch=int(batch)).config(method=d2p2.method, parameters=d2p2.published)

    def with_reduction(reduction: float) -> RunConfig:
        if reduction == 0:  # removing nothing is the identity, exactly: a run of Figure 4
            return setting.config(method="d2p-sgd")
        return setting.config(method=d2p2.method, parameters=reduced(d2p2.published, reduction))

    d2p2 = FAMILY[-1]
    by_sigma = [curve(member.name, "sigma", sigmas, partial(with_sigma, member)) for member in FAMILY]
    by_batch = curve(d2p2.name, "batch", batches, with_batch)
    by_reduction = curve(d2p2.name, "reduction", reductions, with_reduction)
    return Outcome(
        unit=UNIT,
        rows=tuple(rows),
        figures=(
            figure("4-accuracy-sigma", "Accuracy against sigma", "sigma", UNIT, by_sigma),
            figure("5-epsilon-sigma", *_PRICE_LABELS, _prices_by_sigma(PUBLISHED)),
            figure("6a-batch", "D2P2-SGD, sigma 3: accuracy against batch", "expected batch", UNIT, [by_batch]),
            figure("6b-reduction", "D2P2-SGD, sigma 3: accuracy against reduction", _REMOVED, UNIT, [by_reduction]),
        ),
        status=Status.PARTLY,
        summary=_summary(setting.epochs, by_sigma, by_batch, by_reduction),
        guesses=("The figures print no numbers, so that only their trends can be compared.", *GUESSES[3:]),
    )


def _summary(epochs: int, by_sigma: list[Curve], by_batch: Curve, by_reduction: Curve) -> str:
    constant, both = by_sigma[0], by_sigma[-1]
    best, _ = max(zip(by_reduction.x, by_reduction.y, strict=True), key=lambda point: point[1])
    return (
        f"{epochs} epochs, one seed. D2P2-SGD from sigma {both.x[0]:g} to {both.x[-1]:g}: {both.y[0]:.1f} % to "
        f"{both.y[-1]:.1f} %; DPSGD {constant.y[0]:.1f} % to {constant.y[-1]:.1f} %. From batch {by_batch.x[0]:g} to "
        f"{by_batch.x[-1]:g}: {by_batch.y[0]:.1f} % to {by_batch.y[-1]:.1f} % (the paper: larger is better). The best "
        f"reduction was {best:g} (the paper: 0.3). With orthonormal rows epsilon does not depend on the "
        "reduction, as Figure 6b says; with the paper's Gaussian matrices it does."
    )


_PRICE_LABELS: Final = ("Certified epsilon against sigma, 40 epochs of batch 1024", "sigma", "epsilon at delta 1e-5")


def _prices_by_sigma(setting: Setting) -> list[Curve]:
    horizon = Horizon.of(records=RECORDS, batch=setting.batch, epochs=setting.epochs)
    curves = []
    for name, method in (("constant noise", "auto-s"), ("z/k^(1/4)", "d2p-sgd")):
        recipe = METHODS[method].recipe()
        plans = [recipe.bind(noise=sigma, horizon=horizon, delta=DELTA) for sigma in _SIGMAS]
        curves.append(Curve(name=name, x=_SIGMAS, y=tuple(plan.certificate().epsilon for plan in plans)))
    return curves
