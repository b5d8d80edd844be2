"""Random freeze (paper 001), Figure 1: what freezing does to the error of a gradient."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from discreet import methods
from discreet.core.streams import Stream, Streams
from discreet.training.private import Private
from research.reproductions.bench import Bench
from research.reproductions.experiment import Curve, Outcome, Row, Status
from research.reproductions.random_freeze.observed_run import (
    BATCH,
    CLIP,
    PER_EPOCH,
    SETTING,
    complete,
    frame,
    record_gradients,
    walk,
)

RATES: Final = tuple(rate / 10 for rate in range(10))


def errors(gradients: Tensor, *, rate: float, noise: float, draws: int, stream: Stream) -> tuple[float, float]:
    """E |true - estimate|^2 of the mean of clipped gradients, without noise (signal loss) and with it (MSE).

    Over batches of the records given (squared bias plus variance / BATCH), and over masks drawn from `stream`.
    """
    size, true, lost = gradients.shape[1], gradients.mean(0), []
    for draw in range(draws if rate else 1):
        chosen = stream.at(draw).subset(max(1, round((1 - rate) * size)), of=size)
        active = torch.from_numpy(chosen).to(gradients.dtype)
        norms = gradients.square().mv(active).sqrt()
        weights = (CLIP / norms.clamp(min=1e-12)).clamp(max=1.0)
        mean = active * (weights @ gradients) / len(gradients)
        variance = (weights * norms).square().mean() - mean.square().sum()
        lost.append(float((true - mean).square().sum() + variance / BATCH))
    signal = math.fsum(lost) / len(lost)
    return signal, signal + (1 - rate) * (CLIP * noise / BATCH) ** 2 * size


def figure_1(bench: Bench) -> Outcome:
    """Signal loss and mean square error of the gradient against the freeze rate, at three stages of training."""
    epochs, count = (4, 300) if bench.quick else (80, 1000)
    stages = {1: "after 1 epoch", epochs // 2: f"after {epochs // 2}", epochs: f"after {epochs}"}
    seed = bench.seeds[0]

    def compute() -> dict[str, Any]:
        plan = complete(methods.dp_sgd(clip=CLIP), epochs)
        noise, found = plan.noise, {}

        def visit(private: Private, step: int) -> None:
            stage = stages.get(step // PER_EPOCH)
            if stage is not None and stage not in found:
                gradients, stream = record_gradients(private.model, count), Streams.seeded(seed).mask
                found[stage] = [errors(gradients, rate=rate, noise=noise, draws=3, stream=stream) for rate in RATES]

        walk(plan, seed, visit)
        return found

    found = bench.remember({"figure": "freeze-1", "epochs": epochs, "records": count, "seed": seed}, compute)
    signal, mse = (
        [
            Curve(name=stage, x=RATES, y=tuple(found[stage][0][which] - value[which] for value in found[stage]))
            for stage in stages.values()
        ]
        for which in (0, 1)
    )
    better = [curve.y[-1] > 0 for curve in mse]
    worse = all(curve.y[-1] < 0 for curve in signal)
    status = Status.REPRODUCED if worse and all(better) else Status.PARTLY if any(better) else Status.NOT
    ends = "; ".join(f"{a.y[-1]:+.2g} and {b.y[-1]:+.2g} {a.name}" for a, b in zip(signal, mse, strict=True))
    return Outcome(
        unit="squared length of the error of the mean gradient",
        rows=tuple(
            Row(setting=f"{what}, none less 0.9, {curve.name}", ours=curve.y[-1])
            for what, curves in (("signal loss", signal), ("MSE", mse))
            for curve in curves
        ),
        status=status,
        summary=f"No freeze less freeze 0.9, signal loss and MSE: {ends}. The paper's curves: all - and all +.",
        figures=(
            frame("signal", "Signal loss, no freeze less freeze", "freeze rate", "difference", signal),
            frame("mse", "MSE, no freeze less freeze", "freeze rate", "difference", mse),
        ),
        guesses=(SETTING, "The true gradient is that of the records looked at. The clip of Figure 1 is not stated."),
    )
