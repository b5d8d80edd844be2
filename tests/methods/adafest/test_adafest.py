"""DP-AdaFEST: the counts of touched rows are bounded and charged, and noise covers exactly the selected rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import loop
import replay
from discreet import methods
from discreet.accounting.events import Gaussian, PoissonSampled, Queries
from discreet.auditing.games import play
from discreet.auditing.releases import observing_noise
from discreet.auditing.rows import RowCanaries
from discreet.core.check import Refused
from discreet.core.streams import Stream, Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.layout import Lines
from discreet.methods.adafest.selection import TouchedRows
from discreet.stages.aggregation import RowCounts
from discreet.stages.combination import Combination
from discreet.stages.grid_noise import GridNoise
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.values import Released, StepContext
from discreet.training.handover import check_handover
from discreet.training.private import Private
from discreet.training.step import PrivateStep, RunState

ALPHA = 1e-6  # false-alarm rate of each statistical test
WORDS, TAGS, WIDTH, PAD = 40, 25, 3, 0


class Text(nn.Module):
    """Two tables, one of them looked up twice, a small one of positions, and a dense layer."""

    def __init__(self, words: int = WORDS, tags: int = TAGS) -> None:
        super().__init__()
        self.words = nn.Embedding(words, WIDTH, padding_idx=PAD)
        self.tags = nn.Embedding(tags, WIDTH)
        self.places = nn.Embedding(6, WIDTH)
        self.scale = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor, size: Tensor) -> Tensor:
        places = self.places(torch.arange(6).expand(len(tokens), 6)).mean(1)
        text = self.words(tokens[:, :4]).sum(1) + self.words(tokens[:, 3:6]).sum(1) + self.tags(tokens[:, 6:]).sum(1)
        scores: Tensor = self.scale((text + places) * size.unsqueeze(1))
        return scores


def text() -> Text:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Text()


def recipe(threshold: float = 1.0, clip: float = 0.7, row_clip: float = 1.5, least_rows: int = 20) -> Recipe:
    return methods.adafest(clip=clip, row_clip=row_clip, row_threshold=threshold, least_rows=least_rows)


def hard_records() -> tuple[Tensor, Tensor]:
    """Rows that only one record touches, rows of all, one row many times, padding alone, huge, zero, not finite."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.cat([torch.randint(1, WORDS, (12, 6), generator=generator), torch.zeros(12, 2).long()], 1)
    tokens[:, 6:] = torch.randint(0, TAGS, (12, 2), generator=generator)
    tokens[0, :6], tokens[1] = 7, tokens[2]
    tokens[3, :6] = PAD
    size = torch.ones(12)
    size[4], size[5], size[6], size[7], size[8] = 1e6, 0.0, math.nan, math.inf, 1e-12
    return tokens, size


def gradients(net: nn.Module, tokens: Tensor, size: Tensor) -> list[Tensor]:
    """The gradients of the two tables, by autograd."""
    loss = F.cross_entropy(net(tokens[None], size[None]), torch.tensor([0]))
    return list(torch.autograd.grad(loss, [net.words.weight, net.tags.weight]))


def counts_of(tokens: Tensor, size: Tensor, selection: TouchedRows | None = None) -> Tensor:
    net, selection = text(), selection or recipe().selection
    assert isinstance(selection, TouchedRows)
    engine = Engine(net)
    total = RowCounts(selection, engine)
    if len(tokens):
        engine.begin(len(tokens))
        engine.backward(F.cross_entropy(net(tokens, size), torch.zeros(len(tokens)).long(), reduction="none"))
        total.add()
    engine.close()
    return total.sum(World.current()).value


def test_counts_are_those_of_the_rows_with_a_gradient() -> None:
    tokens, size = hard_records()
    expected = torch.zeros(WORDS + TAGS, dtype=torch.float64)
    for one, scale in zip(tokens, size, strict=True):
        rows = torch.cat([table.abs().sum(1) for table in gradients(text(), one, scale)])
        touched = (rows != 0) if bool(rows.isfinite().all()) else torch.zeros(WORDS + TAGS).bool()
        expected += touched * min(1.0, 1.5 / math.sqrt(max(int(touched.sum()), 1)))
    assert torch.allclose(counts_of(tokens, size), expected, rtol=1e-5)
    assert not bool(expected[PAD]), "padding gets no gradient"
    assert float(expected.max()) > 1


