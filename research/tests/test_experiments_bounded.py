"""Experiments on bounded domains: the closed form is the library's update; the instant figures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from discreet import methods
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.data import build
from discreet.methods.dpsgd_dc.curvature import Link
from discreet.methods.dpsgd_dc.domain import Centre
from discreet.methods.dpsgd_dc.guard import with_clipped_features
from discreet.runs import RunConfig
from discreet.stages.analysis import Composition
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon
from discreet.training.private import Private
from research.reproductions import EXPERIMENTS, Bench, Status
from research.reproductions.dpsgd_dc import figures_2_3
from research.reproductions.dpsgd_dc.figures_2_3 import batch_sizes, diameters
from research.reproductions.dpsgd_dc.full_batch import _plan
from research.reproductions.dpsgd_dc.logistic import Records, trained

RECORDS = 50


def plan(**changes: float) -> Plan:
    settings = {"clip": 0.5, "radius": 0.4, "features": 1.5, "learning_rate": 1.2, "weight_decay": 0.05} | changes
    recipe = methods.dpsgd_dc(link=Link.LOGISTIC, centre=Centre.ORIGIN, **settings)
    return recipe.bind(noise=0.7, horizon=Horizon.of(records=RECORDS, batch=RECORDS, steps=15), delta=1e-5)


def test_the_closed_form_is_the_step_of_the_library() -> None:
    """The same noise stream, the same update, the same projection: only float32 sums differ."""
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(RECORDS, 6, generator=generator) * 2
    y = (x[:, 0] > 0.3).long()
    which = plan()
    net = with_clipped_features(build("logistic", shape=(6,), classes=2, seed=0), 1.5)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.2, weight_decay=0.05)
    run = Private(net, optimizer, which, TensorDataset(x, y), streams=Streams.seeded(4))
    for a, b in run:
        run.step(F.cross_entropy(net(a), b, reduction="none"))
    slow = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    fast = trained(which, Records.of(x, y, bound=1.5), seed=4)
    assert float((slow - torch.from_numpy(fast)).norm()) < 1e-5
    assert float(slow.norm()) > 0.1
    assert float((slow - torch.from_numpy(trained(which, Records.of(x, y, bound=1.5), seed=5))).norm()) > 1e-2


def test_other_plans_are_refused() -> None:
    other = methods.dp_sgd().bind(noise=1.0, horizon=Horizon.of_rate(rate=0.1, steps=2), delta=1e-5)
    with pytest.raises(Refused, match="full-batch logistic plan"):
        trained(other, Records.of(torch.zeros(2, 2), torch.zeros(2), bound=1.0), seed=0)


def test_the_case_that_pays() -> None:
    """Certified epsilon of at most 5 for 36,000 steps whose composition costs at least five times that."""
    longest = _plan(36_000)
    certified = longest.certificate()
    assert certified.epsilon <= 5
    assert certified.conditions == ()  # nothing is assumed of the losses
    assert longest.using(analysis=Composition()).certificate().epsilon >= 5 * certified.epsilon


@pytest.mark.parametrize("name", ["dc-figure-1", "dc-figure-5"])
def test_instant_figures(name: str, tmp_path: Path) -> None:
    outcome = EXPERIMENTS[name].run(Bench(quick=True, seeds=(0,), folder=tmp_path))
    assert outcome.status is Status.REPRODUCED
    for row in outcome.rows:
        if row.paper is not None:
            assert row.ours == pytest.approx(row.paper, rel=1e-6)
    assert all(min(curve.y) >= 0 for figure in outcome.figures for curve in figure.curves)


def test_theory_halves() -> None:
    _, rows = batch_sizes()
    for row in rows:
        assert row.ours == pytest.approx(row.paper, rel=1e-3)
    _, rows = diameters()
    assert {row.note for row in rows} == {"as Theorem 3.3: the domain does not matter yet"}


@pytest.mark.parametrize("name", ["dc-figure-2", "dc-figure-3"])
def test_figures_with_membership_inference(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The join of theory and attack, with an attack that finds what it is told; once found, it is kept."""
    asked: list[tuple[str, int]] = []

    class Found:
        def __init__(self, config: RunConfig, step: int) -> None:
            self.step, self._config = step, config

        def to_json(self) -> dict[str, float]:
            assert self._config.noise is not None
            return {
                "step": self.step,
                "estimate": 1 / self._config.noise / 200,
                "spread": 0.1,
                "targets": 1,
                "lower_bound": 0.0,
                "confidence": 0.999,
                "auc": 0.5,
            }

    def course(config: RunConfig, *, at: tuple[int, ...], **_: object) -> list[Found]:
        asked.append((config.method, config.batch or 0))
        return [Found(config, step) for step in at]

    monkeypatch.setattr(figures_2_3, "membership_course", course)
    bench = Bench(quick=True, seeds=(0,), folder=tmp_path)
    outcome = EXPERIMENTS[name].run(bench)
    assert outcome.status is Status.PARTLY
    assert len(outcome.figures) == 2
    assert len(outcome.figures[0].curves) == len(asked) > 1
    assert {method for method, _ in asked} == {"dpsgd-gc" if name == "dc-figure-2" else "dpsgd-dc"}
    before = len(asked)
    assert EXPERIMENTS[name].run(bench) == outcome
    assert len(asked) == before
