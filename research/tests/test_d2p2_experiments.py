"""The experiments of D2P2-SGD on small data: they run through, and say what they should."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from discreet.core.streams import Streams
from discreet.engine.layout import Layout
from discreet.methods import METHODS
from discreet.methods.d2p2.projected_noise import DenseLayers, ProjectedNoise, layer_widths
from discreet.runs import RunConfig, RunResult, complete
from discreet.stages.clipping import Query
from discreet.stages.values import _AGGREGATION, BoundedSum, StepContext
from research.reproductions import Bench, Row, Status
from research.reproductions.d2p2 import figure_3, figures_4_5_6, projection, table_2
from research.reproductions.d2p2.settings import FAMILY, PUBLISHED, TABLE_2, TUNED, Setting
from research.reproductions.plain_sgd import PlainRun


class Small:
    """A bench that trains every config on digits, for two steps."""

    def __init__(self, folder: Path) -> None:
        self.quick, self.seeds, self.folder = True, (0,), folder
        self.configs: list[RunConfig] = []
        self._bench = Bench(quick=True, seeds=(0,), folder=folder)

    def small(self, config: RunConfig) -> RunConfig:
        self.configs.append(config)
        changes: dict[str, Any] = {"data": "digits", "model": "softmax", "batch": 64, "epochs": None}
        return dataclasses.replace(config, **changes, steps=2, eval_every=1)

    def train(self, config: RunConfig) -> RunResult:
        return self._bench.train(self.small(config))

    def train_seeds(self, config: RunConfig) -> tuple[RunResult, ...]:
        return tuple(self.train(dataclasses.replace(config, seed=seed)) for seed in self.seeds)

    def train_without_privacy(self, config: RunConfig) -> PlainRun:
        return self._bench.train_without_privacy(self.small(config))


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


def test_figure_3(small: Small) -> None:
    outcome = figure_3.figure_3(cast("Bench", small))
    assert [row.setting for row in outcome.rows] == ["SGD", "DPSGD", "D2P-SGD", "DP2-SGD", "D2P2-SGD"]
    assert outcome.rows[0].certified == math.inf
    assert all(row.certified is not None and row.certified < math.inf for row in outcome.rows[1:])
    # Orthonormal rows: where there is a claim, it is the certificate.
    assert all(row.claimed == row.certified for row in outcome.rows[2:])
    assert [len(figure.curves) for figure in outcome.figures] == [5, 5, 2]
    assert outcome.status is not Status.REPRODUCED  # a quick run proves nothing
    assert {config.noise for config in small.configs} == {3.0}
    assert {config.learning_rate for config in small.configs} == {0.01}


def test_table_2(small: Small) -> None:
    outcome = table_2.table_2(cast("Bench", small))
    assert [row.paper for row in outcome.rows] == [52.91, 70.63, 67.36, 73.22, None]
    for row in outcome.rows:
        assert row.certified is not None
        assert 1.98 <= row.certified <= 2.0  # each is calibrated to the budget
    rates = [config.learning_rate for config in small.configs]
    assert rates == [TUNED.learning_rate] * 4 + [TUNED.learning_rate / 0.5]  # the flat clip halves a step
    assert "epsilon 2" in outcome.summary


@pytest.mark.slow
def test_figures_4_5_6(small: Small) -> None:
    outcome = figures_4_5_6.figures_4_5_6(cast("Bench", small))
    assert len(outcome.rows) == 2 * len(FAMILY) + 2 + 2
    constant, decaying = next(f for f in outcome.figures if "epsilon" in f.name).curves
    at_three = dict(zip(constant.x, constant.y, strict=True))[3.0]
    assert at_three == pytest.approx(1.0806, rel=5e-3)
    assert dict(zip(decaying.x, decaying.y, strict=True))[3.0] == pytest.approx(2.8305, rel=5e-3)
    assert all(one > two for one, two in zip(constant.y, constant.y[1:], strict=False))


class Scripted:
    """A bench whose runs have the accuracy that a function of the config says."""

    def __init__(self, accuracy: Callable[[RunConfig], float]) -> None:
        self.quick, self.seeds, self._accuracy = True, (0,), accuracy
        self.configs: list[RunConfig] = []

    def train_seeds(self, config: RunConfig) -> tuple[Any, ...]:
        self.configs.append(config)
        spent = SimpleNamespace(claimed=None, certified=SimpleNamespace(epsilon=3.0))
        return (SimpleNamespace(test_accuracy=self._accuracy(config), spent=spent),)


def falling(config: RunConfig) -> float:
    """Half of the reduction is lost, and a learning rate of 0.4 is better by 0.1."""
    rate = float(dict(config.parameters)["reduction"])
    return 0.85 - rate / 2 + (0.1 if config.learning_rate == 0.4 else 0.0)


def test_projection_keeps_the_better_learning_rate_and_reports_the_loss() -> None:
    bench = Scripted(falling)
    outcome = projection.projection(cast("Bench", bench))
    assert [row.ours for row in outcome.rows] == [pytest.approx(value) for value in (95.0, 50.0) * 3]
    assert {row.note for row in outcome.rows} == {"learning rate 0.4"}
    assert outcome.summary.count("-45.0 points") == 3
    assert outcome.status is Status.NOT
    assert {(config.method, config.epsilon) for config in bench.configs} == {("dp2-sgd", 3.0)}
    dense = [c for c in bench.configs if dict(c.parameters).get("projection") == "dense"]
    assert {(c.model, dict(c.parameters)["reduction"]) for c in dense} == {("softmax", 0.9)}


def test_projection_reports_where_it_helps() -> None:
    """Control: with an accuracy that rises for the CNN alone the status changes."""

    def rising(config: RunConfig) -> float:
        return 1.0 - falling(config) if config.model == "cnn-digits" else falling(config)

    outcome = projection.projection(cast("Bench", Scripted(rising)))
    assert outcome.status is Status.PARTLY
    assert "CNN, orthonormal +45.0 points" in outcome.summary


def test_the_theory_of_projection() -> None:
    """Orthonormal rows keep 1 - reduction of the share; dense ones lose less as noise grows, 1.1 / (2.1 + ...)."""
    outcome = projection.projection(cast("Bench", Scripted(falling)))
    theory, accuracy = outcome.figures
    assert (theory.name, accuracy.name) == ("theory", "accuracy")
    curves = {curve.name: dict(zip(curve.x, curve.y, strict=True)) for curve in theory.curves}
    orthonormal = curves["orthonormal, any noise"]
    assert all(share == pytest.approx(1 - rate) for rate, share in orthonormal.items())
    quiet, loud = (curves[f"dense, noise energy {noise} x signal"][0.5] for noise in ("0.1", "10"))
    assert quiet == pytest.approx(1.1 / (1.1 + 10_001 / 5_000))
    assert loud == pytest.approx(11 / (11 + 10_001 / 5_000))


@pytest.mark.parametrize("member", FAMILY, ids=lambda member: str(member.name))
def test_every_member_is_a_recipe_with_these_arguments(member: Any) -> None:
    for parameters in (member.published, member.ours):
        complete(Setting(batch=64, epochs=1, learning_rate=1.0).config(method=member.method))
        METHODS[member.method].recipe(**dict(parameters))


def test_the_published_setting_is_that_of_table_6() -> None:
    config = PUBLISHED.config()
    assert (config.batch, config.epochs, config.learning_rate, config.noise) == (1024, 40, 0.01, 3.0)
    assert config.model == "cnn-d2p2"


def test_the_status_of_table_2() -> None:
    def rows(*ours: float) -> list[Row]:
        return [
            Row(setting=member.name, paper=TABLE_2[member.name][1], ours=value)
            for member, value in zip(FAMILY, ours, strict=True)
        ]

    assert table_2._table_2_status(rows(79, 78, 77, 80), False) is Status.REPRODUCED
    assert table_2._table_2_status(rows(79, 78, 77, 80), True) is Status.PARTLY
    assert table_2._table_2_status(rows(80, 79, 78, 77), False) is Status.PARTLY
    assert table_2._table_2_status(rows(60, 79, 78, 77), False) is Status.NOT


# -- theory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_the_signal_share_is_that_of_releases(dense: bool, noise: float) -> None:
    """400 seeded releases of 64 dimensions at reduction 0.5: within 10 % of their formula, not of the other one."""
    size, kept = 64, 0.5
    layout = Layout(("w",), ((size,),))
    kind = {"projection": DenseLayers(layer_widths((size,), kept))} if dense else {}
    mechanism = ProjectedNoise(reduction=kept, **kind)
    total = torch.linspace(-1, 2, size).double()
    along, energy, draws = 0.0, 0.0, 400
    streams = Streams.seeded(5)
    for step in range(draws):
        context = StepContext(step=step, steps_per_epoch=1, batch=1.0, layout=layout, streams=streams)
        bounded = BoundedSum(total.clone(), 1.0, key=_AGGREGATION)
        lifted = mechanism.release([bounded], [Query(1.0)], noise, context)[0].double()
        along += float(lifted @ total) / draws
        energy += float(lifted @ lifted) / draws
    found = along**2 / (energy * float(total @ total))
    ratio = size * noise**2 / float(total @ total)
    formula = projection.signal_share(kept, ratio, dense=dense, dimensions=size)
    assert found == pytest.approx(formula, rel=0.1)
    other = projection.signal_share(kept, ratio, dense=not dense, dimensions=size)
    assert found != pytest.approx(other, rel=0.2)