def largest_move(selection: TouchedRows) -> float:
    """Leave every record out in turn: the largest move of the counts, as a share of their sensitivity."""
    tokens, size = hard_records()
    whole, moves = counts_of(tokens, size, selection), []
    for record in range(len(tokens)):
        kept = torch.arange(len(tokens)) != record
        moves.append(float((whole - counts_of(tokens[kept], size[kept], selection)).norm()))
    return max(moves) / selection.query().sensitivity


@pytest.mark.parametrize("clip", [0.3, 1.0, 1.5, 50.0])
def test_each_record_moves_the_counts_by_at_most_the_clip(clip: float) -> None:
    moved = largest_move(TouchedRows(clip=clip, least_rows=20))
    assert moved <= 1
    assert moved > 0.999 or clip == 50.0, "no record reaches the bound"


def test_leave_one_out_sees_counts_that_are_not_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TouchedRows, "per_row", lambda self, rows_N: torch.ones(len(rows_N)).double())
    assert largest_move(TouchedRows(clip=1.0, least_rows=20)) > 2


# -- one release ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Seen:
    """What one step lets out, and the sums before noise."""

    released: Released
    exact: list[Tensor]
    noisy: list[Tensor]
    stds: list[float]

    def rows(self, table: int) -> Tensor:
        """The active rows of a table."""
        assert self.released.mask is not None
        piece = self.released.mask.pieces[table]
        assert isinstance(piece, Lines)
        assert piece.rows is not None
        return piece.rows


def one_step(plan: Plan, net: nn.Module, tokens: Tensor, size: Tensor, seed: int = 0, pieces: int = 1) -> Seen:
    engine, streams = Engine(net), Streams.seeded(seed)
    exact: list[Tensor] = []
    noisy: list[Tensor] = []
    stds: list[float] = []

    def listen(before: list[Tensor], after: list[Tensor], spread: list[float], _: object) -> None:
        exact.extend(before)
        noisy.extend(after)
        stds.extend(spread)

    paid: list[int] = []
    state, world = RunState(), World.current()
    step = PrivateStep(observing_noise(plan, listen), engine, state, streams, lambda e, n: paid.append(n), world)
    for some, sizes in zip(tokens.chunk(pieces), size.chunk(pieces), strict=True) if len(tokens) else ():
        engine.begin(len(some))
        step.add(F.cross_entropy(net(some, sizes), torch.zeros(len(some)).long(), reduction="none"))
    released = step.release()
    engine.close()
    assert paid == [0]
    return Seen(released, exact, noisy, stds)


def test_the_gradient_is_clipped_before_rows_are_dropped() -> None:
    """The exact sum is that of DP-SGD; what leaves are its rows above the threshold, and all dense parameters."""
    tokens, size = hard_records()
    net = text()
    plan = loop.plan(recipe(), noise=0.5)
    seen = one_step(plan, net, tokens, size)
    dense = one_step(loop.plan(methods.dp_sgd(clip=0.7), noise=0.5), net, tokens, size)
    assert torch.equal(seen.exact[1], dense.exact[0])
    counts, gradient = seen.noisy
    assert seen.stds == [4.0 * 0.5 * 1.5, 0.5 * 0.7]
    chosen = counts > seen.stds[0]
    assert torch.equal(chosen, torch.cat([seen.rows(0), seen.rows(1)]))
    assert 0 < int(chosen.sum()) < len(chosen)
    active = torch.cat(
        [chosen.repeat_interleave(WIDTH), torch.ones(seen.released.layout.size - 3 * len(chosen)).bool()]
    )
    assert len(gradient) == int(active.sum()), "noise beyond the selected rows, or too little"
    assert torch.allclose(seen.released.value[active] * plan.horizon.size.batch, gradient)
    assert not bool(seen.released.value[~active].any())


def test_micro_batches_count_alike() -> None:
    tokens, size = hard_records()
    one, many = (one_step(loop.plan(recipe(), noise=0.5), text(), tokens, size, pieces=pieces) for pieces in (1, 4))
    assert torch.equal(one.noisy[0], many.noisy[0])
    assert torch.allclose(one.noisy[1], many.noisy[1], atol=1e-6)


def spread(seen: Seen, std: float) -> float:
    """The p-value of this standard deviation, for the noise of an empty batch on what was released."""
    values = seen.noisy[1].double().numpy()
    square = float(((values / std) ** 2).sum())
    return float(2 * min(stats.chi2.cdf(square, len(values)), stats.chi2.sf(square, len(values))))


