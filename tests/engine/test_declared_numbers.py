"""Arithmetic on declared numbers: schedules and crops are accepted, a choice between formulas is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from steps import each, train
from torch import Tensor

import discreet
from discreet.core.check import Refused
from discreet.engine.proof.declared import DECLARED, DeclaredFloat, DeclaredInt


def mixed_losses(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    a = discreet.public(1 - 0.1 * private.progress.step)
    private.step((1 - a) * each(model(x), y) + a * each(model(2 * x), y) / (a**2 + 1))


def cropped(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    i = discreet.public(random.randrange(5))
    crop = x[:, i : i + 2]
    private.step(each(model(crop.repeat(1, 3)), y))


def cropped_twice(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    i, j = discreet.public([random.randrange(3), random.randrange(2)])
    private.step(each(model(x.narrow(1, i + j, 2).repeat(1, 3)), y) * -(i - 4))


@pytest.mark.parametrize("body", [mixed_losses, cropped, cropped_twice], ids=lambda body: body.__name__)
def test_arithmetic_on_declared_numbers_is_accepted(body: Any) -> None:
    random.seed(0)
    train(body=body, steps=5)


def other_constant(a: Any, flag: bool) -> Any:
    return a * (3 if flag else 2)


def other_operation(a: Any, flag: bool) -> Any:
    return a + 1 if flag else a - 1


def other_side(a: Any, flag: bool) -> Any:
    return 1 - a if flag else a - 1


def a_value_of_the_records(a: Any, flag: bool) -> Any:
    return a * (0.5 + flag)


CHOICES = [other_constant, other_operation, other_side, a_value_of_the_records]


@pytest.mark.parametrize("choose", CHOICES, ids=lambda choose: choose.__name__)
def test_a_choice_between_formulas_is_refused(choose: Any) -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        factor = choose(discreet.public(2.0), private.progress.step > 1)
        private.step(each(model(x), y) * factor)

    with pytest.raises(Refused, match="same calls with the same numbers"):
        train(body=body)


def test_arithmetic_gives_what_plain_numbers_give() -> None:
    a, i = discreet.public(0.3), discreet.public(7)
    assert (1 - a, i + 4, 2 * i, i / 2, -a, round(a, 1), i // 2, i % 4, 2**i, i >> 1) == (
        *(1 - 0.3, 11, 14, 3.5, -0.3, 0.3, 3, 3, 128, 3),
    )
    assert {type(one) for one in (1 - a, i / 2, -a, round(a, 1), a + i)} == {DeclaredFloat}
    assert {type(one) for one in (i + 4, 2 * i, i // 2, 2**i, i >> 1, round(a))} == {DeclaredInt}
    assert DECLARED.description_of((a * 2).declaration) != DECLARED.description_of((a * 2.0).declaration)


def test_a_number_that_grows_without_end_is_plain_at_last() -> None:
    a = discreet.public(1.0)
    for _ in range(100):
        a = a + a
    assert type(a) is float
