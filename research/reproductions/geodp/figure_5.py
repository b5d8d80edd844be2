"""GeoDP (paper 002), Figure 5: training loss of softmax regression."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from research.reproductions.bench import Bench, measured
from research.reproductions.experiment import Curve, Figure, Outcome, Row, Status
from research.reproductions.geodp.settings import CLIP, config, data

Line = tuple[str, str, dict[str, Any], float, int]
"""(name, method, parameters, noise, batch)"""


def _line(name: str, noise: float, batch: int, beta: float | None = None) -> Line:
    if beta is None:
        return name, "dp-sgd", {"clip": CLIP}, noise, batch
    return name, "geodp", {"clip": CLIP, "beta": beta}, noise, batch


PANELS: dict[str, tuple[Line, ...]] = {
    "a": (
        _line("no noise, B 4096", 0.0, 4096),
        _line("DP, B 2048, sigma 1", 1.0, 2048),
        _line("DP, B 4096, sigma 1", 1.0, 4096),
        _line("GeoDP, B 2048, sigma 1, beta 1", 1.0, 2048, 1.0),
        _line("GeoDP, B 4096, sigma 1, beta 1", 1.0, 4096, 1.0),
    ),
    "b": (
        _line("no noise, B 4096", 0.0, 4096),
        _line("DP, B 4096, sigma 10", 10.0, 4096),
        _line("GeoDP, B 4096, sigma 10, beta 1", 10.0, 4096, 1.0),
        _line("GeoDP, B 4096, sigma 10, beta 0.5", 10.0, 4096, 0.5),
    ),
    "c": (
        _line("no noise, B 256", 0.0, 256),
        _line("DP, B 256, sigma 0.1", 0.1, 256),
        _line("DP, B 256, sigma 0.01", 0.01, 256),
        _line("GeoDP, B 256, sigma 0.1, beta 1", 0.1, 256, 1.0),
        _line("GeoDP, B 256, sigma 0.01, beta 1", 0.01, 256, 1.0),
    ),
}


def figure_5(bench: Bench) -> Outcome:
    """Training loss of softmax regression over 350 iterations."""
    steps = 40 if bench.quick else 350
    panels = {"c": PANELS["c"]} if bench.quick else PANELS
    rows, figures, ends = [], [], {}
    for letter, lines in panels.items():
        curves = []
        for line in lines:
            row, curve = _trained(bench, line, steps)
            ends[letter, curve.name] = math.nan if row.ours is None else row.ours
            rows.append(dataclasses.replace(row, setting=f"5({letter}) {curve.name}"))
            curves.append(curve)
        figures.append(
            Figure(
                name=f"loss-{letter}",
                title=f"Figure 5({letter})",
                x_label="iteration",
                y_label="training loss",
                curves=tuple(curves),
            )
        )
    said = _said_5(ends, bench.quick)
    return Outcome(
        unit=f"training loss after {steps} iterations",
        rows=tuple(rows),
        figures=tuple(figures),
        status=Status.of(said, quick=bench.quick),
        summary=(
            f"{sum(said)} of the figure's {len(said)} orderings came out. The paper says that GeoDP at beta 1 nearly "
            "reaches training without noise in (a) and at sigma 0.01 in (c), and that less noise does not help DP."
        ),
        guesses=(
            *data()[1],
            "the paper gives neither learning rate nor sigma of panels (a) and (b): 20 on the clipped mean, 1 and 10",
            "certified epsilon of DP is that of Poisson sampling at these batches; GeoDP has none",
        ),
    )


def _trained(bench: Bench, line: Line, steps: int) -> tuple[Row, Curve]:
    name, method, parameters, noise, batch = line
    run = config(
        method,
        parameters=parameters,
        seed=bench.seeds[0],
        model="softmax",
        noise=noise,
        batch=batch,
        steps=steps,
        learning_rate=20.0,
        eval_every=max(1, steps // 10),
        public_data=True,  # for the training loss
    )
    result = bench.train(run)
    x, y = measured(result, "train_loss")
    row = Row(
        setting=name,
        ours=y[-1] if y else math.nan,
        certified=result.spent.certified.epsilon,
        claimed=result.spent.claimed,
        note="no proven guarantee" if method == "geodp" else "",
    )
    return row, Curve(name=name, x=x, y=y)


def _said_5(ends: dict[tuple[str, str], float], quick: bool) -> list[bool]:
    """What the text says: GeoDP below DP in every panel, at the settings that it names."""
    pairs = [
        ("c", "GeoDP, B 256, sigma 0.1, beta 1", "DP, B 256, sigma 0.1"),
        ("c", "GeoDP, B 256, sigma 0.01, beta 1", "DP, B 256, sigma 0.01"),
    ]
    if not quick:
        pairs += [
            ("a", "GeoDP, B 4096, sigma 1, beta 1", "DP, B 4096, sigma 1"),
            ("b", "DP, B 4096, sigma 10", "GeoDP, B 4096, sigma 10, beta 1"),
            ("b", "GeoDP, B 4096, sigma 10, beta 0.5", "DP, B 4096, sigma 10"),
        ]
    return [ends[letter, lower] < ends[letter, higher] for letter, lower, higher in pairs]
