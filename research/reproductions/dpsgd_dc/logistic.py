"""Full-batch private logistic regression in closed form: the updates of `Private`, thousands of them a minute.

research/research/tests/test_experiments_bounded.py compares it with the library's own step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse, special

from discreet.core import check
from discreet.core.streams import Streams
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.methods.dpsgd_dc.curvature import LinearModel, Link
from discreet.methods.dpsgd_dc.domain import Ball, Centre
from discreet.methods.dpsgd_dc.guard import ClippedFeatures
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Plan
from discreet.stages.sampling import FullBatch

Floats = npt.NDArray[np.float32]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Clipped features with a 1 for the bias, and labels 0 or 1; sparse, as one-hot features are."""

    rows: sparse.csr_matrix
    columns: sparse.csr_matrix
    lengths: Floats
    labels: Floats

    @staticmethod
    def of(x: torch.Tensor, y: torch.Tensor, *, bound: float) -> Records:
        clipped = ClippedFeatures(bound)(x).numpy()
        rows = sparse.csr_matrix(np.hstack([clipped, np.ones((len(clipped), 1), np.float32)]))
        lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(1), np.float32)).ravel()
        return Records(rows=rows, columns=rows.T.tocsr(), lengths=lengths, labels=y.numpy().astype(np.float32))

    def accuracy(self, weights: Floats) -> float:
        """The share of correctly classified records."""
        return float(((self.rows @ weights > 0) == (self.labels > 0.5)).mean())


def trained(plan: Plan, records: Records, *, seed: int, visible: LastIterate | None = None) -> Floats:
    """The last iterate of a full-batch plan that starts at the origin: weights and bias.

    visible  where the plan is priced by composition: the learning rate and decay that it is run with
    """
    horizon, bounder, domain = plan.horizon, plan.bounder, plan.domain
    analysis = plan.analysis if isinstance(plan.analysis, LastIterate) else visible
    check.require(
        isinstance(plan.sampling, FullBatch)
        and isinstance(bounder, FlatClip)
        and isinstance(domain, Ball)
        and domain.centre is Centre.ORIGIN
        and isinstance(analysis, LastIterate)
        and isinstance(analysis.curvature, LinearModel)
        and analysis.curvature.link is Link.LOGISTIC,
        "a full-batch logistic plan in a ball around the origin",
        plan.method,
        "train other plans with Private",
    )
    assert isinstance(bounder, FlatClip)
    assert isinstance(domain, Ball)
    assert isinstance(analysis, LastIterate)
    noise, batch = Streams.seeded(seed).noise, horizon.size.batch
    std = plan.noise * bounder.clip
    weights = np.zeros(records.rows.shape[1], np.float32)
    for _ in range(horizon.steps):
        slope = special.expit(records.rows @ weights) - records.labels
        slope *= np.minimum(1, bounder.clip / np.maximum(np.abs(slope) * records.lengths, 1e-30))
        total = torch.from_numpy(records.columns @ slope)
        noisy = noise.add_normal_(total, std).numpy() / np.float32(batch)
        weights = weights - np.float32(analysis.learning_rate) * (noisy + np.float32(analysis.decay) * weights)
        length = float(np.linalg.norm(weights))
        if length > domain.radius:
            weights *= np.float32(domain.radius / length)
    return weights
