"""What a plan's newer stages are promised: one charge for a whole run, hidden sums, a domain, a combination."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from discreet import Private, methods
from discreet.accounting.charges import Charge
from discreet.accounting.events import Event, Free, Gaussian, NonPrivate
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.engine.layout import Layout
from discreet.stages.analysis import Analysis, NoGuard, Unproven
from discreet.stages.clipping import Bounder, ClippedSum, FlatClip, Query
from discreet.stages.noise import GaussianNoise, Mechanism
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon
from discreet.stages.selection import Selection
from discreet.stages.values import BoundedSum, PrivateState, StepContext

HORIZON = Horizon.of(records=40, batch=10, steps=6)
PLAIN = GaussianNoise()


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(40, 5, generator=generator), torch.randint(0, 3, (40,), generator=generator))


def train(plan: Plan, *, stop: int | None = None, seed: int = 1, **more: Any) -> Private:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = Private(model, optimizer, plan, data(), streams=Streams.seeded(seed), **more)
    for x, y in private:
        private.step(F.cross_entropy(model(x), y, reduction="none"))
        if stop is not None and private.progress.step == stop:
            break
    return private


def bound(noise: float = 1.0, **changes: Any) -> Plan:
    plan = methods.dp_sgd(clip=1.0).using(**changes)
    return plan.bind(noise=noise, horizon=HORIZON, delta=1e-5)


# One charge for the run -----------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class AtOnce(Analysis):
    """A whole run for the price of one release."""

    visible: bool = True

    def check(self, plan: Plan) -> None: ...

    def whole_run(self, plan: Plan) -> Event | None:
        return Gaussian(plan.noise)

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        return ("this is a test",)

    def guard(self, plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer) -> NoGuard:
        return NoGuard()


def test_a_whole_run_is_charged_before_its_first_release_and_the_ledger_still_counts(tmp_path: Path) -> None:
    plan = bound(analysis=AtOnce())
    run = train(plan, ledger=tmp_path / "ledger")
    assert plan.charge() == Charge(((Gaussian(1.0), 1),), assumptions=("this is a test",))
    assert run.ledger.charge().certified == plan.charge().certified == read(tmp_path / "ledger").charge().certified
    assert [entry.event for entry in run.ledger.entries] == [Gaussian(1.0), *[Free()] * 5]
    assert run.spent().certified.epsilon == plan.certificate().epsilon
    assert "this is a test" in run.spent().certified.assumptions
    assert plan.charge(steps=0) == Charge(assumptions=("this is a test",))
    assert plan.certificate(steps=2) == plan.certificate()  # it was paid at once
    with pytest.raises(Refused, match="charged as a whole"):
        plan.certificate(steps=7)  # and for no more steps than it has


def test_a_resumed_run_goes_on_after_the_steps_that_were_counted(tmp_path: Path) -> None:
    plan, ledger = bound(analysis=AtOnce()), tmp_path / "ledger"
    first = train(plan, stop=4, ledger=ledger)
    first.save(tmp_path / "checkpoint")
    first.close()
    again = train(plan, seed=2, ledger=ledger, resume=tmp_path / "checkpoint")
    assert again.progress.step == 6
    assert len(again.ledger.entries) == 6
    assert again.ledger.charge().certified == plan.charge().certified


def test_nothing_proven_is_said_with_its_reason() -> None:
    run = train(bound(analysis=Unproven("the angle of a mean can turn")))
    certified = run.spent().certified
    assert math.isinf(certified.epsilon)
    assert "no proven guarantee: the angle of a mean can turn" in certified.assumptions
    assert [entry.event for entry in run.ledger.entries][:2] == [NonPrivate(), Free()]
    with pytest.raises(Refused, match="a noise that spends"):
        methods.dp_sgd(clip=1.0).using(analysis=Unproven("none")).for_horizon(epsilon=3.0, delta=1e-5, horizon=HORIZON)


# Hidden sums ------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class WithRaw(ClippedSum):
    """A flat clip that also gives the mechanism the sum without it."""

    clip: float = 0.1

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return FlatClip(self.clip).weights(norms_GN, scale)

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        return norms_GN.new_ones(1, *norms_GN.shape)


@final
class Counting(Mechanism):
    """Keeps the raw sums of all steps to itself, and notes them for the test."""

    def __init__(self, seen: list[tuple[Tensor, Tensor]]) -> None:
        self.seen = seen

    def event(self, queries: Sequence[Query], noise: float) -> Any:
        return PLAIN.event(queries, noise)

    def check(self, layout: Layout) -> None: ...

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        assert context.raw is not None
        (raw,) = context.raw.reveal_to_mechanism()
        # Saving a released view writes its whole storage, which must hold no hidden sum.
        assert raw.untyped_storage().data_ptr() != sums[0].value.untyped_storage().data_ptr()
        assert not bool(sums[0].value.new_empty(0).set_(sums[0].value.untyped_storage())[len(raw) :].any())
        self.seen.append((sums[0].value.clone(), raw.clone()))
        before = context.secrets.get("total")
        total = raw if before is None else before.reveal_to_mechanism() + raw
        context.secrets["total"] = PrivateState(total)
        return PLAIN.release(sums, queries, noise, context)


def test_hidden_sums_reach_the_mechanism_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "digest", "0" * 64)  # the test's mechanism holds tensors, which no digest takes
    seen: list[tuple[Tensor, Tensor]] = []
    run = train(bound(noise=0.0, bounder=WithRaw(), mechanism=Counting(seen)))
    assert len(seen) == 6
    for clipped, raw in seen:
        assert raw.norm() > 1.5 * clipped.norm() > 0
    total = run.progress.secrets["total"].reveal_to_mechanism()
    torch.testing.assert_close(total, torch.stack([raw for _, raw in seen]).sum(0))
    run.save(tmp_path / "checkpoint")
    held = torch.load(tmp_path / "checkpoint", weights_only=True)
    assert "secrets" not in held
    assert held["memory"] == {}
    assert "hidden" in repr(run.progress.secrets["total"])
    assert "total" not in repr(run.progress)


# Domain and combination -------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class AtMost:
    """Every coordinate at most `bound` above where it began."""

    bound: float
    diameter: float = math.inf
    needs_initial: bool = True

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        for parameter, start in zip(parameters, initial, strict=True):
            parameter.copy_(torch.minimum(parameter, start + self.bound))


def test_a_domain_holds_after_every_update_and_around_the_first_parameters(tmp_path: Path) -> None:
    plan = bound(domain=AtMost(0.01), noise=5.0)
    torch.manual_seed(0)
    start = nn.utils.parameters_to_vector(nn.Linear(5, 3).parameters()).detach()
    first = train(plan, stop=3, ledger=tmp_path / "ledger")
    first.save(tmp_path / "checkpoint")
    first.close()
    again = train(plan, seed=2, ledger=tmp_path / "ledger", resume=tmp_path / "checkpoint")
    for run in (first, again):
        moved = nn.utils.parameters_to_vector(run.model.parameters()).detach() - start
        assert moved.max() <= 0.01 + 1e-6
        assert moved.min() < -0.1
    free = train(bound(noise=5.0))  # negative control
    assert (nn.utils.parameters_to_vector(free.model.parameters()).detach() - start).max() > 0.1


@final
@dataclass(frozen=True)
class Mean:
    """The mean of the noisy sum with all before it, from public memory."""

    def check(self, bounder: Bounder, selection: Selection) -> None:
        """Fits all."""

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        before = context.memory.get("mean")
        total = vectors[0].clone() if before is None else before + vectors[0]
        context.memory["mean"] = total
        return total / (context.step + 1)


def test_a_combination_sees_noisy_sums_and_its_memory_is_saved(tmp_path: Path) -> None:
    plan = bound(combination=Mean())
    first = train(plan, stop=3, ledger=tmp_path / "ledger")
    first.save(tmp_path / "checkpoint")
    held = first.progress.memory["mean"].clone()
    first.close()
    noisy: list[Tensor] = []
    again = _watched(plan, noisy, tmp_path)
    assert len(noisy) == 3
    torch.testing.assert_close(again.progress.memory["mean"], held + torch.stack(noisy).sum(0))


def _watched(plan: Plan, noisy: list[Tensor], place: Path) -> Private:
    release: Callable[..., list[Tensor]] = GaussianNoise.release

    def noting(self: GaussianNoise, *args: Any) -> list[Tensor]:
        released = release(self, *args)
        noisy.append(released[0].clone())
        return released

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianNoise, "release", noting)
        return train(plan, seed=2, ledger=place / "ledger", resume=place / "checkpoint")
