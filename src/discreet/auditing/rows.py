"""The game on rows of a table that a noisy count selects: the attacker sees the noisy counts and the selected rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from discreet.auditing.bounds import Flags, Floats
from discreet.auditing.games import by_world
from discreet.auditing.releases import Attacked, active_in, observing_noise
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.engine.engine import Engine
from discreet.stages.plan import Recipe
from discreet.stages.values import StepContext

ROWS = 1000
_LOUD = 1000  # the norm of a canary's gradient: beyond every clip
_SURE = 5.0  # standard deviations by which the counts of the other records exceed the threshold


@final
class _ScaledLookup(nn.Module):
    """(row, scale) to scale * weight[row]: the gradient of a record is its scale, on its row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 1)

    def forward(self, records: Tensor) -> Tensor:
        return torch.as_tensor(self.table(records[:, 0]) * records[:, 1:].float())


@final
class RowCanaries:
    """Many records in one release, each on a row of its own and included by a fair coin: one trial each.

    Other records touch each row, so that it is selected almost surely; their gradients cancel. The statistic is the
    likelihood ratio of the noisy count and, if the row was selected, of the noisy gradient. Noise is independent and
    every bound is of one record, so the trials of one release are independent.
    """

    def __init__(self, recipe: Recipe, *, noise: float, delta: float) -> None:
        is_played = recipe.relation is Neighbouring.ADD_REMOVE and recipe.mechanism.is_independent
        check.require(is_played, "independent noise under add/remove", recipe, "play another game")
        with _lookup() as (_, engine):
            others = _others(recipe, engine, noise)
        self._others = torch.stack([torch.arange(ROWS).repeat(others), torch.ones(others * ROWS, dtype=torch.int64)], 1)
        self._others[: len(self._others) // 2, 1] = -1
        self.attacked = Attacked.of(recipe, records=ROWS * (others + 1), noise=noise, delta=delta)
        self._others_count = others

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        own = torch.stack([torch.arange(ROWS), torch.full((ROWS,), _LOUD)], 1)

        def play() -> tuple[Flags, Floats]:
            there = generator.random(ROWS) < 0.5
            records = torch.cat([self._others, own[torch.from_numpy(there)]])
            return there, self._ratios(net, engine, records)

        with _lookup() as (net, engine):
            return by_world(play, trials)

    def _ratios(self, net: nn.Module, engine: Engine, records: Tensor) -> Floats:
        seen: list[tuple[Tensor, float]] = []

        def listen(exact: list[Tensor], noisy: list[Tensor], stds: list[float], context: StepContext) -> None:
            seen.append((noisy[0].double(), stds[0]))

        plan = observing_noise(self.attacked.playing, listen)
        (released,) = self.attacked.run(net, engine, records, plan=plan)
        (counts, count_std), (_, gradient_std) = seen
        query, *_, counted = plan.queries(1.0)
        ratios = _ratio(counts - self._others_count * counted.sensitivity, counted.sensitivity, count_std)
        gradient = _ratio(released.value.double() * self.attacked.batch, query.sensitivity, gradient_std)
        return (ratios + gradient * active_in(released)).numpy()


def _ratio(seen: Tensor, shift: float, std: float) -> Tensor:
    """The log-likelihood ratio of N(shift, std^2) and N(0, std^2)."""
    return (seen - shift / 2) * (shift / std**2)


def _others(recipe: Recipe, engine: Engine, noise: float) -> int:
    """How many records of the others must touch each row, an even number, so that the noisy counts select it."""
    counting = recipe.selection.counting
    if counting is None or not counting.tables(engine.layout):
        check.refuse(f"a selection that counts the rows of a table of {ROWS}", recipe.selection, "lower least_rows")
    std, others, are_selected = counting.query().std(noise), 1, False
    while not are_selected:
        others *= 2
        check.require(others < 2**20, "a threshold that many records exceed", recipe.selection, "lower the threshold")
        counts = torch.full((ROWS,), others * counting.query().sensitivity - _SURE * std, dtype=torch.float64)
        mask = counting.select(counts, std, engine.layout)
        are_selected = mask is None or all(piece is True or bool(piece.rows.all()) for piece in mask.pieces)
    return others


@contextmanager
def _lookup() -> Iterator[tuple[nn.Module, Engine]]:
    """A table with one column, and its engine."""
    net = _ScaledLookup()
    engine = Engine(net)
    try:
        yield net, engine
    finally:
        engine.close()