def test_noise_covers_the_selected_rows_and_no_others() -> None:
    net = Text(words=20_000, tags=10_000)
    nothing = torch.zeros(0, 8).long(), torch.zeros(0)
    seen = one_step(loop.plan(recipe(threshold=1.0), noise=1.5), net, *nothing, seed=3)
    counts, gradient = seen.noisy
    # An untouched row is selected with the probability that a normal exceeds the threshold.
    assert stats.binomtest(int((counts > seen.stds[0]).sum()), 30_000, stats.norm.sf(1.0)).pvalue > ALPHA
    assert stats.kstest(counts.numpy() / (4 * 1.5 * 1.5), "norm").pvalue > ALPHA
    assert stats.kstest(gradient.double().numpy() / (1.5 * 0.7), "norm").pvalue > ALPHA
    assert spread(seen, 1.5 * 0.7) > ALPHA
    assert spread(seen, 1.5 * 0.7 * 1.05) < ALPHA, "the test would not see other noise"
    # The counts say nothing about the noise of the gradient.
    chosen = counts[counts > seen.stds[0]].numpy()
    first = gradient[: len(chosen) * WIDTH].view(-1, WIDTH)[:, 0].numpy()
    assert stats.spearmanr(chosen, first).pvalue > ALPHA


def test_a_model_without_large_tables_gets_noise_everywhere() -> None:
    seen = one_step(loop.plan(recipe(least_rows=41), noise=1.0), text(), *hard_records())
    assert seen.released.mask is None
    assert len(seen.noisy) == 1


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam], ids=["sgd", "adam"])
def test_rows_that_are_not_selected_rest(kind: type[torch.optim.Optimizer]) -> None:
    """Neither the row nor its optimizer state moves, with momentum and weight decay."""
    net, made = text(), torch.Generator().manual_seed(5)
    tokens, size = torch.randint(1, TAGS, (60, 8), generator=made), torch.ones(60)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(net.parameters(), lr=0.1, weight_decay=0.1, **options)
    plan = loop.plan(recipe(threshold=1.5), noise=0.7)
    data = TensorDataset(tokens, size)
    private = Private(net, optimizer, plan, data, inputs=lambda batch: batch, streams=Streams.seeded(1))
    moved = 0
    for some, sizes in private:
        before = net.words.weight.detach().clone()
        losses = F.cross_entropy(net(some, sizes), torch.zeros(len(some)).long(), reduction="none")
        if private.step(losses):
            rows = (net.words.weight != before).any(1)
            moved += int(rows.sum())
            assert 0 < int(rows.sum()) < WORDS
    assert moved > 0


class Rounded(nn.Module):
    """Looks up rows by the first two inputs, and scales them by the others."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, :2].nan_to_num(0).clamp(-3, 3).round().long() + 3
        return torch.as_tensor(self.head(self.table(rows).sum(1) * x[:, 2:]))


def test_given_its_counts_and_gradients_a_run_hides_every_record() -> None:
    """Replay of what was released: masks, charges and parameters are equal, and no sum moves by more than its bound."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return Rounded()

    plan = methods.adafest(row_threshold=0.5, least_rows=5).bind(
        noise=1.0, horizon=Horizon.of(records=8, batch=8, steps=4), delta=1e-5
    )
    assert replay.leave_one_out(plan, make=make) > 0.9


# -- price ---------------------------------------------------------------------------------------------------------


def test_one_charge_covers_counts_and_gradient() -> None:
    plan = loop.plan(methods.adafest(row_noise=2.0), noise=1.5)
    (charged,) = plan.charge().certified
    rate = loop.BATCH / loop.RECORDS
    assert charged == (PoissonSampled(rate, Queries((Gaussian(1.5), Gaussian(3.0)))), loop.STEPS)
    joint = (1.5**-2 + 3.0**-2) ** -0.5
    reference = from_gaussian_mechanism(joint, sampling_prob=rate).self_compose(loop.STEPS)
    found = plan.certificate().epsilon
    assert found == pytest.approx(reference.get_epsilon_for_delta(plan.delta), rel=0.005)
    assert found > loop.plan(methods.dp_sgd(), noise=1.5).certificate().epsilon * 1.05, "the counts are not free"
    claimed = plan.charge().claimed
    assert claimed is not None
    assert claimed.epsilon(plan.delta) == pytest.approx(found, rel=0.005)


