"""What models, losses and transforms draw is secret: it follows from the run's streams, not from the user's seeds."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from discreet import OwnLoader, methods
from discreet.core.check import Refused
from discreet.core.secret_draws import SecretDraws
from discreet.core.streams import Streams
from tests.core.test_secret_draws import states
from tests.engine.steps import classifier, each, train
from tests.helpers import loop

Body = Callable[[Any, nn.Module, Tensor, Tensor], None]


def reseed(seed: int = 0) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def masks(streams: Streams, seed: int = 0, **options: Any) -> list[Tensor]:
    """The dropout masks of a run."""
    found: list[Tensor] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        kept = F.dropout(torch.ones(x.shape), 0.5)
        found.append(kept.detach().clone())
        private.step(each(model(x * kept), y))

    model = classifier()
    reseed(seed)
    train(model, body, streams=streams, **options)
    return found


def are_equal(one: list[Tensor], other: list[Tensor]) -> list[bool]:
    assert len(one) == len(other) > 3
    return [torch.equal(a, b) for a, b in zip(one, other, strict=True)]


def test_masks_of_two_runs_with_one_torch_seed_differ() -> None:
    assert not any(are_equal(masks(Streams.from_os()), masks(Streams.from_os())))


def test_without_keys_the_masks_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with the user's states, two runs draw the same masks, so the test above would fail."""
    monkeypatch.setattr(SecretDraws, "_key", lambda self, generator: None)
    assert all(are_equal(masks(Streams.from_os()), masks(Streams.from_os())))


def test_masks_of_a_seeded_run_repeat_whatever_torchs_seed_is() -> None:
    first = masks(Streams.seeded(5), seed=0)
    assert all(are_equal(first, masks(Streams.seeded(5), seed=1)))
    assert not any(are_equal(first, masks(Streams.seeded(6), seed=0)))
    assert len({tuple(one.flatten()[:48].tolist()) for one in first}) == len(first)  # new in every batch


def test_masks_of_micro_batches_and_views_are_new() -> None:
    found = masks(Streams.from_os(), micro_batch=4, views=2)
    assert len({tuple(one.flatten()[:24].tolist()) for one in found}) == len(found)


def test_processes_draw_apart() -> None:
    """They may share a seed."""
    drawn = []
    for rank in range(2):
        streams = Streams.seeded(5)
        streams.share(lambda key: key, rank=rank)
        with SecretDraws(streams.draws).keyed():
            drawn.append(torch.rand(5))
    assert not torch.equal(*drawn)


