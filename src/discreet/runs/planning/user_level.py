"""Which way to protect users needs less noise, for given public numbers.

Both ways see about as many records in a step. They are compared by the deviation of the noise on the mean gradient, in
clips: the noise multiplier divided by the number of contributions in a batch, users or records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from discreet.core import check
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.unit import CappedRecords, SampledUsers, Unit


@final
@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to protect users, calibrated to the budget. `effective` is the noise on the mean gradient, in clips."""

    plan: Plan

    @property
    def unit(self) -> Unit:
        return self.plan.unit

    @property
    def effective(self) -> float:
        return self.plan.noise / self.plan.horizon.size.batch

    @property
    def words(self) -> str:
        return "sample users" if isinstance(self.unit, SampledUsers) else "sample records"

    def to_json(self) -> dict[str, Any]:
        size = self.plan.horizon.size
        return {
            "sample": self.words.removeprefix("sample "),
            "per_user": self.unit.per_user,
            "records": size.records,
            "batch": size.batch,
            "noise": self.plan.noise,
            "effective": self.effective,
        }


def ways(
    recipe: Recipe, *, users: int, records: int, per_user: int, epsilon: float, delta: float, batch: int, steps: int
) -> tuple[Way, Way]:
    """Both ways, the one with less noise first. `batch` is the number of records that a step can take.

    >>> from discreet import methods
    >>> numbers = {"users": 5000, "records": 100_000, "epsilon": 3.0, "delta": 1e-6, "batch": 2000, "steps": 500}
    >>> [way.words for way in ways(methods.dp_sgd(clip=1.0), per_user=20, **numbers)]
    ['sample records', 'sample users']
    """
    check.count("public numbers of users and records", users=users, records=records, per_user=per_user)
    check.require(users <= records, f"users <= records={records}", f"users={users}", "count owners, not records")
    each = min(records / users, per_user)  # records of a user in a step
    used = min(records, users * per_user)
    drawn = max(1, min(users, round(batch / each)))
    sizes: tuple[tuple[Unit, int, int], ...] = (
        (SampledUsers(per_user=per_user), users, drawn),
        (CappedRecords(per_user=per_user), used, min(batch, used)),
    )
    found = [
        Way(
            plan=recipe.using(unit=unit).for_horizon(
                epsilon=epsilon, delta=delta, horizon=Horizon.of(records=size, batch=expected, steps=steps)
            )
        )
        for unit, size, expected in sizes
    ]
    first, second = sorted(found, key=lambda way: way.effective if math.isfinite(way.effective) else math.inf)
    return first, second
