"""Where weighted sums go: all coordinates to every process, or to each the shards that it holds."""

from collections.abc import Sequence
from typing import Protocol, final

import torch
from torch import Tensor

from discreet.core.check import require
from discreet.engine.factors.gradients import Gradients, Weighting
from discreet.engine.layout import Layout
from discreet.engine.shards.sharding import Sharding


class Sums(Protocol):
    """Adds the weighted sums of a micro-batch to those of a logical batch."""

    def add(self, gradients: Gradients, weighting: Weighting, totals_Q: Tensor) -> None:
        """totals_Q += the weighted sums."""

    def add_nothing(self, totals_Q: Tensor) -> None:
        """Take part in an addition of other processes, without a record of this one."""


@final
class WholeSums(Sums):
    """Every process has sums of its own, on all coordinates."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def add(self, gradients: Gradients, weighting: Weighting, totals_Q: Tensor) -> None:
        gradients.add_weighted(weighting, self._layout.views(totals_Q))

    def add_nothing(self, totals_Q: Tensor) -> None:
        """The others do not wait for this process."""


@final
class SumsByShard(Sums):
    """Each process has the sums over all processes, on the shards that it holds.

    The sums of one group of parameters exist as a whole at a time.

    layout  of whole parameters
    held    of the shards of this process
    """

    def __init__(self, sharding: Sharding, layout: Layout, held: Layout) -> None:
        self._across, self._held, self._shapes = sharding.across, held, layout.shapes
        places = {name: place for place, name in enumerate(layout.names)}
        groups = [[places[name] for name in group if name in places] for group in sharding.groups]
        self._groups = [group for group in groups if group]
        require(
            sorted(place for group in self._groups for place in group) == list(range(len(layout.names))),
            "groups of shards in which every trained parameter lies once",
            sharding.groups,
            "call fully_shard once for each module: a parameter that lies in two groups would count twice",
        )

    def add(self, gradients: Gradients, weighting: Weighting, totals_Q: Tensor) -> None:
        factors = gradients.factors()
        for group in self._groups:
            sums = self._zeros(group, totals_Q)
            for place in group:
                own = factors[place]
                if weighting.is_last:
                    factors[place] = None
                if own is not None:
                    weighting.add(place, own, sums[place])
            self._scatter(sums, totals_Q)

    def add_nothing(self, totals_Q: Tensor) -> None:
        for group in self._groups:
            self._scatter(self._zeros(group, totals_Q), totals_Q)

    def _zeros(self, group: Sequence[int], totals_Q: Tensor) -> dict[int, Tensor]:
        return {place: totals_Q.new_zeros(len(totals_Q), *self._shapes[place]) for place in group}

    def _scatter(self, sums: dict[int, Tensor], totals_Q: Tensor) -> None:
        """totals_Q += this process's rows of the sums over all processes."""
        sizes, pieces = [], []
        for rank in range(self._across.size):
            own = [whole[:, rows_of(rank, self._across.size, whole.shape[1])].flatten() for whole in sums.values()]
            sizes.append(sum(map(len, own)))
            pieces += own
        mine = self._across.sum_of_pieces(torch.cat(pieces), sizes)
        views = self._held.views(totals_Q)
        for place, part in zip(sums, mine.split([views[place].numel() for place in sums]), strict=True):
            views[place] += part.view(views[place].shape)


def rows_of(rank: int, ranks: int, size: int) -> slice:
    """The rows of a process, as torch.chunk divides them.

    >>> [rows_of(rank, 4, 5) for rank in range(4)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(5, 5, None)]
    """
    each = -(-size // ranks)
    return slice(min(rank * each, size), min((rank + 1) * each, size))
