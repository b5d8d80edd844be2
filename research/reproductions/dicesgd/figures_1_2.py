"""DiceSGD (paper 004), Figures 1 and 2: accuracy over both clipping norms and the step size, CIFAR-10."""

from __future__ import annotations

import dataclasses
import math

from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.dicesgd.heads import IMAGES, UNIT, claiming, image_head
from research.reproductions.experiment import Curve, Figure, Outcome, Row, Status


def figures_1_2(bench: Bench) -> Outcome:
    """Figure 1: C1 and C2/C1 at a fixed effective step size. Figure 2: C1 and the step size at C2 = C1."""
    setting = image_head(bench, 2)
    clips = (1.0, 0.1) if bench.quick else (100.0, 10.0, 1.0, 0.1)
    ratios = (1.0, 10.0) if bench.quick else (1.0, 3.0, 10.0, 30.0)
    reaches = (0.3, 3.0) if bench.quick else (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
    rows: dict[str, Row] = {}

    def accuracy(clip: float, ratio: float, reach: float) -> float:
        noise = setting.noise_of_algorithm_4(clip, ratio * clip)
        config = setting.run("dicesgd", noise, clip=clip, feedback_clip=ratio * clip)
        config = dataclasses.replace(config, learning_rate=reach / clip)
        name = f"C1 = {clip:g}, C2 = {ratio:g} C1, step size {reach:g}/C1"
        rows[name] = claiming(accuracy_row(name, bench.train_seeds(config)), setting)
        return rows[name].ours or 0.0

    first = tuple(
        Curve(name=f"C1 = {clip:g}", x=ratios, y=tuple(accuracy(clip, ratio, 1.0) for ratio in ratios))
        for clip in clips
    )
    second = tuple(
        Curve(name=f"C1 = {clip:g}", x=reaches, y=tuple(accuracy(clip, 1.0, reach) for reach in reaches))
        for clip in clips
    )
    close = all(curve.y[0] >= max(curve.y) - 1 for curve in first)
    least = min(math.inf if row.certified is None else row.certified for row in rows.values())
    return Outcome(
        unit=UNIT,
        rows=tuple(rows.values()),
        figures=(
            _figure("dice-figure-1", "DiceSGD over C1 and C2, step size 1/C1", "C2 / C1", first),
            _figure("dice-figure-2", "DiceSGD over C1 and the step size, C2 = C1", "step size times C1", second),
        ),
        status=Status.PARTLY,
        summary=(
            f"C2 = C1 is {'within a point of the best ratio at every C1' if close else 'not always the best ratio'} "
            f"(the paper: best in most cases). Claimed epsilon 2; certified {least:.3g} or more."
        ),
        guesses=(*IMAGES, "Figure 1's effective step size is not printed: 1/C1 was taken."),
    )


def _figure(name: str, title: str, x_label: str, curves: tuple[Curve, ...]) -> Figure:
    return Figure(name=name, title=title, x_label=x_label, y_label=UNIT, curves=curves, log_x=True)
