"""D2P2-SGD (arXiv 2509.09485), Figures 4 to 6: the impact of sigma, batch and reduction."""

from __future__ import annotations

import dataclasses
from typing import Final

from discreet.experiments.bench import Bench, accuracy_row
from discreet.experiments.d2p2_settings import (
    DELTA,
    FAMILY,
    GUESSES,
    PUBLISHED,
    RECORDS,
    UNIT,
    Setting,
    figure,
    first_seed,
    reduced,
)
from discreet.experiments.experiment import Curve, Outcome, Row, Status
from discreet.methods import METHODS
from discreet.runs import RunConfig
from discreet.stages.sampling import Horizon

_SIGMAS: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)


def figures_4_5_6(bench: Bench) -> Outcome:
    """One setting at a time away from sigma 3, batch 1024, reduction 0.3; fewer epochs than the paper's 40."""
    setting = dataclasses.replace(PUBLISHED, epochs=1 if bench.quick else 6)
    sigmas = (1.0, 6.0) if bench.quick else (1.0, 3.0, 6.0, 10.0)
    batches = (512, 1024) if bench.quick else (256, 512, 1024)
    reductions = (0.3, 0.9) if bench.quick else (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    rows: list[Row] = []

    def trained(label: str, config: RunConfig) -> float:
        row = accuracy_row(label, (first_seed(bench, config),))
        rows.append(row)
        return row.ours or 0.0

    by_sigma = []
    for member in FAMILY:
        found = [
            trained(
                f"{member.name}, sigma {sigma:g}",
                setting.config(method=member.method, parameters=member.published, noise=sigma),
            )
            for sigma in sigmas
        ]
        by_sigma.append(Curve(name=member.name, x=sigmas, y=tuple(found)))
    last = FAMILY[-1]
    by_batch = [
        trained(
            f"D2P2-SGD, batch {batch}",
            dataclasses.replace(setting, batch=batch).config(method=last.method, parameters=last.published),
        )
        for batch in batches
    ]
    by_reduction = [
        trained(
            f"D2P2-SGD, reduction {reduction:g}",
            setting.config(method=last.method, parameters=reduced(last.published, reduction)),
        )
        for reduction in reductions
    ]
    figures = (
        figure("4-accuracy-sigma", "Accuracy against sigma", "sigma", UNIT, by_sigma),
        figure("5-epsilon-sigma", *_PRICE_LABELS, _prices_by_sigma(PUBLISHED)),
        figure(
            "6a-batch",
            "D2P2-SGD: accuracy against batch size",
            "expected batch",
            UNIT,
            [Curve(name="sigma 3", x=tuple(map(float, batches)), y=tuple(by_batch))],
        ),
        figure(
            "6b-reduction",
            "D2P2-SGD: accuracy against reduction",
            "share of dimensions removed",
            UNIT,
            [Curve(name="sigma 3", x=reductions, y=tuple(by_reduction))],
        ),
    )
    best = reductions[max(range(len(reductions)), key=lambda place: by_reduction[place])]
    return Outcome(
        unit=UNIT,
        rows=tuple(rows),
        figures=figures,
        status=Status.PARTLY,
        summary=(
            f"{setting.epochs} epochs, one seed. D2P2-SGD from sigma {sigmas[0]:g} to {sigmas[-1]:g}: "
            f"{by_sigma[-1].y[0]:.1f} % to {by_sigma[-1].y[-1]:.1f} %; DPSGD {by_sigma[0].y[0]:.1f} % to "
            f"{by_sigma[0].y[-1]:.1f} %. The best reduction was {best:g} (the paper: 0.3). With orthonormal rows "
            "epsilon does not depend on the reduction, as Figure 6b says; with the paper's Gaussian matrices it does."
        ),
        guesses=("The figures print no numbers, so that only their trends can be compared.", *GUESSES[3:]),
    )


_PRICE_LABELS: Final = (
    "Certified epsilon against sigma, 40 epochs of batch 1024",
    "sigma",
    "epsilon at delta 1e-5",
)


def _prices_by_sigma(setting: Setting) -> list[Curve]:
    horizon = Horizon.of(records=RECORDS, batch=setting.batch, epochs=setting.epochs)
    curves = []
    for name, method in (("constant noise", "auto-s"), ("z/k^(1/4)", "d2p-sgd")):
        recipe = METHODS[method].recipe()
        plans = [recipe.bind(noise=sigma, horizon=horizon, delta=DELTA) for sigma in _SIGMAS]
        curves.append(Curve(name=name, x=_SIGMAS, y=tuple(plan.certificate().epsilon for plan in plans)))
    return curves
