"""DiceSGD (paper 004), Section 1: accuracy against the clipping norm at equal certified epsilon."""

from __future__ import annotations

import math
from typing import Final

from discreet.methods.dicesgd.stages import TwoLevel
from discreet.runs import RunConfig, RunResult
from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.experiment import Curve, Figure, Outcome, Status

EPSILON: Final = 3.0
DELTA: Final = 1e-5
REACH: Final = 0.8  # learning rate times clip, as in the defaults for digits
RESIDUAL: Final = 9.0  # of two-level clipping, in clips
KAPPA: Final = 0.1
CLIPS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
CLIPS_QUICK: Final = (0.01, 1.0, 100.0)


def _run(method: str, parameters: tuple[tuple[str, float], ...], learning_rate: float, quick: bool) -> RunConfig:
    return RunConfig(
        delta=DELTA,
        out="",
        data="digits",
        method=method,
        parameters=parameters,
        epsilon=EPSILON,
        steps=60 if quick else 300,
        learning_rate=learning_rate,
        eval_every=60 if quick else 100,
    )


def felt(clip: float, residual: float) -> float:
    """The noise of two-level clipping that adds up over many steps, in units of the multiplier.

    A moving average spreads the noise of the second sum over later steps; all of it arrives.

    >>> round(felt(1.0, 9.0), 1)
    11.1
    """
    return math.hypot(*(query.std(1.0) for query in TwoLevel.smoothed(clip, residual, KAPPA).vectors(1.0)))


def _settings(clip: float, quick: bool) -> tuple[tuple[str, RunConfig], ...]:
    """All methods at one clipping norm, with learning rates that give the same noise over many updates."""
    residual = RESIDUAL * clip
    two = (("clip", clip), ("residual", residual), ("kappa", KAPPA))
    return (
        ("DP-SGD", _run("dp-sgd", (("clip", clip),), REACH / clip, quick)),
        ("adaptive quantile", _run("adaptive-quantile", (("clip", clip),), REACH / clip, quick)),
        ("two-level", _run("two-level", two, REACH / felt(clip, residual), quick)),
    )


def threshold(bench: Bench) -> Outcome:
    """Accuracy against C from 0.01 to 100; automatic clipping has no C and is a constant line."""
    clips = CLIPS_QUICK if bench.quick else CLIPS
    automatic = bench.train_seeds(_run("auto-s", (), REACH, bench.quick))
    rows = [accuracy_row("automatic (AUTO-S), no threshold", automatic)]
    found: dict[str, list[float]] = {"automatic (AUTO-S)": [rows[0].ours or 0.0] * len(clips)}
    for clip in clips:
        for name, config in _settings(clip, bench.quick):
            results: tuple[RunResult, ...] = bench.train_seeds(config)
            row = accuracy_row(f"{name}, C = {clip:g}", results)
            rows.append(row)
            found.setdefault(name, []).append(row.ours or 0.0)
    plain = found["DP-SGD"]
    curves = tuple(Curve(name=name, x=clips, y=tuple(values)) for name, values in found.items())
    figure = Figure(
        name="dice-threshold",
        title=f"Accuracy against the threshold, digits, certified epsilon {EPSILON:g}",
        x_label="clipping threshold C",
        y_label="test accuracy, %",
        curves=curves,
        log_x=True,
    )
    return Outcome(
        unit="test accuracy, %",
        rows=tuple(rows),
        status=Status.REPRODUCED if max(plain) - min(plain) > 5 else Status.NOT,
        summary=recommend(found, clips),
        figures=(figure,),
        guesses=(
            "The learning rate is 0.8 / C, the paper's fixed effective step size; for two-level it is 0.8 / 11.1 C, so "
            "that the noise of many updates adds up to the same for every method and C.",
        ),
    )


def recommend(found: dict[str, list[float]], clips: tuple[float, ...]) -> str:
    """Best, worst and mean accuracy of every method over C, and the advice for users.

    >>> recommend({"DP-SGD": [90.0, 20.0], "automatic": [85.0, 85.0]}, (0.1, 10.0)).split("Advice: ")[1]
    'without tuning take automatic (85.0 on average over C), with a threshold tuned on public data DP-SGD (90.0).'
    """
    parts, means = [], {}
    for name, values in found.items():
        best = max(range(len(clips)), key=lambda index: values[index])
        means[name] = math.fsum(values) / len(values)
        parts.append(f"{name} {values[best]:.1f} at best (C = {clips[best]:g}), {min(values):.1f} at worst")
    untuned = max(means, key=lambda name: means[name])
    tuned = max(found, key=lambda name: max(found[name]))
    return (
        f"{'; '.join(parts)}. Advice: without tuning take {untuned} ({means[untuned]:.1f} on average over C), "
        f"with a threshold tuned on public data {tuned} ({max(found[tuned]):.1f})."
    )
