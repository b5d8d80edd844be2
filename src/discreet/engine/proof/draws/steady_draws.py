"""Draws without chance: what a call that draws gives a record must not follow its place or the number of records.

Random numbers differ from place to place, and hide a difference that a place makes: attention with dropout and
`is_causal=True` along the records, `torch.normal(len(x), h)`. So such calls are compared with draws that give every
entry the same, by a formula of their parameters.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from discreet.core.secret_draws import default_generators
from discreet.engine.trace.capture import bare_name

_LEVEL: Final = 0.375  # of a draw without parameters
_WEIGHTS: Final = {"p": 1.0, "mean": 1.0, "std": 0.75, "from": 0.625, "to": 0.375, "lambd": 1.0, "median": 1.0}
_WHOLE: Final = frozenset(["randint", "randint_like", "random"])
_FRACTIONS: Final = frozenset(
    [
        *("bernoulli", "normal", "normal_functional", "uniform", "exponential", "geometric", "cauchy", "log_normal"),
        *("rand", "randn", "rand_like", "randn_like"),
    ]
)


class SteadyDraws(TorchDispatchMode):
    """Inside the block torch's random functions give every entry the same for the same parameters.

    Functions that draw in another way move the generator, as ever. `sizes` are the entries of each draw, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = bare_name(func), kwargs or {}
        if name == "native_dropout":
            data, chance = args[:2]
            self.sizes.append(data.numel())
            return data * (1 + chance), torch.ones_like(data, dtype=torch.bool)
        if name not in _WHOLE and name not in _FRACTIONS:
            return func(*args, **kwargs)
        arguments = func._schema.arguments
        given = {one.name: one.default_value for one in arguments if one.has_default_value()}
        given |= {one.name: own for one, own in zip(arguments, args, strict=False)} | kwargs
        level = torch.as_tensor(_whole_level(given) if name in _WHOLE else _level(given))
        drawn = _undrawn(func, args, kwargs)
        self.sizes.append(drawn.numel())
        return drawn.copy_(level)


def _undrawn(func: Any, args: Any, kwargs: Any) -> Tensor:
    """What a draw gives, without a trace in the generators."""
    states = [(generator, generator.get_state()) for generator in default_generators()]
    result: Tensor = func(*args, **kwargs)
    for generator, state in states:
        generator.set_state(state)
    return result


def _level(given: dict[str, Any]) -> Any:
    named = [weight * given[name] for name, weight in _WEIGHTS.items() if given.get(name) is not None]
    if named:
        return sum(named)
    is_by_entry = "self" in given and "p" not in given and "dtype" not in given
    return given["self"].clone() if is_by_entry else _LEVEL  # `bernoulli` of chances, one for each entry


def _whole_level(given: dict[str, Any]) -> Any:
    low, high = given.get("low", given.get("from")) or 0, given.get("high", given.get("to"))
    return low + (8 if high is None else high - low) * 3 // 8
