"""`Private.release`: the released gradient on `.grad`, and the one step that the caller's optimizer takes on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import loop
from discreet import Private, methods
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.stages.sampling import OwnLoader


def losses_of(net: nn.Module) -> Any:
    return lambda batch: loop.losses(net, *batch)


def by_hand(run: Private, most: int = 10**9) -> int:
    """The loop of a trainer that steps the optimizer itself."""
    steps = 0
    while steps < most and run.release(losses_of(run.model)):
        run.optimizer.step()
        steps += 1
    return steps


SAME = {
    "one micro-batch": {},
    "micro-batches": {"micro_batch": 3},
    "average": {"average": 0.9},
    "workers": {"num_workers": 1},
    "adam": {"optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1)},
    "empty batches": {"which": loop.plan(batch=1, steps=12)},
    "adaptive clip": {"which": loop.plan(methods.adaptive_quantile())},
    "public records": {"which": loop.plan(methods.gep(rank=0.3, public_batch=20))},
}


@pytest.mark.parametrize("name", SAME)
def test_same_weights_and_charges_as_step(name: str) -> None:
    options = dict(SAME[name])
    ours, theirs = (loop.private(loop.model(), options.get("which"), **_without(options)) for _ in range(2))
    steps = ours.plan.horizon.steps
    loop.train(ours)
    assert by_hand(theirs) == steps
    assert torch.equal(loop.weights(ours.model), loop.weights(theirs.model))
    assert ours.spent() == theirs.spent()
    assert ours.updates == theirs.updates == steps
    if ours.average is not None and theirs.average is not None:
        with ours.averaged(), theirs.averaged():
            assert torch.equal(loop.weights(ours.model), loop.weights(theirs.model))
    assert not theirs.release(losses_of(theirs.model))  # nothing is drawn after the last step
    assert theirs.ledger.length == ours.ledger.length


def _without(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "which"}


def test_the_charge_is_on_disk_before_the_gradient(tmp_path: Path) -> None:
    run = loop.private(ledger=tmp_path / "ledger")
    assert run.release(losses_of(run.model))
    assert read(tmp_path / "ledger").length == 1
    assert all(parameter.grad is not None for parameter in run.model.parameters())
    before = loop.weights(run.model)
    assert run.updates == 0
    run.optimizer.step()
    assert run.updates == 1
    assert not torch.equal(loop.weights(run.model), before)


def test_gradients_of_before_are_refused() -> None:
    run = loop.private()
    next(run.model.parameters()).grad = torch.full((6, 4), 1e6)
    with pytest.raises(Refused, match="no gradient left on the parameters"):
        run.release(losses_of(run.model))


# What the optimizer may do --------------------------------------------------------------------------------


def test_a_second_step_is_refused() -> None:
    run = loop.private()
    run.release(losses_of(run.model))
    run.optimizer.step()
    with pytest.raises(Refused, match="called directly"):
        run.optimizer.step()
    assert run.release(losses_of(run.model))  # the run itself is whole


def test_a_release_without_a_step_is_refused() -> None:
    run = loop.private()
    run.release(losses_of(run.model))
    with pytest.raises(Refused, match="without a step of the optimizer"):
        run.release(losses_of(run.model))
    assert run.ledger.length == 1
    run.optimizer.step()
    assert run.release(losses_of(run.model))
    with pytest.raises(Refused, match="without a step of the optimizer"):
        next(iter(run))


def test_no_checkpoint_before_the_step(tmp_path: Path) -> None:
    run = loop.private()
    run.release(losses_of(run.model))
    assert not run.settled
    with pytest.raises(Refused, match="a checkpoint between updates"):
        run.save(tmp_path / "saved")
    run.optimizer.step()
    run.save(tmp_path / "saved")


def backward(run: Private) -> None:
    x, y = loop.data().tensors
    loop.losses(run.model, x, y).sum().backward()


def clipped(run: Private) -> None:
    nn.utils.clip_grad_norm_(run.model.parameters(), 1e-3)


def replaced(run: Private) -> None:
    first = next(run.model.parameters())
    first.grad = torch.ones_like(first)


def behind_the_back(run: Private) -> None:
    next(run.model.parameters()).grad.data.numpy()[0] = 5.0  # type: ignore[union-attr]


def zeroed(run: Private) -> None:
    run.optimizer.zero_grad()


@pytest.mark.parametrize("write", [backward, clipped, replaced, behind_the_back, zeroed])
@pytest.mark.parametrize("in_closure", [False, True])
def test_other_gradients_are_refused(write: Any, in_closure: bool) -> None:
    run = loop.private()
    run.release(losses_of(run.model))
    before = loop.weights(run.model)
    if not in_closure:
        write(run)
    with pytest.raises(Refused, match="gradients that were written to since"):
        run.optimizer.step((lambda: write(run)) if in_closure else None)
    assert torch.equal(loop.weights(run.model), before)


def test_a_gradient_on_a_frozen_parameter_is_refused() -> None:
    """An optimizer that holds all parameters would move it by records that nobody clipped."""
    net = loop.model()
    frozen = next(net.parameters()).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = loop.private(net, optimizer=lambda _: optimizer)
    run.release(losses_of(net))
    before, frozen.grad = frozen.clone(), torch.ones_like(frozen)
    with pytest.raises(Refused, match="a gradient on another parameter of the optimizer"):
        optimizer.step()
    assert torch.equal(frozen, before)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_hook_that_writes_to_the_release_is_refused(is_late: bool) -> None:
    def write(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.add_(1.0)

    net = loop.model()
    optimizer = loop.sgd(net.parameters())
    if not is_late:
        optimizer.register_step_pre_hook(write)
    run = loop.private(net, optimizer=lambda _: optimizer)
    if is_late:
        optimizer.register_step_pre_hook(write)
    run.release(losses_of(net))
    with pytest.raises(Refused, match="one that was registered since" if is_late else "written to since"):
        optimizer.step()


def test_a_release_inside_the_closure() -> None:
    """Lightning runs a whole training step in the closure of the optimizer."""
    ours, theirs = loop.private(), loop.private()
    loop.train(ours)
    for _ in range(loop.STEPS):
        theirs.optimizer.step(closure=lambda: theirs.release(losses_of(theirs.model)))
    assert torch.equal(loop.weights(ours.model), loop.weights(theirs.model))


def test_an_optimizer_that_does_not_call_its_closure() -> None:
    class Deaf(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step()

    run = loop.private(optimizer=lambda parameters: Deaf(parameters, lr=0.1))
    run.release(losses_of(run.model))
    with pytest.raises(Refused, match="an optimizer that calls its closure"):
        run.optimizer.step(lambda: backward(run))


def test_parameters_that_changed_before_the_step_are_refused() -> None:
    run = loop.private()
    run.release(losses_of(run.model))
    with torch.no_grad():
        next(run.model.parameters()).add_(1.0)
    with pytest.raises(Refused, match="changed before the next batch"):
        run.optimizer.step()


# What is refused ------------------------------------------------------------------------------------------

REFUSED = {
    "tests its updates": methods.sur(),
    "projects the parameters": methods.dpsgd_dc(),
    "freezes coordinates": methods.random_freeze(),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_plans_whose_update_is_more_than_a_step(reason: str) -> None:
    run = object.__new__(Private)  # some of these plans need a model of their own; the plan is refused first
    run.plan = loop.plan(REFUSED[reason])
    with pytest.raises(Refused, match=reason):
        run.release(lambda batch: batch)


def test_own_loaders_are_refused() -> None:
    recipe = methods.dp_sgd(clip=0.5).using(sampling=OwnLoader())
    net = loop.model()
    run = Private(net, loop.sgd(net.parameters()), loop.plan(recipe), None, streams=Streams.seeded(1))
    with pytest.raises(Refused, match="a plan for your own loader"):
        run.release(losses_of(net))


def test_a_refused_loss_does_not_end_the_run_silently() -> None:
    run = loop.private()
    with pytest.raises(Refused, match="per-sample losses"):
        run.release(lambda batch: loop.losses(run.model, *batch).mean())
    assert not torch.overrides._get_current_function_mode_stack()  # the batch is closed: nothing is watched any more
    with pytest.raises(Refused, match="a loop that an error has ended"):
        run.release(losses_of(run.model))
    assert run.ledger.length == 0


# Checkpoints of a trainer ---------------------------------------------------------------------------------


def test_a_trainer_that_keeps_the_model_itself(tmp_path: Path) -> None:
    run = loop.private(ledger=tmp_path / "ledger", average=0.9)
    by_hand(run, 3)
    run.save(tmp_path / "saved", with_model=False)
    torch.save([run.model.state_dict(), run.optimizer.state_dict()], tmp_path / "trainer")
    kept = loop.weights(run.model)
    by_hand(run, 2)  # lost, and charged
    run.close()
    assert (tmp_path / "saved").stat().st_size < (tmp_path / "trainer").stat().st_size + 4000

    def resumed() -> Private:
        return loop.private(seed=8, ledger=tmp_path / "ledger", average=0.9, resume=tmp_path / "saved")

    again = resumed()
    assert not torch.equal(loop.weights(again.model), kept)  # the model is the trainer's to load
    model, optimizer = torch.load(tmp_path / "trainer")
    again.model.load_state_dict(model)
    again.optimizer.load_state_dict(optimizer)
    assert again.progress.step == 5
    assert by_hand(again) == loop.STEPS - 5
    assert [entry.step for entry in read(tmp_path / "ledger").entries] == list(range(loop.STEPS))


def test_its_checkpoint_fits_its_plan_alone(tmp_path: Path) -> None:
    run = loop.private(ledger=tmp_path / "ledger")
    by_hand(run, 3)
    run.save(tmp_path / "saved", with_model=False)
    run.close()
    with pytest.raises(Refused, match="plan"):
        loop.private(which=loop.plan(noise=2.0), seed=8, ledger=tmp_path / "ledger", resume=tmp_path / "saved")
    with pytest.raises(Refused, match="optimizer"):
        loop.private(seed=8, ledger=tmp_path / "ledger", resume=tmp_path / "saved", optimizer=torch.optim.Adam)


def test_an_older_loop_does_not_go_on_after_an_empty_batch() -> None:
    """A release on an empty batch leaves its loop between steps; a newer loop ends it all the same."""
    for seed in range(40):
        run, kinds = loop.private(which=loop.plan(batch=1, steps=12), seed=seed), set()
        assert run.release(
            lambda batch, run=run, kinds=kinds: kinds.add(run.is_rehearsal) or loop.losses(run.model, *batch)
        )
        run.optimizer.step()
        if kinds == {True}:
            break
        run.close()
    assert kinds == {True}  # a seed whose first batch is empty
    assert loop.train(run, most=3)
    charged = run.ledger.length
    with pytest.raises(Refused, match="an older loop that continues"):
        run.release(losses_of(run.model))
    assert run.ledger.length == charged
