"""The measurements of the random-freeze experiments, on cases with a known answer."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

import loop
from discreet import methods
from discreet.core.streams import Streams
from discreet.methods.random_freeze import masks
from discreet.methods.random_freeze.selection import RandomFreeze, RankedFreeze
from discreet.runs import RunConfig
from discreet.stages.sampling import Horizon
from research.reproductions.bench import Bench
from research.reproductions.experiment import Row
from research.reproductions.random_freeze import gep_cost, table_1_handcrafted
from research.reproductions.random_freeze.figure_1 import errors
from research.reproductions.random_freeze.figure_3 import LeakyNoise, RankedWithoutNoise, _apart, _deviation
from research.reproductions.random_freeze.observed_run import BATCH, CLIP
from research.reproductions.random_freeze.settings import CLIP as ADJUSTED
from research.reproductions.random_freeze.settings import LOOSE, STRICT, Series, at_least

STREAM = Streams.seeded(1).mask


def test_errors_of_short_gradients_are_known() -> None:
    """All records alike and below the clip: nothing is lost but what is frozen, and the noise on what is not."""
    gradients = torch.full((4, 1000), 0.5 / math.sqrt(1000))
    for rate in (0.0, 0.5, 0.9):
        signal, mse = errors(gradients, rate=rate, noise=2.0, draws=2, stream=STREAM)
        assert signal == pytest.approx(rate * 0.25, abs=1e-6)
        assert mse - signal == pytest.approx((1 - rate) * (CLIP * 2.0 / BATCH) ** 2 * 1000, rel=1e-6)


def test_errors_are_those_of_simulated_batches() -> None:
    """Beside a loop over drawn batches, records of all lengths; 4 standard errors, false alarm below 1e-4."""
    torch.manual_seed(0)
    gradients = torch.randn(50, 40) * torch.rand(50, 1)
    signal, _ = errors(gradients, rate=0.0, noise=0.0, draws=1, stream=STREAM)
    clipped = gradients * (CLIP / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)
    lost = []
    for _ in range(400):
        mean = clipped[torch.randint(50, (BATCH,))].mean(0)
        lost.append(float((gradients.mean(0) - mean).square().sum()))
    found = torch.tensor(lost, dtype=torch.float64)
    assert abs(float(found.mean()) - signal) < 4 * float(found.std()) / math.sqrt(len(lost))
    assert abs(float(found.mean()) - 1.2 * signal) > 4 * float(found.std()) / math.sqrt(len(lost))  # control


def test_ranking_without_noise_sees_exact_sums_and_is_not_private() -> None:
    """With noise that drowns everything, the mask is still that of the noiseless run; the certificate is infinite."""
    ranked = RankedFreeze(final_rate=0.5)
    recipe = dataclasses.replace(methods.dp_sgd(clip=0.5), selection=RankedWithoutNoise(ranked), mechanism=LeakyNoise())
    assert loop.plan(recipe).certificate().epsilon == math.inf
    kept = []
    for noise in (0.0, 1e6):
        run = loop.private(which=loop.plan(recipe, noise=noise), optimizer=_resting)
        loop.train(run, most=loop.RECORDS // loop.BATCH + 1)
        kept.append(run.progress.memory[masks.ACTIVE])
    assert torch.equal(kept[0], kept[1])


def _resting(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)  # type: ignore[arg-type]


def test_histograms() -> None:
    assert _apart([5, 5, 0], [5, 0, 5]) == 0.5
    assert _deviation([1, 0, 1]) == 1.0


def test_settings_are_the_papers(tmp_path: Path) -> None:
    """Table 9: clip 1, 60 and 100 epochs, cooling 40 and 80, total density 0.6 and 0.58."""
    assert pytest.approx(1.0) == ADJUSTED
    bench = Bench(quick=False, seeds=(0,), folder=tmp_path)
    for budget, epochs in ((STRICT, 60), (LOOSE, 100)):
        series = Series(bench=bench, budget=budget, model="mlp", share=1.0, words="")
        assert (series.epochs(), series.epochs(more=20)) == (epochs - 20, epochs)
        horizon = Horizon.of(records=60_000, batch=1200, epochs=epochs)
        freeze = RandomFreeze(final_rate=0.9, cooling_epochs=epochs - 20)
        density = freeze.density(horizon, baseline_epochs=epochs - 20)
        assert density == pytest.approx(budget.density, abs=0.006)


def test_a_difference_within_its_error_holds() -> None:
    better, worse = Row(setting="a", ours=85.0, spread=0.3), Row(setting="b", ours=84.6, spread=0.3)
    assert at_least(better, worse)
    assert at_least(worse, better)
    assert not at_least(dataclasses.replace(worse, ours=84.5), better)


def test_densities_are_those_of_the_papers_table_2() -> None:
    for rate, epochs, density in ((0.6, 80, 0.7), (0.4, 200, 0.8)):  # handcrafted CNN, GEP
        horizon = Horizon.of(records=50_000, batch=1000, epochs=epochs)
        assert RandomFreeze(final_rate=rate, cooling_epochs=epochs).density(horizon) == pytest.approx(
            density, abs=0.005
        )


def test_embedding_on_fewer_coordinates_costs_less(tmp_path: Path) -> None:
    cost = gep_cost.measured(Bench(quick=True, seeds=(0,), folder=tmp_path), rank=0.01)
    for density, basis, release in zip(gep_cost.DENSITIES, cost.basis, cost.release, strict=True):
        assert basis == pytest.approx(density**2, abs=0.02)  # fewer vectors of fewer coordinates
        assert release == pytest.approx(density, abs=0.005)  # a mask is sent as its key
    assert cost.power[0] == cost.projection[0] == 1
    assert f"{100 * cost.basis[-1]:.0f} % of its memory" in cost.told
    assert [figure.name for figure in cost.figures] == ["time", "size"]


def test_a_product_that_is_slow_on_active_coordinates_is_not_fast() -> None:
    cost = gep_cost.Cost(power=(1, 0.8, 0.72, 0.58), projection=(1, 0.9, 0.5, 0.3), basis=(1,) * 4, release=(1,) * 4)
    assert cost.is_fast
    assert not dataclasses.replace(cost, power=(1, 0.8, 0.72, 0.59)).is_fast
    assert not dataclasses.replace(cost, projection=(1, 0.8, 0.73, 0.3)).is_fast


def test_the_handcrafted_network_is_compared_at_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rows have the paper's clip and momentum, public statistics and the same certified epsilon."""
    seen = []

    def train_seeds(self: Bench, config: RunConfig) -> tuple[RunConfig, ...]:
        seen.append(config)
        return (config,)

    monkeypatch.setattr(Bench, "train_seeds", train_seeds)
    monkeypatch.setattr(
        table_1_handcrafted, "accuracy_row", lambda setting, runs, *, paper, note: Row(setting=setting, ours=paper)
    )
    table_1_handcrafted.table_1_handcrafted(Bench(quick=False, seeds=(0,), folder=tmp_path))
    dense, frozen = seen
    assert dict(frozen.parameters)["final_rate"] == 0.6
    assert dataclasses.replace(frozen, method="dp-sgd", parameters=dense.parameters) == dense
    assert (dense.epsilon, dict(dense.parameters)["clip"], dense.momentum, dense.learning_rate) == (3, 0.1, 0.9, 4)
    assert (dense.features, dense.public_records) == (("scattering-maps",), "cifar10")
