"""Private logistic regression on one feature, by its exact densities: the plan's certificate covers it.

The last iterate on [-r, r] has a density inside and an atom at each end (the projection). Both are computed step by
step with Gauss-Legendre nodes and survival functions, for every batch that the sampler can draw, on two neighbouring
datasets; delta in both directions is then compared with the certified one.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from deltas import delta_at
from numpy.typing import NDArray
from scipy import special

from discreet.accounting.charges import Charge
from discreet.accounting.events import LastIterateRun
from discreet.core.relation import Neighbouring
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.methods.dpsgd_dc.curvature import LinearModel, Link
from discreet.methods.dpsgd_dc.domain import Ball
from discreet.stages.analysis import Composition
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import FixedSize, FullBatch, Horizon, Sampling, TruncatedPoisson

Floats = NDArray[np.float64]
Record = tuple[float, int]  # a feature in [-1, 1] and a label
DATA: tuple[Record, ...] = ((0.9, 1), (-0.4, 0), (1.0, 1), (0.2, 0))
EXTRA: Record = (1.0, 0)
OTHER: Record = (-1.0, 0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan for a handful of records, and the neighbour that differs in one of them."""

    sampling: Sampling
    relation: Neighbouring
    batch: int
    steps: int
    radius: float
    learning_rate: float
    noise: float
    clip: float = 0.6
    decay: float = 0.0

    @property
    def plan(self) -> Plan:
        recipe = Recipe(
            method="test",
            bounder=FlatClip(self.clip),
            domain=Ball(radius=self.radius),
            sampling=self.sampling,
            relation=self.relation,
            analysis=LastIterate(
                learning_rate=self.learning_rate,
                curvature=LinearModel(link=Link.LOGISTIC, features=1.0, bias=False),
                decay=self.decay,
            ),
        )
        records = len(self.worlds[0]) if self.relation is Neighbouring.REPLACE_ONE else len(DATA) + 1
        horizon = Horizon.of(records=records, batch=self.batch, steps=self.steps)
        return recipe.bind(noise=self.noise, horizon=horizon, delta=1e-5)

    @property
    def worlds(self) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
        if self.relation is Neighbouring.REPLACE_ONE:
            return (*DATA[1:], EXTRA), (*DATA[1:], OTHER)
        return (*DATA, EXTRA), DATA

    def batches(self, data: tuple[Record, ...]) -> list[tuple[float, tuple[Record, ...]]]:
        """Every batch with its probability."""
        if isinstance(self.sampling, FullBatch):
            return [(1.0, data)]
        if isinstance(self.sampling, FixedSize):
            drawn = list(itertools.combinations(data, self.batch))
            return [(1 / len(drawn), batch) for batch in drawn]
        assert isinstance(self.sampling, TruncatedPoisson)
        rate, cap = self.plan.horizon.rate, self.sampling.cap
        found = []
        for size in range(len(data) + 1):
            chance = rate**size * (1 - rate) ** (len(data) - size)
            for whole in itertools.combinations(data, size):
                kept = list(itertools.combinations(whole, min(size, cap)))
                found += [(chance / len(kept), batch) for batch in kept]
        return found

    def moved(self, x: Floats, batch: tuple[Record, ...]) -> Floats:
        """The noiseless update of every x."""
        total = np.zeros_like(x)
        for feature, label in batch:
            total += np.clip(feature * (special.expit(feature * x) - label), -self.clip, self.clip)
        return x - self.learning_rate * (total / self.batch + self.decay * x)

    @property
    def nodes(self) -> tuple[Floats, Floats]:
        x, w = np.polynomial.legendre.leggauss(200)
        return x * self.radius, w * self.radius

    @functools.cache  # noqa: B019, frozen and few
    def law(self, which: int) -> tuple[Floats, Floats]:
        """The density of the last iterate at the nodes, and its two atoms; the run starts at 0."""
        nodes, weights = self.nodes
        std = self.learning_rate * self.noise * self.clip / self.batch
        where, mass = np.zeros(1), np.ones(1)
        for _ in range(self.steps):
            density, atoms = np.zeros(len(nodes)), np.zeros(2)
            for chance, batch in self.batches(self.worlds[which]):
                mean = self.moved(where, batch)
                kernel = np.exp(-(((nodes - mean[:, None]) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))
                density += chance * (mass @ kernel)
                low = special.ndtr((-self.radius - mean) / std)
                high = special.ndtr((mean - self.radius) / std)  # a survival function: no 1 - cdf
                atoms += chance * np.array([mass @ low, mass @ high])
            where = np.concatenate([nodes, [-self.radius, self.radius]])
            mass = np.concatenate([density * weights, atoms])
        return density, atoms

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """delta of one world against the other, and of the other against the one."""
        (p, p_ends), (q, q_ends), gain = self.law(0), self.law(1), math.exp(epsilon)
        weights = self.nodes[1]

        def side(a: Floats, a_ends: Floats, b: Floats, b_ends: Floats) -> float:
            inside = weights @ np.maximum(a - gain * b, 0)
            return float(inside + np.maximum(a_ends - gain * b_ends, 0).sum())

        return side(p, p_ends, q, q_ends), side(q, q_ends, p, p_ends)


_ADD, _REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
CASES = [
    Case(sampling=FullBatch(), relation=_ADD, batch=5, steps=40, radius=0.3, learning_rate=4.0, noise=2.0),
    Case(sampling=FullBatch(), relation=_REPLACE, batch=4, steps=25, radius=0.3, learning_rate=8.0, noise=3.0),
    Case(sampling=FullBatch(), relation=_ADD, batch=5, steps=60, radius=1.0, learning_rate=4.0, noise=4.0, decay=0.1),
    Case(sampling=FixedSize(), relation=_REPLACE, batch=2, steps=20, radius=0.2, learning_rate=4.0, noise=2.0),
    Case(sampling=TruncatedPoisson(cap=3), relation=_ADD, batch=2, steps=20, radius=0.2, learning_rate=4.0, noise=1.5),
]
IDS = [f"{type(case.sampling).__name__}, {case.relation}, decay {case.decay:g}" for case in CASES]


def certified(plan: Plan, epsilon: float) -> float:
    return delta_at(plan.charge(), epsilon=epsilon, relation=plan.relation)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_certificate_covers_the_exact_run(case: Case) -> None:
    for which in (0, 1):
        density, atoms = case.law(which)
        assert case.nodes[1] @ density + atoms.sum() == pytest.approx(1, abs=1e-10)
    plan = case.plan
    hidden, seen = plan.certificate().epsilon, plan.using(analysis=Composition()).certificate().epsilon
    assert hidden < 0.9 * seen  # the case is one in which the last iterate pays
    for epsilon in (0.1, 0.5, 1.0, 2.0, hidden):
        # The kinks of the hockey-stick cost the quadrature about 1e-6.
        assert max(case.deltas(epsilon)) <= certified(plan, epsilon) * (1 + 1e-5) + 1e-12


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"steps": 1}, id="all but one step forgotten"),
        pytest.param({"diameter": 0.02}, id="a diameter a hundred times too small"),
        pytest.param({"expansion": 0.2}, id="a contraction that the update does not have"),
    ],
)
def test_a_wrong_certificate_is_exceeded(fault: dict[str, float]) -> None:
    """Negative control: little noise on a wide interval, where the steps add up."""
    case = Case(sampling=FullBatch(), relation=_ADD, batch=5, steps=12, radius=1.0, learning_rate=1.0, noise=4.0)
    plan = case.plan
    event = plan.event_at(0)
    assert isinstance(event, LastIterateRun)
    wrong = Charge.of(replace(event, **fault))
    for epsilon in (0.5, 1.0):
        exact = max(case.deltas(epsilon))
        assert exact <= certified(plan, epsilon)
        assert exact > 1.2 * delta_at(wrong, epsilon=epsilon, relation=plan.relation)
