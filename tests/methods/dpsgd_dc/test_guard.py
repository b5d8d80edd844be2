"""Runs of which only the last iterate leaves: what they do, and the rules on optimizers and visible iterates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from last_iterate_loop import RATE, RECORDS, STEPS, data, losses, model, plan, private, train
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import TensorDataset

import discreet
import loop
from discreet import methods, statement
from discreet.accounting.events import LastIterateRun
from discreet.accounting.ledger import Ledger
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.methods.dpsgd_dc.curvature import Link
from discreet.methods.dpsgd_dc.guard import ClippedFeatures
from discreet.stages.analysis import Composition
from discreet.training.private import Private

# What it does --------------------------------------------------------------------------------------------


def test_a_run_stays_in_its_domain_and_pays_once() -> None:
    net = model()
    start = torch.cat([p.detach().flatten() for p in net.parameters()])
    run = private(net, plan(methods.dpsgd_dc(link=Link.LOGISTIC, learning_rate=RATE, radius=0.3)))
    assert run.spent().certified.epsilon == 0
    for x, y in run:
        run.step(losses(net, x, y))
        moved = torch.cat([p.detach().flatten() for p in net.parameters()]) - start
        assert float(moved.norm()) <= 0.3 * (1 + 1e-6)
    events = [entry.event for entry in run.ledger.entries]
    assert isinstance(events[0], LastIterateRun)
    assert len(events) == STEPS
    assert run.ledger.charge().certified == run.plan.charge().certified
    assert run.spent().certified.epsilon == run.plan.certificate().epsilon


def test_the_planned_certificate_holds_from_the_first_step_on() -> None:
    run = private()
    train(run, most=1)
    assert run.spent().certified.epsilon == run.plan.certificate().epsilon
    assert run.spent().claimed is None  # the claim is for the finished run


def test_the_same_plan_with_visible_iterates_is_priced_by_composition() -> None:
    seen = plan().using(analysis=Composition())
    run = private(which=seen, average=0.9, optimizer=lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9))
    train(run)
    assert run.spent().certified.epsilon == seen.certificate().epsilon


def test_the_update_is_the_one_of_the_theorem() -> None:
    """x <- project(x - eta (sum of clipped gradients / n + noise + decay x)), by hand without noise."""
    recipe = methods.dpsgd_dc(
        clip=0.4, link=Link.LOGISTIC, learning_rate=RATE, radius=0.5, weight_decay=0.1, centre="origin"
    )  # type: ignore[arg-type]
    net = model()
    x, y = data().tensors
    rows = torch.cat([ClippedFeatures(1.0)(x), torch.ones(RECORDS, 1)], 1).double()
    by_hand = torch.cat([p.detach().flatten() for p in net.parameters()]).double()
    run = private(net, plan(recipe, noise=0.0), optimizer=lambda p: torch.optim.SGD(p, lr=RATE, weight_decay=0.1))
    train(run)
    for _ in range(STEPS):
        gradients = (torch.sigmoid(rows @ by_hand) - y)[:, None] * rows
        gradients *= (0.4 / gradients.norm(dim=1, keepdim=True)).clamp(max=1)
        by_hand = by_hand - RATE * (gradients.sum(0) / RECORDS + 0.1 * by_hand)
        by_hand *= min(1.0, 0.5 / float(by_hand.norm()))
    found = torch.cat([p.detach().flatten() for p in net.parameters()]).double()
    assert float((found - by_hand).norm()) < 1e-4


def test_assumed_smoothness_takes_any_model_and_says_so() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 2))
    recipe = methods.dpsgd_dc(smoothness=3.0, learning_rate=RATE)
    run = private(net, plan(recipe), views=2)
    for x, y in run:
        run.step(losses(net, x, y))
    assert "if every loss is L-smooth with L = 3" in str(run.spent())
    assert run.spent().to_json()["certified"]["assumptions"][0].startswith("every update")
    assert any(text.startswith("if every") for text in run.spent().to_json()["certified"]["assumptions"])


# What it refuses: the optimizer --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9), r"SGD without momentum.*got momentum=0\.9"),
        (lambda p: torch.optim.Adam(p, lr=RATE), r"torch\.optim\.SGD.*got Adam"),
        (lambda p: torch.optim.SGD(p, lr=1.0), r"the learning rate 2\.0 that the certificate states.*got lr=1\.0"),
        (lambda p: torch.optim.SGD(p, lr=RATE, weight_decay=0.1), r"the weight decay 0\.0.*got weight_decay=0\.1"),
        (lambda p: torch.optim.SGD(p, lr=RATE, maximize=True), "SGD that minimises"),
    ],
)
def test_optimizers(make: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        private(optimizer=make)


def test_a_learning_rate_that_changes_on_the_way() -> None:
    """It is looked at before every release; put back, the run goes on."""
    run = private()
    batches = iter(run)
    x, y = loop.last_of_step(run, batches, losses)
    run.step(losses(run.model, x, y))
    x, y = next(batches)
    run.optimizer.param_groups[0]["lr"] = RATE / 2
    charged = run.ledger.length
    with pytest.raises(Refused, match=r"the learning rate 2\.0 that the certificate states.*got lr=1\.0"):
        run.step(losses(run.model, x, y))
    assert run.ledger.length == charged
    run.optimizer.param_groups[0]["lr"] = RATE
    run.step(losses(run.model, x, y))
    assert run.updates == 2


def _scales(optimizer: Any, *_: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.mul_(1e-3)


def _clips(optimizer: Any, *_: Any) -> None:
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1e-3)


def _averages(optimizer: Any, *_: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.data.mul_(0.5)


def _slows(optimizer: Any, *_: Any) -> None:
    optimizer.param_groups[0]["lr"] = RATE / 100


def _wraps(optimizer: Any) -> None:
    step = optimizer.step
    optimizer.step = lambda: (_scales(optimizer), step())


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: optimizer.register_step_pre_hook(_scales),
        lambda optimizer: optimizer.register_step_pre_hook(_clips),
        lambda optimizer: optimizer.register_step_pre_hook(_slows),
        lambda optimizer: optimizer.register_step_post_hook(_averages),
        lambda optimizer: register_optimizer_step_pre_hook(_scales),
        _wraps,
    ],
    ids=["scaled", "clipped", "learning rate", "averaged", "hook of all optimizers", "wrapped step"],
)
def test_a_step_that_is_not_the_update_of_the_theorem(change: Any) -> None:
    """With a hundredth of the noise, or an average, earlier parameters show. The exact update is left behind."""
    exact, run = private(), private()
    train(exact, most=1)
    handle = change(run.optimizer)
    try:
        with pytest.raises(
            Refused, match=r"released gradient \+ 0 \* parameter.*got another update by optimizer\.step"
        ):
            train(run)
    finally:
        if handle is not None:
            handle.remove()
    torch.testing.assert_close(list(run.model.parameters()), list(exact.model.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_hooks_that_only_look_and_other_kernels(kernel: dict[str, bool], dtype: torch.dtype) -> None:
    seen: list[float] = []
    net, (x, y) = model().to(dtype), data().tensors
    which = plan(methods.dpsgd_dc(link=Link.LOGISTIC, learning_rate=RATE, radius=2.0, weight_decay=0.1))
    options = {"weight_decay": 0.1, **kernel}
    given = TensorDataset(x.to(dtype), y)
    run = private(net, which, optimizer=lambda p: torch.optim.SGD(p, lr=RATE, **options), dataset=given)
    run.optimizer.register_step_pre_hook(lambda o, *_: seen.append(float(o.param_groups[0]["params"][0].grad.norm())))
    train(run)
    assert len(seen) == STEPS


def test_momentum_that_appears_on_the_way() -> None:
    run = private()
    batches = iter(run)
    x, y = next(batches)
    run.optimizer.param_groups[0]["momentum"] = 0.5
    with pytest.raises(Refused, match="without momentum"):
        run.step(losses(run.model, x, y))


@pytest.mark.parametrize("declares", [False, True])
def test_parameters_that_are_written_between_steps(declares: bool) -> None:
    """What the noise of earlier steps hides would come back: certified 13.5, true about 63."""
    net = model()
    run = private(net)
    weight = next(p for p in net.parameters() if p.requires_grad)
    if declares:
        discreet.public(weight)
    train(run, most=2)
    with torch.no_grad():
        weight.mul_(0.5)
    with pytest.raises(Refused, match="as the last step left them" if declares else "changed before the next batch"):
        train(run)


def test_schedulers() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    with pytest.raises(Refused, match=r"the learning rate 2 at every step.*got a learning-rate scheduler"):
        Private(net, optimizer, plan(), data(), schedulers=[torch.optim.lr_scheduler.StepLR(optimizer, 2)])


# What it refuses: showing iterates -----------------------------------------------------------------------


def test_averages() -> None:
    with pytest.raises(Refused, match=r"no average of parameters.*got average=0\.9.*Composition"):
        private(average=0.9)


def test_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        rank, size, is_first = 0, 2, True

        def broadcast_(self, value: Tensor) -> Tensor:
            return value

        sum_ = broadcast_

        def gather(self, value: object) -> list[object]:
            return [value, value]

    monkeypatch.setattr(World, "current", staticmethod(Two))
    monkeypatch.setattr("discreet.training.private.check_shards", lambda world, data: None)
    with pytest.raises(Refused, match=r"one process.*got 2 processes"):
        private()


def test_more_records_than_the_bound_is_proven_for() -> None:
    with pytest.raises(Refused, match="no more records than the plan's public upper bound"):
        train(private(dataset=data(RECORDS + 1)))
    train(private(dataset=data(RECORDS - 3)))


def test_checkpoints_are_marked_private_until_the_end(tmp_path: Path) -> None:
    run = private(ledger=tmp_path / "ledger.jsonl")
    train(run, most=3)
    run.save(tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["hidden"] is True
    run.close()
    net = model()
    again = private(net, streams=Streams.seeded(6), ledger=tmp_path / "ledger.jsonl", resume=tmp_path / "state.pt")
    train(again)
    again.save(tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["hidden"] is False
    assert again.progress.step == STEPS
    again.close()
    resumed = Ledger.resume(tmp_path / "ledger.jsonl", planned=lambda _: again.plan.event_at(0))
    assert resumed.charge().certified == again.plan.charge().certified  # one event, whatever happened on the way
    resumed.close()


def test_a_plan_with_visible_iterates_writes_public_checkpoints(tmp_path: Path) -> None:
    run = private(which=plan().using(analysis=Composition()))
    train(run, most=2)
    run.save(tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["hidden"] is False


def test_a_statement_waits_for_the_last_iterate_and_names_the_start() -> None:
    run = private()
    with pytest.raises(Refused, match="must stay hidden"):
        statement(run, data="the visits of 2024")
    train(run)
    page = statement(run, data="the visits of 2024")
    assert "the visits of 2024" in page
    assert "takes both ledgers" in page
