"""Gradient embedding perturbation: bounds of both parts, noise of both parts, and the basis from public records."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import loop
from discreet import methods
from discreet.accounting.events import Gaussian, PoissonSampled, Queries
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.active import Active
from discreet.engine.engine import Engine
from discreet.engine.layout import Layout, Mask
from discreet.methods.gep import clipping
from discreet.methods.gep.clipping import EmbeddingClip
from discreet.methods.gep.combination import FromEmbedding
from discreet.methods.gep.subspace import ACTIVE, BASIS, MADE_AT, Basis, Subspace
from discreet.stages.aggregation import Aggregation
from discreet.stages.plan import Plan
from discreet.stages.sampling import OwnLoader
from discreet.stages.selection import Order
from discreet.stages.values import PUBLIC, StepContext
from discreet.training import checkpoint
from discreet.training.step import PrivateStep, RunState

ALPHA = 1e-6  # false-alarm rate of each statistical test
CLIP, RESIDUAL, SIZE = 0.7, 0.3, 19
BOUNDER = EmbeddingClip(CLIP, RESIDUAL, Subspace(rank=0.3, groups=3))


def memory_with(*parts: Tensor) -> dict[str, Tensor]:
    return {f"{BASIS}.{group}": part for group, part in enumerate(parts)}


def orthonormal(widths: tuple[int, ...], sizes: tuple[int, ...], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(size, width, generator=generator) for width, size in zip(widths, sizes, strict=True)]
    return memory_with(*(torch.linalg.qr(one).Q.T.contiguous() for one in made))


def skewed() -> dict[str, Tensor]:
    """A basis that is far from orthonormal, as no public record should make it."""
    return {name: 50 * part + 3 for name, part in orthonormal((2, 3, 2), (7, 6, 6)).items()}


BASES = [{}, orthonormal((2, 3, 2), (7, 6, 6)), orthonormal((7, 6, 6), (7, 6, 6)), skewed()]


def hard_records(memory: dict[str, Tensor]) -> Tensor:
    """In the public subspace, orthogonal to it, huge, tiny, opposite, twice the same, zero, not finite."""
    generator = torch.Generator().manual_seed(3)
    basis, ordinary = Basis.within(memory), torch.randn(SIZE, generator=generator)
    inside = basis.lift(basis.embed(ordinary), SIZE)
    outside = ordinary - inside
    rows = [scale * one for one in (inside, outside, ordinary) for scale in (1.0, 1e-38, 1e-20, 1e6, 1e30, 3e37)]
    rows += [-ordinary, ordinary, ordinary, torch.zeros(SIZE), 1e-3 * ordinary]
    for bad in (math.nan, math.inf, -math.inf):
        poisoned = ordinary.clone()
        poisoned[4] = bad
        rows.append(poisoned)
    rows.append(torch.full((SIZE,), 3e38))  # its norm is no float32
    return torch.stack(rows)


@functools.cache
def engine_of(size: int) -> Engine:
    return Engine(nn.Linear(size, 1, bias=False))


def sums(bounder: EmbeddingClip, records: Tensor, memory: dict[str, Tensor], mask: Mask | None = None) -> list[Tensor]:
    """What a batch of records with these gradients adds up to, through the engine and the aggregation."""
    engine = engine_of(records.shape[1])
    total = Aggregation(bounder, 1.0, engine, mask, Order.FREEZE_THEN_CLIP, memory)
    engine.begin(len(records))
    engine.backward(engine.model(records).squeeze(1))
    total.add()
    return [one.value.double() for one in total.sums(World.current()).vectors]


def check_bounds(bounder: EmbeddingClip, memory: dict[str, Tensor], mask: Mask | None = None) -> list[float]:
    """Leave every record out in turn. Returns the largest move of each sum, as a share of its sensitivity."""
    records = hard_records(memory if mask is None else {})
    whole, largest = sums(bounder, records, memory, mask), [0.0] * len(bounder.vectors(1.0))
    for record in range(len(records)):
        kept = sums(bounder, records[torch.arange(len(records)) != record], memory, mask)
        shares = []
        for index, query in enumerate(bounder.vectors(1.0)):
            assert bool(whole[index].isfinite().all()), "a record poisons the sum"
            shares.append(float((whole[index] - kept[index]).norm()) / query.sensitivity)
            assert shares[-1] <= 1 + 1e-5, "a record moves a sum by more than its sensitivity"
            largest[index] = max(largest[index], shares[-1])
        whitened = sum((moved / q.share) ** 2 for moved, q in zip(shares, bounder.vectors(1.0), strict=True))
        assert whitened <= 1 + 2e-5, "a record moves both sums by more than one budget"
    return largest


@pytest.mark.parametrize("residual", [RESIDUAL, None])
@pytest.mark.parametrize("memory", BASES, ids=["none", "orthonormal", "all", "skewed"])
def test_each_record_is_bounded_in_both_parts(memory: dict[str, Tensor], residual: float | None) -> None:
    largest = check_bounds(EmbeddingClip(CLIP, residual, BOUNDER.subspace), memory)
    if memory:
        assert largest[-1] > 0.999, "no record reaches the bound of the embedding"
    if residual is not None and len(memory) == 0:
        assert largest[0] > 0.999, "no record reaches the bound of the residual"


def test_leave_one_out_sees_a_clip_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "ROUND_DOWN", 1.001)
    with pytest.raises(AssertionError, match="more than its sensitivity"):
        check_bounds(BOUNDER, BASES[1])


def test_a_record_that_is_not_finite_contributes_nothing() -> None:
    bad = torch.full((1, SIZE), math.nan)
    assert not any(bool(one.any()) for one in sums(BOUNDER, bad, BASES[1]))


def test_under_a_mask_both_sums_live_on_active_coordinates() -> None:
    active = torch.arange(SIZE) % 3 != 1
    mask, count = Mask((active.view(1, SIZE),)), int(active.sum())
    memory = orthonormal((2, 3), (7, count - 7))
    check_bounds(BOUNDER, memory, mask)
    finite = hard_records({})
    finite = finite[finite.double().norm(dim=1).isfinite()][:-1]
    found = sums(BOUNDER, finite, memory, mask)
    assert all(not bool(one[~active].any()) for one in found)
    again = sums(BOUNDER, finite[:, active], memory)  # the same gradients without the frozen coordinates
    for one, other in zip(found, again, strict=True):
        torch.testing.assert_close(one[active], other, rtol=1e-4, atol=1e-5)


def test_embeddings_and_residuals_are_those_of_explicit_gradients() -> None:
    net = loop.model()
    engine, (x, y) = Engine(net), loop.data(9).tensors
    memory = orthonormal((5, 4), (22, 22))
    total = Aggregation(EmbeddingClip(1e6, 1e6), 1.0, engine, None, Order.FREEZE_THEN_CLIP, memory)
    engine.begin(9)
    engine.backward(loop.losses(net, x, y))
    total.add()
    residual, embedding = (one.value for one in total.sums(World.current()).vectors)
    engine.close()
    basis = torch.block_diag(*memory.values())
    explicit = torch.zeros(44)
    for record in range(9):
        one = loop.losses(net, x[record : record + 1], y[record : record + 1]).sum()
        explicit += torch.cat([part.flatten() for part in torch.autograd.grad(one, list(net.parameters()))])
    torch.testing.assert_close(embedding[:9], basis @ explicit, rtol=1e-5, atol=1e-6)
    assert not bool(embedding[9:].any())
    torch.testing.assert_close(residual, explicit - basis.T @ (basis @ explicit), rtol=1e-5, atol=1e-6)


# -- price and noise ------------------------------------------------------------------------------------------


def test_both_queries_cost_one_release() -> None:
    plan = loop.plan(methods.gep(clip=5.0), noise=1.3)
    queries = plan.queries(1.0)
    event = plan.mechanism.event(queries, 1.3)
    assert isinstance(event, Queries)
    assert event.whitened.noise == pytest.approx(1.3, rel=1e-12)
    assert [query.sensitivity for query in queries] == [pytest.approx(2.0), 5.0]
    assert loop.plan(methods.b_gep(), noise=1.3).mechanism.event(methods.b_gep().queries(1.0), 1.3) == Gaussian(1.3)


def test_the_split_has_the_least_error() -> None:
    def energy(split: float) -> float:
        return 0.01 * 5**2 / split + 0.99 * 2**2 / (1 - split)

    best = methods.gep(clip=5.0, rank=0.01).bounder
    assert isinstance(best, EmbeddingClip)
    assert energy(best.split) < min(energy(best.split * factor) for factor in (0.5, 0.9, 1.1, 2.0))


def noise_of(recipe_noise: float, seed: int) -> tuple[Tensor, Basis, Plan]:
    """The release of an empty batch with a basis of 1500 vectors on 6000 coordinates."""
    plan = loop.plan(methods.gep(rank=0.25), noise=recipe_noise)
    net = nn.Linear(3000, 2, bias=False)
    engine, memory = Engine(net), orthonormal((750, 750), (3000, 3000))
    state = RunState(memory=memory)
    step = PrivateStep(plan, engine, state, Streams.seeded(seed), lambda event, at: None, World.current())
    released = step.release().value * plan.horizon.size.batch
    engine.close()
    return released, Basis.within(memory), plan


def noise_fits(released: Tensor, basis: Basis, stds: tuple[float, float]) -> bool:
    """Whether the noise inside the subspace and outside of it has these sizes."""
    inside = basis.embed(released).double()
    outside = (released - basis.lift(basis.embed(released), len(released))).double()
    fits = True
    for value, std, freedom in ((outside, stds[0], 4500), (inside, stds[1], 1500)):
        spread = float(value.square().sum()) / std**2
        fits = fits and 2 * min(stats.chi2.cdf(spread, freedom), stats.chi2.sf(spread, freedom)) > ALPHA / 3
    return fits and stats.kstest(inside.numpy() / stds[1], "norm").pvalue > ALPHA / 3


def test_each_part_has_its_noise() -> None:
    released, basis, plan = noise_of(1.3, seed=5)
    residual, embedding = (query.std(1.3) for query in plan.queries(1.0))
    assert noise_fits(released, basis, (residual, embedding))
    for wrong in (0.8, 1.25):  # the negative control
        assert not noise_fits(released, basis, (residual * wrong, embedding))
        assert not noise_fits(released, basis, (residual, embedding * wrong))


def test_without_noise_and_clipping_the_parts_make_the_whole_gradient() -> None:
    vectors = [torch.randn(22, generator=torch.Generator().manual_seed(1))]
    memory = orthonormal((3, 4), (11, 11))
    basis = Basis.within(memory)
    embedding = torch.zeros(22)
    embedding[:7] = basis.embed(vectors[0])
    residual = vectors[0] - basis.lift(embedding[:7], 22)
    context = StepContext(
        step=0, steps_per_epoch=1, batch=1.0, layout=Layout(("w",), ((22,),)), streams=Streams.seeded(0), memory=memory
    )
    torch.testing.assert_close(FromEmbedding().gradient([residual, embedding], [], context), vectors[0])
    alone = FromEmbedding().gradient([embedding], [], context)
    torch.testing.assert_close(alone, vectors[0] - residual)


def test_the_claim_adds_up_the_parts_as_if_their_samples_were_independent() -> None:
    plan = loop.plan(methods.gep(rank=0.3))
    claimed = plan.charge().claimed
    assert claimed is not None
    kinds = {type(event) for event, _ in claimed.events}  # type: ignore[attr-defined]
    assert kinds == {PoissonSampled}
    assert claimed.epsilon(1e-5) < plan.certificate().epsilon  # one sample serves both: the certificate is larger


# -- the basis ------------------------------------------------------------------------------------------------


def run_of(recipe_steps: int = 8, **options: object) -> Plan:
    settings = {"rank": 0.2, "groups": 2, "public_batch": 16, "refresh": 3, **options}
    return loop.plan(methods.gep(**settings), steps=recipe_steps)  # type: ignore[arg-type]


def test_a_basis_is_made_every_few_steps_and_costs_nothing() -> None:
    run, made = loop.private(which=run_of()), []
    for x, y in run:
        run.step(loop.losses(run.model, x, y))
        made.append(int(run.progress.memory.get(MADE_AT, torch.tensor(-1))))
    assert sorted(set(made) - {-1}) == [0, 3, 6]
    assert run.ledger.length == 8
    basis = torch.block_diag(*Basis.within(run.progress.memory).parts)
    torch.testing.assert_close(basis @ basis.T, torch.eye(len(basis)), atol=1e-5, rtol=0)
    assert len(basis) == 8  # a fifth of 44 in two groups
    run.close()


def test_public_batches_do_not_enter_the_sums() -> None:
    """Whatever the public records are, a private batch of gradients inside both bounds has the same sum."""
    released = []
    for seed in (1, 2):
        public = TensorDataset(
            torch.randn(30, 4, generator=torch.Generator().manual_seed(seed)), torch.zeros(30, dtype=torch.long)
        )
        plan = loop.plan(methods.gep(clip=1e5, residual_ratio=1.0, rank=0.2), noise=0.0, steps=1)
        run = loop.private(which=plan, public=public, seed=4)
        loop.train(run)
        released.append(loop.weights(run.model))
        run.close()
    torch.testing.assert_close(released[0], released[1], rtol=1e-5, atol=1e-5)


def test_power_iteration_finds_the_directions_of_public_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(40, 3, generator=generator)).Q.T
    public = torch.randn(200, 3, generator=generator) * torch.tensor([9.0, 4.0, 2.0]) @ directions
    public += 0.05 * torch.randn(200, 40, generator=generator)
    context = StepContext(
        step=0, steps_per_epoch=1, batch=1.0, layout=Layout(("w",), ((40,),)), streams=Streams.seeded(0)
    )
    subspace, lost = Subspace(rank=0.075, groups=1), []
    for step in (0, 20):
        now = dataclasses.replace(context, step=step)
        learning = subspace.learning(now)
        assert learning is not None
        for chunk in public.split(64):
            learning.add(chunk)
        learning.finish()
        assert subspace.learning(now) is None
        rest = public.clone()
        Basis.within(context.memory).split_(rest, keep_residual=True)
        lost.append(float(rest.norm() / public.norm()))
    assert lost[1] < 0.1
    assert lost[1] <= lost[0] + 1e-6


def test_with_random_freeze_the_basis_is_on_active_coordinates() -> None:
    freeze = methods.random_freeze(final_rate=0.5, cooling_epochs=2).selection
    plan = run_of(15, refresh=100).using(selection=freeze)
    run, made = loop.private(which=plan), set()
    for x, y in run:
        run.step(loop.losses(run.model, x, y))
        made.add(int(run.progress.memory.get(MADE_AT, torch.tensor(-1))))
    assert made - {-1} == {0, 5, 10}  # a new mask in every epoch
    basis = Basis.within(run.progress.memory)
    assert sum(part.shape[1] for part in basis.parts) == 22 == len(run.progress.memory[ACTIVE])
    run.close()


def test_a_basis_of_other_coordinates_is_refused() -> None:
    with pytest.raises(Refused, match="coordinates of the basis"):
        sums(BOUNDER, torch.ones(1, SIZE), orthonormal((2,), (7,)))


def test_clipping_before_freezing_is_refused() -> None:
    freeze = methods.random_freeze(order=Order.CLIP_THEN_FREEZE).selection
    with pytest.raises(Refused, match="freeze-then-clip"):
        methods.gep().using(selection=freeze)


# -- the argument ---------------------------------------------------------------------------------------------


def test_public_records_are_required_and_only_there() -> None:
    data = loop.data()
    with pytest.raises(Refused, match="public records for gep"):
        loop.private(which=run_of(), public=None)
    with pytest.raises(Refused, match="does not use any"):
        loop.private(public=data)
    with pytest.raises(Refused, match="not the protected ones"):
        loop.private(which=run_of(), dataset=data, public=data)
    with pytest.raises(Refused, match="empty dataset"):
        loop.private(which=run_of(), public=loop.data(0))


def test_that_public_records_are_public_is_the_users_word(tmp_path: Path) -> None:
    run = loop.private(which=run_of(), ledger=tmp_path / "ledger", streams=Streams.from_os())
    loop.train(run)
    word = "if no protected record is among the public records"
    assert word in run.plan.certificate().conditions
    assert word in run.spent().certified.conditions
    assert word in (tmp_path / "ledger").read_text()
    run.close()


def test_own_loaders_views_and_empty_batches_have_their_basis_too() -> None:
    recipe = methods.gep(rank=0.2, groups=2, public_batch=16, refresh=3).using(sampling=OwnLoader())
    which = loop.plan(recipe.using(relation=Neighbouring.REPLACE_ONE), steps=4)
    run = loop.private(which=which, dataset=None, views=2)
    x, y = loop.data(12).tensors
    for batch, labels in run.over([(x, y), (x[:0], y[:0]), (x, y), (x, y)]):
        run.step(loop.losses(run.model, batch, labels))
    assert run.progress.step == 4
    assert int(run.progress.memory[MADE_AT]) == 3
    run.close()


def test_an_empty_batch_is_noise_in_both_parts() -> None:
    plan = loop.plan(methods.gep(rank=0.2, refresh=1), records=10_000, batch=1e-9, steps=2)
    run = loop.private(which=plan, dataset=loop.data(3))
    before = loop.weights(run.model)
    loop.train(run)
    assert run.progress.step == 2
    assert int(run.progress.memory[MADE_AT]) == 1
    assert bool((loop.weights(run.model) != before).all())
    run.close()


def test_checkpoints_leave_the_basis_out(tmp_path: Path) -> None:
    run = loop.private(which=run_of(), ledger=tmp_path / "ledger", streams=Streams.from_os())
    loop.train(run, most=5)
    run.save(tmp_path / "saved")
    run.close()
    held = checkpoint.Checkpoint.read(tmp_path / "saved")
    assert not [name for name in held.memory if name.startswith(PUBLIC)]
    again = loop.private(
        which=run_of(), ledger=tmp_path / "ledger", resume=tmp_path / "saved", streams=Streams.from_os()
    )
    loop.train(again)
    assert again.progress.step == 8 == again.ledger.length
    again.close()


def test_rows_under_a_mask_are_the_active_coordinates() -> None:
    engine = engine_of(SIZE)
    records = hard_records({})[:3]
    mask = Mask(((torch.arange(SIZE) % 2 == 0).view(1, SIZE),))
    engine.begin(3)
    engine.backward(engine.model(records).squeeze(1))
    whole, part = engine.per_sample(0, 3), engine.per_sample(0, 3, mask)
    torch.testing.assert_close(part, whole[:, Active.of(mask, engine.layout, engine.device).whole])
    engine.discard()
