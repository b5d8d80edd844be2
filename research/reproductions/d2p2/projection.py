"""D2P2-SGD (paper 000), beyond the paper: when random projection helps, in theory for one step and on digits."""

from __future__ import annotations

from typing import Any, Final

from discreet.methods.d2p2.projected_noise import layer_widths
from discreet.runs import RunConfig
from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.experiment import Curve, Figure, Outcome, Row, Status

_SIZES: Final = (640, 10)  # softmax regression on digits
_DIMENSIONS: Final = 10_000
_GRID: Final = tuple(k / 20 for k in range(19))


def signal_share(reduction: float, noise_to_signal: float, *, dense: bool, dimensions: int) -> float:
    """E[<lifted, S>]^2 / (|S|^2 E|lifted|^2): the share of a release that points in the direction of the sum S.

        without projection    1 / (1 + r)                       r = d (zC)^2 / |S|^2, noise energy over signal energy
        orthonormal rows      (p/n) / (1 + r)
        dense Gaussian        1 / (1 + (d + 1)/p + r)

    The scale of the lift cancels, and so does a learning rate.

    >>> round(signal_share(0.3, 1.0, dense=False, dimensions=1000), 12)
    0.35
    """
    if reduction == 0:
        return 1 / (1 + noise_to_signal)
    if not dense:
        return (1 - reduction) / (1 + noise_to_signal)
    kept = max(1, round((1 - reduction) * dimensions))
    return 1 / (1 + (dimensions + 1) / kept + noise_to_signal)


def projection(bench: Bench) -> Outcome:
    """Two figures: the theory of a step, and test accuracy at equal certified epsilon."""
    rates = (0.0, 0.9) if bench.quick else (0.0, 0.3, 0.6, 0.9)
    rows: list[Row] = []
    curves = []
    for name, model, dense in (
        ("CNN, orthonormal", "cnn-digits", False),
        ("softmax, orthonormal", "softmax", False),
        ("softmax, dense Gaussian", "softmax", True),
    ):
        found = [_best(bench, name, model, dense, rate) for rate in rates]
        rows += found
        curves.append(Curve(name=name, x=rates, y=tuple(row.ours or 0.0 for row in found)))
    loss = {curve.name: curve.y[0] - curve.y[-1] for curve in curves}
    return Outcome(
        unit="test accuracy, %",
        rows=tuple(rows),
        figures=(
            _theory(),
            Figure(
                name="accuracy",
                title="Digits, certified epsilon 3: accuracy against reduction",
                x_label="share of dimensions removed",
                y_label="test accuracy, %",
                curves=tuple(curves),
            ),
        ),
        status=Status.NOT if all(points > 0 for points in loss.values()) else Status.PARTLY,
        summary=(
            "That projection itself buys accuracy at equal certified epsilon did not show: from no reduction to 0.9, "
            + "; ".join(f"{name} {-points:+.1f} points" for name, points in loss.items())
            + ". In theory orthonormal rows keep the share 1 - reduction of the signal's part in a release, whatever "
            "the noise; dense matrices lose little where noise dominates, and more epsilon."
        ),
    )


def _best(bench: Bench, name: str, model: str, dense: bool, rate: float) -> Row:
    """The better of two learning rates: a projected release is noisier and may need a smaller one."""
    parameters: tuple[tuple[str, Any], ...] = (("reduction", rate),)
    if dense and rate > 0:
        widths = layer_widths(_SIZES, rate)
        parameters += (("projection", "dense"), ("widths", widths))
    found = []
    for learning_rate in (0.4, 0.8):
        config = RunConfig(
            data="digits",
            model=model,
            method="dp2-sgd",
            parameters=parameters,
            epsilon=3.0,
            delta=1e-5,
            batch=256,
            steps=30 if bench.quick else 150,
            learning_rate=learning_rate,
            eval_every=150,
            out="",
        )
        results = bench.train_seeds(config)
        label = f"{name}, reduction {rate:g}"
        found.append(accuracy_row(label, results, note=f"learning rate {learning_rate:g}"))
    return max(found, key=lambda row: row.ours or 0.0)


def _theory() -> Figure:
    curves = []
    for noise in (0.1, 10.0):
        for dense in (False, True):
            kind = "dense" if dense else "orthonormal"
            shares = tuple(
                signal_share(rate, noise, dense=dense, dimensions=_DIMENSIONS)
                / signal_share(0.0, noise, dense=False, dimensions=_DIMENSIONS)
                for rate in _GRID
            )
            if dense or noise == 0.1:  # orthonormal rows: the same line for every noise
                label = f"{kind}, any noise" if not dense else f"{kind}, noise energy {noise:g} x signal"
                curves.append(Curve(name=label, x=_GRID, y=shares))
    return Figure(
        name="theory",
        title="What a projection leaves of the signal's share in a release",
        x_label="share of dimensions removed",
        y_label="signal share / share without projection",
        curves=tuple(curves),
    )
