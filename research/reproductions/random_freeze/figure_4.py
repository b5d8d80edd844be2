"""Random freeze (paper 001), Figure 4: accuracy along clip and momentum."""

from __future__ import annotations

from typing import Final

from research.reproductions.bench import Bench
from research.reproductions.experiment import Curve, Figure, Outcome, Status
from research.reproductions.random_freeze.clip_scaling import scale_clip_with_momentum
from research.reproductions.random_freeze.settings import BASE_CLIP, BASE_MOMENTUM, GUESSES, STRICT, UNIT, mlp_series

MOMENTA: Final = (0.0, 0.5, 0.7, 0.9, 0.95)
CLIPS: Final = (0.02, 0.05, 0.1, 0.2, 0.5)


def figure_4(bench: Bench) -> Outcome:
    """Clip and momentum along the scaling rule, and along either axis alone."""
    momenta = (0.0, 0.9) if bench.quick else MOMENTA
    clips = (0.02, 0.1, 0.5) if bench.quick else CLIPS
    rule = [scale_clip_with_momentum(clip=BASE_CLIP, momentum=BASE_MOMENTUM, to_momentum=m) for m in momenta]
    lines = (
        ("C / (1 - momentum) = 1", list(zip(rule, momenta, strict=True))),
        ("clip 0.1", [(BASE_CLIP, m) for m in momenta]),
        ("momentum 0.9", [(clip, BASE_MOMENTUM) for clip in clips]),
    )
    series, rows, curves = mlp_series(bench, STRICT), [], []
    for name, pairs in lines:
        found = [series.row(f"{name}: clip {clip:g}, momentum {m:g}", clip=clip, momentum=m) for clip, m in pairs]
        rows += found
        x = tuple(clip if name.startswith("momentum") else m for clip, m in pairs)
        curves.append(Curve(name=name, x=x, y=tuple(row.ours or 0.0 for row in found)))
    spans = [max(curve.y) - min(curve.y) for curve in curves]
    return Outcome(
        unit=UNIT,
        rows=tuple(rows),
        status=Status.REPRODUCED if spans[0] < min(spans[1:]) else Status.NOT,
        summary=(
            f"Accuracy spans {spans[0]:.2f} points along C / (1 - momentum) = 1, {spans[1]:.2f} along momenta at clip "
            f"0.1, {spans[2]:.2f} along clips at momentum 0.9 (MLP, epsilon 3). The paper prints no numbers."
        ),
        figures=(
            _frame("momentum", "Along momentum, epsilon 3", curves[:2], log_x=False),
            _frame("clip", "Along the clip, epsilon 3", curves[2:], log_x=True),
        ),
        guesses=GUESSES,
    )


def _frame(axis: str, title: str, curves: list[Curve], *, log_x: bool) -> Figure:
    return Figure(name=axis, title=title, x_label=axis, y_label=UNIT, curves=tuple(curves), log_x=log_x)
