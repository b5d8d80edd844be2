"""The compiled comparison of tensors with what was seen of them gives what the one in Python gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from discreet.engine.model import support
from discreet.engine.model.state import Snapshot, _each_untouched, untouched

pytestmark = pytest.mark.skipif(untouched is _each_untouched, reason="the installation found no compiler")


class Holds(nn.Module):
    """A large parameter, a small one, a buffer that is compared in full, one in no order, and one without memory."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.randn(3))
        self.register_buffer("table", torch.randn(5000))
        self.register_buffer("turned", torch.randn(4, 3).t())
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("wave", torch.ones(3, dtype=torch.complex64))
        with torch.inference_mode():
            self.register_buffer("uncounted", torch.ones(2))


def nothing(model: Holds) -> None:
    pass


def in_place(model: Holds) -> None:
    with torch.no_grad():
        model.large.add_(1)


def by_numpy_at_the_end(model: Holds) -> None:
    model.large.detach().numpy()[-1, -1] += 1


def by_numpy_in_the_middle_of_a_buffer(model: Holds) -> None:
    model.table.numpy()[2500] += 1


def by_data(model: Holds) -> None:
    model.small.data = model.small.data + 1


def turned_round(model: Holds) -> None:
    model.large.data = model.large.data.t()


def conjugated(model: Holds) -> None:
    model.wave.data = model.wave.data.conj()


def negated(model: Holds) -> None:
    model.table.data = torch._neg_view(model.table.data)


def replaced(model: Holds) -> None:
    model.small = nn.Parameter(model.small.detach().clone())


CHANGES = [nothing, in_place, by_numpy_at_the_end, by_numpy_in_the_middle_of_a_buffer, by_data]
CHANGES += [turned_round, replaced, conjugated, negated]


def held(model: Holds) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_untouched(change: Callable[[Holds], None]) -> None:
    model = Holds()
    seen = Snapshot(model)._seen
    before = held(model)
    change(model)
    now = held(model)
    expected = _each_untouched(seen, now)
    found = untouched(seen, now)
    assert (change is nothing) == all(expected)
    for tensor, one, other in zip(before, expected, found, strict=True):
        only_python_can_tell = not tensor.is_contiguous() or tensor.is_inference()
        assert one == other or (only_python_can_tell and not other)


@pytest.mark.parametrize("change", CHANGES[1:], ids=lambda change: change.__name__)
def test_a_snapshot_on_top_of_another_sees_the_same(change: Callable[[Holds], None]) -> None:
    """What it has of the earlier one was still true when it was taken."""
    model = Holds()
    first = Snapshot(model)
    in_place(model)
    again = Snapshot(model, first)
    again.compare(model)
    assert [a is b for a, b in zip(first._seen, again._seen, strict=True)][:2] == [False, True]
    change(model)
    with pytest.raises(ValueError, match="changed"):
        again.compare(model)


def test_lists_of_other_lengths_are_refused() -> None:
    model = Holds()
    with pytest.raises(ValueError, match="one length"):
        untouched(Snapshot(model)._seen, [])


class Own(nn.Module):
    """A module that is not torch's, with a part that is shared and one that is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Linear(3, 3),
            nn.Sequential(nn.Dropout(0.25), nn.ReLU(), nn.Linear(3, 2, bias=False)),
        )
        self.again, self.missing = self.first, None
        self.register_module("absent", None)
        self.register_buffer("table", torch.ones(2))
        self.register_buffer("nothing", None)
        self.calls = 3


@pytest.mark.parametrize("model", [Own(), nn.LSTM(2, 3), nn.Sequential(), Holds()], ids=lambda one: type(one).__name__)
def test_what_a_model_holds(model: nn.Module) -> None:
    modules = support._modules_in(model)
    assert support.modules_in(model) == modules == list(model.modules())
    held, expected = support.tensors_of(modules), support._tensors_of(modules)
    assert list(map(id, held)) == list(map(id, expected))
    assert {id(one) for one in held} == {id(one) for one in (*model.parameters(), *model.buffers())}
    assert support.settings_of(tuple(modules)) == support._settings_of(modules)


def test_settings_of_modules_change_with_what_steers_them() -> None:
    model = Own()
    before = support.settings_of(support.modules_in(model))
    model.second[0].p = 0.5
    after = support.settings_of(support.modules_in(model))
    assert before != after == support._settings_of(support._modules_in(model))


@pytest.mark.parametrize("walk", [support.modules_in, support.tensors_of, support.settings_of])
def test_an_error_on_the_way_is_told(walk: Callable[..., object]) -> None:
    with pytest.raises((AttributeError, TypeError)):
        walk([3])
