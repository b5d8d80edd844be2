"""Functions that are proven by another of the same form.

Samplers whose draws depend on values (gamma, Poisson) move the generator by what one record holds, so that all later
draws look as if they moved with it. Each draws every entry from that entry's own parameters, as its stand-in computes
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor


def _elementwise(first: Tensor, *rest: Any, **_: Any) -> Tensor:
    total = first.clone()
    for other in rest:
        if isinstance(other, Tensor):
            total = total + other
    return total


def _rows(probabilities: Tensor, samples: int, *_: Any, **__: Any) -> Tensor:
    whole = probabilities.sum(-1, keepdim=True)
    return whole.expand(*probabilities.shape[:-1], samples).to(torch.long)


def _spread_over_the_last_axis(concentration: Tensor, *_: Any, **__: Any) -> Tensor:
    return concentration + concentration.sum(-1, keepdim=True)


STAND_INS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    torch.poisson: _elementwise,
    torch._standard_gamma: _elementwise,
    torch.binomial: _elementwise,
    torch.multinomial: _rows,
    Tensor.multinomial: _rows,
    torch._sample_dirichlet: _spread_over_the_last_axis,
}