CONFIDENCE = 1 - 1e-6  # tests/auditing/test_releases.py says what it means under fixed keys


def test_an_attack_on_rows_comes_close_and_stays_below() -> None:
    game = RowCanaries(methods.adafest(), noise=1.0, delta=1e-2)
    found = play(game, trials=20_000, delta=1e-2, confidence=CONFIDENCE, generator=np.random.default_rng(1)).epsilon
    certified = game.attacked.plan.certificate().epsilon
    assert 0.4 * certified < found <= certified


@pytest.mark.parametrize("fault", ["noise", "counts"])
def test_the_attack_sees_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little noise anywhere, and counts that are clipped to four times their norm."""
    game = RowCanaries(methods.adafest(row_noise=1.0), noise=1.0, delta=1e-2)
    if fault == "noise":
        real = Stream.add_normal_
        monkeypatch.setattr(Stream, "add_normal_", lambda self, value, std: real(self, value, std / 2))
    else:
        per_row = TouchedRows.per_row
        monkeypatch.setattr(TouchedRows, "per_row", lambda self, rows_N: 4 * per_row(self, rows_N))
    found = play(game, trials=20_000, delta=1e-2, confidence=CONFIDENCE, generator=np.random.default_rng(1)).epsilon
    assert found > game.attacked.plan.certificate().epsilon


# -- tables, and what is refused -----------------------------------------------------------------------------------


class Tied(nn.Module):
    """The weight of the table is also that of the output layer."""

    def __init__(self, *, by_module: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.by_module = by_module
        if by_module:
            self.head = nn.Linear(WIDTH, WORDS, bias=False)
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, size: Tensor) -> Tensor:
        found = self.words(tokens).sum(1) * size.unsqueeze(1)
        return torch.as_tensor(self.head(found) if self.by_module else F.linear(found, self.words.weight))


def test_tables_are_found_by_their_modules() -> None:
    net = nn.ModuleDict({"bag": nn.EmbeddingBag(9, 2), "head": nn.Linear(2, 2), "words": nn.Embedding(5, 2)})
    net["frozen"] = nn.Embedding(7, 2)
    net["frozen"].weight.requires_grad_(False)
    engine = Engine(net)
    assert [engine.layout.names[table] for table in engine.layout.tables] == ["bag.weight", "words.weight"]
    engine.close()
    assert Engine(Tied(by_module=True)).layout.tables == ()
    layout = Engine(text()).layout
    assert TouchedRows(least_rows=20).tables(layout) == (0, 1)
    assert TouchedRows(least_rows=26).tables(layout) == (0,)


def test_a_tied_table_is_dense_and_a_hidden_second_use_is_refused() -> None:
    tokens, size = hard_records()
    plan = loop.plan(recipe(), noise=0.5)
    assert one_step(plan, Tied(by_module=True), tokens[:3], size[:3]).released.mask is None
    with pytest.raises(Refused, match=r"words\.weight, which it also uses in another way"):
        one_step(plan, Tied(by_module=False), tokens[:3], size[:3])


def test_a_table_that_no_record_reaches_is_not_counted() -> None:
    class Unused(Text):
        def forward(self, tokens: Tensor, size: Tensor) -> Tensor:
            return torch.as_tensor(self.scale(self.words(tokens[:, :4]).sum(1)))

    net = Unused()
    seen = one_step(loop.plan(recipe(), noise=0.5), net, *(part[:3] for part in hard_records()))
    assert not bool(seen.exact[0][WORDS:].any())
    assert bool(seen.exact[0][:WORDS].any())


class Halved(Combination):
    """A combination that is not known to fit."""

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        return vectors[0] / 2


def test_other_noise_and_other_gradients_are_refused() -> None:
    with pytest.raises(Refused, match="independent Gaussian noise"):
        recipe().using(mechanism=GridNoise())
    with pytest.raises(Refused, match="the noisy sum itself as gradient"):
        recipe().using(combination=Halved())
    with pytest.raises(Refused, match="freezes coordinates"):
        check_handover(loop.plan(methods.adafest()))


@pytest.mark.parametrize(
    "settings", [{"row_clip": 0.0}, {"row_noise": 0.0}, {"row_threshold": math.nan}, {"least_rows": 0}, {"clip": -1.0}]
)
def test_bad_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(Refused, match=next(iter(settings)).removeprefix("row_")):
        methods.adafest(**settings)  # type: ignore[arg-type]
