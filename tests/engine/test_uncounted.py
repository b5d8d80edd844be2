"""What changes a tensor or an argument without a trace: writes that torch does not count, classes of the user's.

Each of these loops was accepted once; the number is how many clips one of 20 records moved the sum by.
"""

from __future__ import annotations

import copy
import enum
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import loop
from discreet.core.check import Refused

Spoiled = Callable[[Tensor], Tensor]


def trained(spoil: Spoiled, net: nn.Module | None = None) -> int:
    run = loop.private(net)
    for x, y in run:
        run.step(loop.losses(run.model, spoil(x), y))
    return run.progress.step


def statistics() -> tuple[Tensor, Tensor]:
    return torch.zeros(4), torch.ones(4)


def batch_norm(x: Tensor) -> Tensor:
    """2.9 clips."""
    mean, variance = statistics()
    F.batch_norm(x, mean, variance, training=True, momentum=1.0)
    return (x - mean) / variance.sqrt()


def native_batch_norm(x: Tensor) -> Tensor:
    """4.9 clips."""
    mean, variance = statistics()
    torch.native_batch_norm(x, None, None, mean, variance, True, 1.0, 1e-5)
    return x - mean


def aten_batch_norm(x: Tensor) -> Tensor:
    mean, variance = statistics()
    torch.ops.aten.batch_norm(x, None, None, mean, variance, True, 1.0, 1e-5, False)
    return x - mean


def update_stats(x: Tensor) -> Tensor:
    mean, variance = statistics()
    torch.batch_norm_update_stats(x, mean, variance, 1.0)
    return x - mean


def instance_norm(x: Tensor) -> Tensor:
    mean, variance = statistics()
    F.instance_norm(x[None], mean[:1].expand(len(x)).clone(), variance[:1].expand(len(x)).clone(), momentum=1.0)
    return x - mean


def fused_sgd(x: Tensor) -> Tensor:
    """4.9 clips."""
    mean, _ = statistics()
    options: Any = {"weight_decay": 0.0, "momentum": 0.0, "lr": -1.0, "dampening": 0.0}
    torch._fused_sgd_([mean], [x.mean(0)], [], **options, nesterov=False, maximize=False, is_first_step=True)
    return x - mean


def observer(x: Tensor) -> Tensor:
    """5.3 clips."""
    low, high, scale, zero = (torch.tensor([start]) for start in (float("inf"), -float("inf"), 1.0, 0.0))
    on = torch.tensor([1])
    torch.fused_moving_avg_obs_fake_quant(x, on, on, low, high, scale, zero.int(), 1.0, 0, 255, 0, False, False)
    return x / high


def amp_check(x: Tensor) -> Tensor:
    """8.3 clips: it writes for some values alone."""
    found = torch.zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_([x.clone()], found, torch.ones(1))
    return x * (1 - found)


def rrelu_noise(x: Tensor) -> Tensor:
    noise = torch.zeros_like(x)
    torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.3, True)
    return x * noise


def set_data(x: Tensor) -> Tensor:
    """5.3 clips."""
    mean, _ = statistics()
    torch.ops.aten.set_data(mean, x.mean(0))
    return x - mean


WRITES = (
    *(batch_norm, native_batch_norm, aten_batch_norm, update_stats, instance_norm, fused_sgd, observer, amp_check),
    *(rrelu_noise, set_data),
)


@pytest.mark.parametrize("spoil", WRITES, ids=lambda one: one.__name__)
def test_writes_that_torch_does_not_count_are_refused(spoil: Spoiled) -> None:
    with pytest.raises(Refused, match=r"writes torch counts|BatchNorm in training mode|running statistics"):
        trained(spoil)


def test_running_statistics_that_are_only_read_are_accepted() -> None:
    mean, variance = torch.rand(4), torch.rand(4) + 1
    assert trained(lambda x: F.batch_norm(x, mean, variance)) == loop.STEPS


class Shifting(list[int]):
    """Shows one number and gives another; 8.8 clips as the dims of torch.tensordot."""

    def __iter__(self) -> Any:
        return iter([1 - list.__getitem__(self, 0)])


class Chosen(enum.Enum):
    """4.5 clips as the place of a column."""

    A = 0

    def __index__(self) -> int:
        return 1