class Dropping(nn.Module):
    """Dropout inside a region that may be checkpointed, and after it."""

    def __init__(self, *, is_checkpointed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.is_checkpointed, self.head, self.last = is_checkpointed, nn.Linear(16, 3), nn.Dropout(0.5)
        self.region = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Any:
        inside = checkpoint(self.region, x, use_reentrant=False) if self.is_checkpointed else self.region(x)
        return self.head(self.last(inside))


def test_a_checkpointed_region_has_the_same_masks_when_it_runs_again() -> None:
    found = []
    for is_checkpointed in (False, True):
        model = Dropping(is_checkpointed=is_checkpointed)
        reseed(int(is_checkpointed))
        train(model, streams=Streams.seeded(5))
        found.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.allclose(*found, rtol=0, atol=1e-6)


def test_batches_of_the_users_own_loader_are_keyed() -> None:
    found: list[float] = []
    for _ in range(2):
        which = loop.plan(replace(methods.dp_sgd(clip=0.5), sampling=OwnLoader()))
        run = loop.private(which=which, dataset=None, streams=Streams.from_os())
        reseed()
        x, y = next(iter([loop.data(loop.BATCH)[:]]))
        for inputs, labels in run.over([(x, y)] * 3):
            found.append(torch.rand(()).item())
            run.step(loop.losses(run.model, inputs, labels))
        run.close()
    assert len(found) == len(set(found)) == 14  # in each run two rehearsals, three batches, two steps without records


# The user's own states ------------------------------------------------------------------------------------------


def test_the_users_states_are_there_after_each_step_and_after_the_loop() -> None:
    reseed()
    before = states()

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        assert states() != before
        private.step(each(model(F.dropout(x, 0.5)), y))
        assert states() == before

    model = classifier()
    reseed()
    train(model, body, augment=lambda batch: (batch[0] + torch.randn_like(batch[0]), batch[1]))
    assert states() == before


def failing(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    F.dropout(x, 0.5)
    raise KeyError


def refused(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    private.step(each(model(F.dropout(x - x.mean(0), 0.5)), y))


@pytest.mark.parametrize("body", [failing, refused], ids=lambda body: body.__name__)
def test_the_users_states_are_there_after_an_error(body: Body) -> None:
    model = classifier()
    reseed()
    before = states()
    with pytest.raises((KeyError, Refused)):
        train(model, body)
    assert states() == before


def leave_by_break(run: Any) -> None:
    for x, _ in run:
        F.dropout(x, 0.5)
        break


def leave_by_return(run: Any) -> None:
    for x, y in run:
        run.step(loop.losses(run.model, F.dropout(x, 0.5), y))
        if not run.is_rehearsal:
            return


def leave_by_an_error_in_release(run: Any) -> None:
    def losses_of(batch: Any) -> Tensor:
        F.dropout(batch[0], 0.5)
        raise KeyError

    with pytest.raises(KeyError):
        run.release(losses_of)


LEAVES = [leave_by_break, leave_by_return, leave_by_an_error_in_release]


@pytest.mark.parametrize("leave", LEAVES, ids=lambda leave: leave.__name__)
def test_the_users_states_are_there_after_the_loop_was_left(leave: Callable[[Any], None]) -> None:
    run = loop.private()
    reseed()
    before = states()
    leave(run)
    assert states() == before
    run.close()


def test_closing_a_run_whose_iterator_is_kept_restores_the_states() -> None:
    run = loop.private()
    reseed()
    before = states()
    iterator = iter(run)
    next(iterator)
    assert states() != before
    run.close()
    assert states() == before


def test_an_evaluation_after_the_step_draws_the_users_numbers() -> None:
    expected = torch.rand(5, generator=torch.Generator().manual_seed(3))

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(F.dropout(x, 0.5)), y))
        torch.manual_seed(3)
        assert torch.equal(torch.rand(5), expected)

    assert train(body=body).updates == 4


# Loading --------------------------------------------------------------------------------------------------------


class Jittered(Dataset[Any]):
    """Records whose transform draws from all three generators."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        x = torch.full((6,), float(index))
        x[0], x[1], x[2] = torch.rand(()), random.random(), np.random.rand()
        return x, index % 3


def loaded(streams: Streams, **options: Any) -> list[Tensor]:
    """What transforms drew, for the batches that are no rehearsals."""
    found: list[Tensor] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        if not private.is_rehearsal:
            found.append(x[:, :3].detach().clone())
        private.step(each(model(x), y))

    model = classifier()
    reseed()
    before = states()
    train(model, body, Jittered(), streams=streams, **options)
    assert states() == before
    return found


def collated(records: list[Any]) -> Any:
    x, y = torch.utils.data.default_collate(records)
    x[:, :3] += torch.tensor([[float(torch.rand(())), random.random(), float(np.random.rand())] for _ in records])
    return x, y


OPTIONS: dict[str, dict[str, Any]] = {
    "in this process": {},
    "in workers": {"num_workers": 2},
    "collate_fn": {"collate_fn": collated},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_transforms_draw_secret_numbers(options: dict[str, Any]) -> None:
    first, second = (torch.cat(loaded(Streams.from_os(), **options)) for _ in range(2))
    for generator in range(3):
        numbers = torch.cat([first[:, generator], second[:, generator]]).tolist()
        assert len(set(numbers)) == len(numbers)


def test_without_keys_what_transforms_draw_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: two runs draw the same numbers, so the test above would fail."""
    monkeypatch.setattr(SecretDraws, "_key", lambda self, generator: None)
    monkeypatch.setattr(SecretDraws, "_key_others", lambda self: None)
    assert all(are_equal(*(loaded(Streams.from_os()) for _ in range(2))))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_transforms_of_a_seeded_run_repeat(options: dict[str, Any]) -> None:
    assert all(are_equal(*(loaded(Streams.seeded(5), **options) for _ in range(2))))


def test_augment_draws_secret_numbers() -> None:
    found: list[tuple[float, ...]] = []

    def augment(batch: Any) -> Any:
        found.append((random.random(), float(np.random.rand()), torch.rand(()).item()))
        return batch

    for _ in range(2):
        model = classifier()
        reseed()
        train(model, streams=Streams.from_os(), augment=augment)
    assert len(found) > 8
    for numbers in zip(*found, strict=True):
        assert len(set(numbers)) == len(numbers)
