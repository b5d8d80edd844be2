"""Every method, listed once: the command line, the comparison, the contract tests and the audit read `METHODS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from discreet.methods.d2p2_sgd import d2p2_sgd, d2p_sgd, dp2_sgd
from discreet.methods.dp_sgd import adaptive_quantile, automatic, dp_adam, dp_sgd, per_layer, psac
from discreet.methods.random_freeze import random_freeze, ranked_freeze
from discreet.plan import Plan

__all__ = [
    "METHODS",
    "Method",
    "adaptive_quantile",
    "automatic",
    "d2p2_sgd",
    "d2p_sgd",
    "dp2_sgd",
    "dp_adam",
    "dp_sgd",
    "per_layer",
    "psac",
    "random_freeze",
    "ranked_freeze",
]


@final
@dataclass(frozen=True, kw_only=True)
class Method:
    """A recipe, the optimizer it is usually run with, and its guarantee in words."""

    name: str
    recipe: Callable[..., Plan]
    guarantee: str
    certified: bool = True
    adam: bool = False

    @property
    def summary(self) -> str:
        """The recipe's first line."""
        return (self.recipe.__doc__ or "").splitlines()[0]


_SUBSAMPLED = "certified: subsampled Gaussian, composition"

_PROJECTED = "certified: subsampled Gaussian, composition; dense projections: chi-square mixture"

METHODS: MappingProxyType[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method(name="dp-sgd", recipe=dp_sgd, guarantee=_SUBSAMPLED),
            Method(name="dp-adam", recipe=dp_adam, guarantee=_SUBSAMPLED, adam=True),
            Method(name="auto-s", recipe=automatic, guarantee=_SUBSAMPLED),
            Method(name="psac", recipe=psac, guarantee=_SUBSAMPLED),
            Method(name="per-layer", recipe=per_layer, guarantee=_SUBSAMPLED),
            Method(
                name="adaptive-quantile",
                recipe=adaptive_quantile,
                guarantee="certified: subsampled Gaussian with the count query, composition",
            ),
            Method(name="random-freeze", recipe=random_freeze, guarantee=_SUBSAMPLED),
            Method(name="ranked-freeze", recipe=ranked_freeze, guarantee=_SUBSAMPLED),
            Method(name="d2p2-sgd", recipe=d2p2_sgd, guarantee=_PROJECTED),
            Method(name="d2p-sgd", recipe=d2p_sgd, guarantee=_SUBSAMPLED),
            Method(name="dp2-sgd", recipe=dp2_sgd, guarantee=_PROJECTED),
        )
    }
)