ARGUMENTS: dict[str, Spoiled] = {
    "list": lambda x: x + torch.tensordot(x, x.detach(), dims=(Shifting([1]), Shifting([1]))).sum(1, keepdim=True),
    "enumeration": lambda x: x * x.select(1, Chosen.A)[:, None],  # type: ignore[call-overload]
    "index": lambda x: x * x[:, Chosen.A][:, None],  # type: ignore[index]
}


@pytest.mark.parametrize("spoil", ARGUMENTS.values(), ids=ARGUMENTS)
def test_classes_that_are_read_in_a_way_of_their_own_are_refused(spoil: Spoiled) -> None:
    with pytest.raises(Refused, match="each record stands alone"):
        trained(spoil)


class Late(list[Tensor]):
    """Becomes another class after the first steps."""


class Shown(type):
    __flags__ = 0  # as of a class that is written in C


class Hiding(list[Tensor], metaclass=Shown):
    def __iter__(self) -> Any:
        first, *others = list.__iter__(self)
        return iter([first.mean(0).expand_as(first), *others])


@pytest.mark.parametrize("kind", [Late, Hiding])
def test_classes_that_hide_how_they_are_read_are_refused(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    public, bodies = torch.eye(4), []

    def spoil(x: Tensor) -> Tensor:
        bodies.append(x)
        if len(bodies) == 4 and kind is Late:
            monkeypatch.setattr(Late, "__iter__", Hiding.__iter__, raising=False)
        return torch.einsum("bi,ij->bj", kind([x, public]))

    with pytest.raises(Refused, match=r"each record stands alone|other calls|another way"):
        trained(spoil)


def test_ordinary_classes_of_the_users_are_accepted() -> None:
    Sides = namedtuple("Sides", "left right")

    class Column(enum.IntEnum):
        SECOND = 1

    assert trained(lambda x: F.pad(x, Sides(1, 0))[:, 1:] * x.select(1, Column.SECOND)[:, None]) == loop.STEPS


class Memo(dict[int, Tensor]):
    """A memo for copies may give back another tensor; 5.2 clips by the signs of zeros."""


@pytest.mark.parametrize("kind", [Memo, dict])
def test_a_copy_is_one_bit_by_bit(kind: Callable[[], dict[int, Tensor]]) -> None:
    zeros = torch.zeros(4)

    def signs(x: Tensor) -> Tensor:
        memo = kind()
        memo[id(zeros)] = torch.where(x.mean(0) > 0, 0.0, -0.0)
        return x * torch.copysign(torch.ones(4), zeros.__deepcopy__(memo))

    with pytest.raises(Refused, match="each record stands alone"):
        trained(signs)


def test_ordinary_copies_are_accepted() -> None:
    public = torch.rand(4)
    assert trained(lambda x: copy.deepcopy(x.detach()) * copy.deepcopy(public)) == loop.STEPS


def test_copies_of_a_batch_are_accepted() -> None:
    """The memo that the copies share holds addresses, which differ from batch to batch."""
    run = loop.private()
    for batch in run:
        x, y = copy.deepcopy(tuple(batch))
        run.step(loop.losses(run.model, x, y))
    assert run.progress.step == loop.STEPS


@pytest.mark.parametrize("by", ["tensor", "storage"])
def test_a_memo_does_not_bring_memory_that_numpy_writes_to(by: str) -> None:
    """It gave a tensor with the values of the records, which then changed unseen."""

    def mean(x: Tensor) -> Tensor:
        array = x.numpy().copy()
        shared = torch.from_numpy(array)
        storages = {x.untyped_storage()._cdata: shared.untyped_storage()}
        memo: dict[Any, Any] = {id(x): shared} if by == "tensor" else {"torch": storages}
        copied = x.__deepcopy__(memo)
        array[:] = array.mean(0)
        return copied

    with pytest.raises(Refused):
        trained(mean)


def test_the_hooks_of_the_engine_are_out_of_reach() -> None:
    """Replaced hooks moved the sum by 3.4 clips."""
    run = loop.private()
    for x, y in run:
        hidden = run.model[0](x)  # type: ignore[index]
        with pytest.raises(Refused, match="its own hooks"):
            _ = hidden._backward_hooks
        run.step(loop.losses(run.model, x, y))
        break
