"""Numbers that the rows of several records could share: two ways to read a draw, and the order of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import each, train
from test_unseen import SAME, with_value
from torch import Tensor, nn

from discreet.core.check import Refused

K = 6  # as many columns as the inputs have
Make = Callable[[Tensor], Tensor]


def with_noise(make: Make) -> Any:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x + make(x)), y))

    return body


def flat(x: Tensor) -> Tensor:
    return torch.rand(len(x) * K)


def blocks(drawn: Tensor, x: Tensor) -> Tensor:
    """The second way to read a draw: blocks with a number for each record."""
    return drawn.view(K, len(x)).t()


# One draw, two ways to read it ----------------------------------------------------------------------------------


def two_views(x: Tensor) -> Tensor:
    drawn = flat(x)
    return (drawn.view(len(x), K) == blocks(drawn, x)).any(1, keepdim=True).float()


def two_calls_on_records(x: Tensor) -> Tensor:
    drawn = flat(x)
    return x * drawn.view(len(x), K) + x * blocks(drawn, x)


def slices(x: Tensor) -> Tensor:
    drawn = torch.rand(2 * len(x))
    return (drawn[: len(x)] * drawn[::2])[:, None]


def behind_another_draw(x: Tensor) -> Tensor:
    drawn = flat(x)
    return x * F.dropout(drawn, 0.5).view(len(x), K) + x * blocks(drawn, x)


def drawn_twice_from_one_state(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        drawn = flat(x)
    return x * drawn.view(len(x), K) + x * blocks(flat(x), x)


def as_a_scale(x: Tensor) -> Tensor:
    drawn = flat(x)
    return torch.normal(x.reshape(-1), drawn).view(len(x), K) + blocks(drawn, x)


def in_memory_that_was_empty(x: Tensor) -> Tensor:
    drawn = torch.empty(len(x) * K).uniform_()
    return x * drawn.view(len(x), K) + x * blocks(drawn, x)


TWO_WAYS = [
    *(two_views, two_calls_on_records, slices, behind_another_draw, drawn_twice_from_one_state, as_a_scale),
    in_memory_that_was_empty,
]


@pytest.mark.parametrize("make", TWO_WAYS, ids=lambda make: make.__name__)
def test_one_draw_in_two_ways(make: Make) -> None:
    with pytest.raises(Refused, match="read one draw in two ways"):
        train(body=with_noise(make), steps=2)


def test_one_draw_in_two_ways_by_a_gradient() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, drawn: Tensor) -> Tensor:
            ctx.save_for_backward(drawn)
            return x * drawn.view(len(x), K)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            (drawn,) = ctx.saved_tensors
            return blocks(drawn, gradients[0]), None

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        private.step(each(outputs, y) + Noisy.apply(outputs.repeat(1, 2), flat(x)).sum(1))

    with pytest.raises(Refused, match="read one draw in two ways"):
        train(body=body, steps=2)


ONE_WAY: dict[str, Make] = {
    "twice by rows": lambda x: (drawn := flat(x)).view(len(x), K) * drawn.view(len(x), 2, 3).flatten(1),
    "twice by blocks": lambda x: blocks(drawn := flat(x), x) * (x * blocks(drawn, x)),
    "two draws": lambda x: flat(x).view(len(x), K) * blocks(flat(x), x),
    "as many columns as records": lambda x: (torch.rand(len(x), 12) * torch.rand(len(x), 12)).view(-1, 6, 2).sum(2),
    "noise on noise": lambda x: F.dropout(torch.normal(torch.rand(len(x), K), 1.0), 0.5),
}


@pytest.mark.parametrize("name", ONE_WAY)
def test_one_way_to_read_a_draw_is_accepted(name: str) -> None:
    assert train(body=with_noise(ONE_WAY[name]), steps=2).updates == 2


def test_a_statistic_of_categories_of_all_records() -> None:
    """What `multinomial` draws for equal rows is not equal."""

    def make(x: Tensor) -> Tensor:
        return torch.multinomial(torch.ones(len(x), 5), 1).float().mean(0)

    with pytest.raises(Refused):
        train(body=with_noise(make), steps=2)


# The order of memory --------------------------------------------------------------------------------------------


def side_by_side(x: Tensor) -> Tensor:
    """The same values, records side by side in memory."""
    return x.t().contiguous().t()


@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: F.dropout(x, 0.5)], ids=["rand_like", "dropout"])
def test_two_draws_from_one_state_on_other_strides(draw: Make) -> None:
    def make(x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            first = draw(x)
        return (first == draw(side_by_side(x))).any(1, keepdim=True).float()

    with pytest.raises(Refused, match="no two draws share"):
        train(body=with_noise(make), steps=2)


def test_two_draws_from_one_state_on_equal_strides_are_accepted() -> None:
    def make(x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            first = torch.rand_like(side_by_side(x))
        return first + torch.rand_like(side_by_side(x + 1))

    assert train(body=with_noise(make), steps=2).updates == 2


def contiguous_records(x: Tensor, flag: bool) -> Tensor:
    h = side_by_side(x)
    return torch.rand_like(h.contiguous() if flag else h)


def contiguous_before_a_sum(x: Tensor, flag: bool) -> Tensor:
    h = side_by_side(x)
    return F.dropout((h.contiguous() if flag else h) + 1, 0.5)


def without_gaps(x: Tensor, flag: bool) -> Tensor:
    """Memory without gaps is filled by another loop, which uses other numbers."""
    memory = torch.cat([x, x], 1)
    h = memory[:, ::2].contiguous() if flag else memory[:, ::2]
    return h.normal_()


def contiguous_constants(x: Tensor, flag: bool) -> Tensor:
    h = torch.zeros(6, len(x)).t()
    return x + torch.rand_like(h.contiguous() if flag else h)


SHAPES = [torch.zeros(5), torch.zeros(7)]


def sizes_of_constants(x: Tensor, flag: bool) -> Tensor:
    """Numbers are skipped by a draw that goes nowhere."""
    torch.rand_like(SHAPES[flag])
    return x + torch.rand_like(x)


CHOICES = [contiguous_records, contiguous_before_a_sum, without_gaps, contiguous_constants, sizes_of_constants]


@pytest.mark.parametrize("make", CHOICES, ids=lambda make: make.__name__)
def test_a_choice_among_layouts(make: Any) -> None:
    with pytest.raises(Refused, match=SAME):
        train(body=with_value(make), steps=2)


def test_a_mixed_tensor_moves_the_generator_after_a_look_ahead() -> None:
    def make(x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.rand(100)
        torch.rand_like(x[x > 0])  # as many numbers as the records say
        return torch.rand_like(x)

    with pytest.raises(Refused, match="draws that the loop can have seen"):
        train(body=with_noise(make), steps=2)


LAYOUTS: dict[str, Make] = {
    "side by side": lambda x: F.dropout(side_by_side(x), 0.5),
    "a slice": lambda x: torch.rand_like(torch.cat([x, x], 1)[:, :6]),
    "every second": lambda x: torch.rand_like(torch.cat([x, x], 1)[:, ::2]),
    "time first": lambda x: F.dropout(x.view(-1, 3, 2).transpose(0, 1), 0.5).transpose(0, 1).reshape(-1, 6),
    "flat": lambda x: F.dropout(x.t().reshape(-1), 0.5).view(6, -1).t(),
    "expanded": lambda x: F.dropout(x[:, :1].expand(-1, 6), 0.5),
    "without an axis of one": lambda x: F.dropout(x.view(-1, 6, 1).squeeze(), 0.5).view(-1, 6),
    "of public tensors": lambda x: torch.rand_like(torch.zeros(6, len(x)).t()),
    "behind a draw by values": lambda x: (torch.rand_like(x[x > 0]), torch.rand_like(x))[1],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_that_do_not_change_are_accepted(name: str) -> None:
    """Also in a batch of one record, the last of twelve, whose axis has no place in the order of memory."""
    assert train(body=with_noise(LAYOUTS[name]), steps=2, micro_batch=11).updates == 2
