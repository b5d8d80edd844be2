"""The list of methods. The command line, comparisons, contract tests and audits all read `METHODS`."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from discreet.methods.adafest.recipes import adafest
from discreet.methods.d2p2.recipes import d2p2_sgd, d2p_sgd, dp2_sgd
from discreet.methods.dicesgd.recipes import dicesgd, dicesgd_automatic, two_level
from discreet.methods.dp_ftrl.recipes import bandmf, dp_ftrl
from discreet.methods.dp_sgd.recipes import adaptive_quantile, automatic, dp_adam, dp_sgd, per_layer, psac
from discreet.methods.dpsgd_dc.recipes import dpsgd_dc, dpsgd_gc
from discreet.methods.geodp.recipes import geodp, geodp_sound, polar
from discreet.methods.gep.recipes import b_gep, gep
from discreet.methods.random_freeze.recipes import random_freeze, ranked_freeze
from discreet.methods.selective_update.recipes import sur
from discreet.stages.plan import Recipe

__all__ = ["METHODS", "Method", "adafest", "adaptive_quantile", "automatic", "b_gep", "bandmf", "d2p2_sgd", "d2p_sgd"]
__all__ += [
    "dicesgd",
    "dicesgd_automatic",
    "dp2_sgd",
    "dp_adam",
    "dp_ftrl",
    "dp_sgd",
    "dpsgd_dc",
    "dpsgd_gc",
    "geodp",
    "geodp_sound",
    "gep",
]
__all__ += ["per_layer", "polar", "psac", "random_freeze", "ranked_freeze", "sur", "two_level"]


@final
@dataclass(frozen=True, kw_only=True)
class Method:
    """A recipe, its guarantee in words, and whether it is usually run with Adam."""

    name: str
    recipe: Callable[..., Recipe]
    guarantee: str
    certified: bool = True
    adam: bool = False

    @property
    def summary(self) -> str:
        """The first line of the recipe's docstring."""
        return (self.recipe.__doc__ or "").splitlines()[0]


_SUBSAMPLED = "certified: composition of subsampled Gaussian mechanisms"
_COUNTED = f"{_SUBSAMPLED}, including the count query"
_PROJECTED = f"{_SUBSAMPLED}; with dense projections, of chi-square mixtures"
_TESTED = f"{_SUBSAMPLED}, including the test of every update"
_TWO_QUERIES = f"{_SUBSAMPLED} with two queries per batch"
_ROWS = f"{_SUBSAMPLED}, including the count of touched rows"
_PUBLIC = "if no protected record is among the public ones"
_LAST_ITERATE = "certified: composition; with link or smoothness, a bound for the final parameters only"
_CORRELATED = "certified: one Gaussian release for the whole run, by how often and how far apart a record comes back"
_CYCLIC = "certified: one subsampled Gaussian mechanism for every cycle through the parts"
_FEEDBACK = "certified: one bound for the whole run, including the hidden error; far above the paper's claim"

METHODS: MappingProxyType[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method(name="dp-sgd", recipe=dp_sgd, guarantee=_SUBSAMPLED),
            Method(name="dp-adam", recipe=dp_adam, guarantee=_SUBSAMPLED, adam=True),
            Method(name="auto-s", recipe=automatic, guarantee=_SUBSAMPLED),
            Method(name="psac", recipe=psac, guarantee=_SUBSAMPLED),
            Method(name="per-layer", recipe=per_layer, guarantee=_SUBSAMPLED),
            Method(name="adaptive-quantile", recipe=adaptive_quantile, guarantee=_COUNTED),
            Method(name="random-freeze", recipe=random_freeze, guarantee=_SUBSAMPLED),
            Method(name="ranked-freeze", recipe=ranked_freeze, guarantee=_SUBSAMPLED),
            Method(name="d2p2-sgd", recipe=d2p2_sgd, guarantee=_PROJECTED),
            Method(name="d2p-sgd", recipe=d2p_sgd, guarantee=_SUBSAMPLED),
            Method(name="dp2-sgd", recipe=dp2_sgd, guarantee=_PROJECTED),
            Method(name="dpsgd-dc", recipe=dpsgd_dc, guarantee=_LAST_ITERATE),
            Method(name="dpsgd-gc", recipe=dpsgd_gc, guarantee=_SUBSAMPLED),
            Method(name="sur", recipe=sur, guarantee=_TESTED),
            Method(name="geodp", recipe=geodp, guarantee="no proven guarantee", certified=False),
            Method(name="geodp-sound", recipe=geodp_sound, guarantee=_TWO_QUERIES),
            Method(name="polar", recipe=polar, guarantee=_TWO_QUERIES),
            Method(name="dicesgd", recipe=dicesgd, guarantee=_FEEDBACK),
            Method(name="dicesgd-automatic", recipe=dicesgd_automatic, guarantee=_FEEDBACK),
            Method(name="gep", recipe=gep, guarantee=f"{_TWO_QUERIES}, {_PUBLIC}"),
            Method(name="b-gep", recipe=b_gep, guarantee=f"{_SUBSAMPLED}, {_PUBLIC}"),
            Method(name="dp-ftrl", recipe=dp_ftrl, guarantee=_CORRELATED),
            Method(name="bandmf", recipe=bandmf, guarantee=_CYCLIC),
            Method(name="adafest", recipe=adafest, guarantee=_ROWS),
            Method(name="two-level", recipe=two_level, guarantee=_SUBSAMPLED),
        )
    }
)
