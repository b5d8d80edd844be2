"""Fixed rows: every pass has the same number of rows, and a record's row is a secret draw of its own.

Kernels round a row by the number of rows in the call and by the row's place. With fixed rows the first is a public
constant and the second does not depend on other records, so that neither does the rounding of a record's gradient
(docs/proofs/FixedRows.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from discreet.core import check
from discreet.core.world import World
from discreet.stages.plan import Plan
from discreet.stages.sampling import TruncatedPoisson
from discreet.training.draws import Draw

if TYPE_CHECKING:
    from discreet.core.streams import Stream, Streams
    from discreet.engine.shards.sharding import Sharding

PLACES: Final = 2**50  # the sub-stream that places records; it must differ from all others of the sampling stream


@final
class Slots:
    """The places of a logical batch: `passes` passes of `rows` rows each, both public.

    Guarantee: the places of the records are a uniform random injection, drawn by a secret stream independently of
    everything else, anew in each step. So without one record those of the others have the same distribution, and the
    number and the sizes of the passes do not depend on the sample.
    """

    def __init__(self, rows: int, capacity: int, stream: Stream) -> None:
        self.rows, self.passes, self._stream = rows, math.ceil(capacity / rows), stream

    def lay(self, draw: Draw) -> Draw:
        """Lay the records into all places. A vacant place names record 0, which is replaced when it is loaded."""
        count, places = len(draw.records), self.rows * self.passes
        remedy = "build the plan with a larger `records`, which must be a public upper bound"
        check.require(count <= places, "no more records than the plan's largest batch", "more", remedy)
        at = self._stream.permutation(places)[:count]
        records, vacant = np.zeros(places, dtype=np.int64), np.ones(places, dtype=np.bool_)
        records[at], vacant[at] = draw.records, False
        return Draw(records, vacant=vacant)


def slots_of(
    plan: Plan, rows: int | None, micro_batch: int | None, data: Any, streams: Streams, sharding: Sharding | None
) -> Slots | None:
    """The places of a run with fixed rows, None without; combinations that are not proven are refused by name."""
    if rows is None:
        return None
    check.count("fixed_rows is the number of rows in every forward pass, e.g. 64", fixed_rows=rows)
    reasons = {
        "micro_batch, which fixed_rows replaces": micro_batch is not None,
        "your own loader, whose batches the library does not lay": data is None or plan.sampling.is_own_loader,
        "a plan that protects users, whose records lie side by side": not plan.unit.is_record,
        "several processes": World.current().size > 1,
        "a model that FSDP2 divides among processes": sharding is not None,
    }
    came = [reason for reason, holds in reasons.items() if holds]
    remedy = "leave fixed_rows out, or train in one process on a dataset from which the plan draws single records"
    check.require(not came, "a run that can have fixed_rows", "; ".join(came), remedy)
    capacity = plan.sampling.capacity(plan.horizon)
    if capacity is None:
        other = TruncatedPoisson.seldom_cut(plan.horizon, multiple_of=rows)
        remedy = f"build the plan with recipe.using(sampling=discreet.{other}), or with FixedSize() under replace-one"
        got = f"{type(plan.sampling).__name__}, whose batches have no public limit"
        check.refuse("sampling with a largest batch, for fixed_rows", got, remedy)
    return Slots(rows, capacity, streams.sampling.at(PLACES))
