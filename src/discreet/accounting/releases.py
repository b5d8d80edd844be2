"""What is done with one batch: frozen, serialisable events, and what all events have in common."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

from discreet.core import check
from discreet.core.relation import Neighbouring

ABOUT_NOISE = "noise is the standard deviation on the sum divided by the clip, 0 meaning no privacy"


@dataclass(frozen=True)
class Event:
    """One thing that touched the data, or nothing. Equal events cost the same."""

    kind: ClassVar[str] = "event"

    def to_json(self) -> dict[str, Any]:
        """The event as plain JSON values, tagged with its kind."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"kind": self.kind, **fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def units(relation: Neighbouring) -> float:
    """How many clips the sum moves between neighbours: 1 if a record comes or goes, 2 if it is replaced."""
    return 1.0 if relation is Neighbouring.ADD_REMOVE else 2.0


def nested(value: Any, allowed: tuple[type[Event], ...], owner: str) -> None:
    names = " or ".join(kind.__name__ for kind in allowed)
    remedy = f"{owner} is proven for these events only"
    check.require(isinstance(value, allowed), f"event to be {names}", f"event={value!r}", remedy)


@final
@dataclass(frozen=True)
class Gaussian(Event):
    """One sum of records, each of norm <= clip, released with noise N(0, (noise * clip)^2 I)."""

    noise: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        check.not_negative(ABOUT_NOISE, noise=self.noise)

    @property
    def whitened(self) -> Gaussian:
        """The equivalent single Gaussian."""
        return self


@final
@dataclass(frozen=True)
class CountQuery(Event):
    """The count of adaptive quantile clipping, centred: every record adds -1/2 or +1/2; noise N(0, sigma^2).

    Centring makes the add/remove sensitivity 1/2, so that the multiplier is sigma / (1/2).

    >>> CountQuery(sigma=5.0).whitened
    Gaussian(noise=10.0)
    """

    sigma: float
    kind: ClassVar[str] = "count-query"

    def __post_init__(self) -> None:
        check.not_negative("sigma is the standard deviation of the noise on the count", sigma=self.sigma)

    @property
    def whitened(self) -> Gaussian:
        """The equivalent single Gaussian."""
        return Gaussian(noise=self.sigma / 0.5)


@final
@dataclass(frozen=True)
class SelectionQuery(Event):
    """A noisy test on private data (accept or reject a step): a statistic plus N(0, sigma^2).

    `sensitivity` bounds the change when one record comes or goes (twice that when it is replaced).
    """

    sigma: float
    sensitivity: float
    kind: ClassVar[str] = "selection-query"

    def __post_init__(self) -> None:
        check.not_negative("sigma is the standard deviation of the noise on the test", sigma=self.sigma)
        check.positive("state how far one record can move the tested statistic", sensitivity=self.sensitivity)

    @property
    def whitened(self) -> Gaussian:
        """The equivalent single Gaussian."""
        return Gaussian(noise=self.sigma / self.sensitivity)


Query = Gaussian | CountQuery | SelectionQuery
_QUERIES = (Gaussian, CountQuery, SelectionQuery)


@final
@dataclass(frozen=True)
class Queries(Event):
    """Several queries on ONE sample. Whitened they are one Gaussian: z = (sum_i z_i^-2)^(-1/2).

    >>> round(Queries((Gaussian(1.2), Gaussian(4.0))).whitened.noise, 6)
    1.149392
    """

    queries: tuple[Query, ...]
    kind: ClassVar[str] = "queries"

    def __post_init__(self) -> None:
        remedy = "give the tuple of queries that saw the same sample"
        is_tuple = isinstance(self.queries, tuple) and len(self.queries) > 0
        check.require(is_tuple, "queries to be a tuple of at least one event", f"{self.queries!r}", remedy)
        for query in self.queries:
            nested(query, _QUERIES, "Queries")

    @property
    def whitened(self) -> Gaussian:
        """The equivalent single Gaussian."""
        noises = [query.whitened.noise for query in self.queries]
        if len(noises) == 1 or min(noises) == 0:
            return Gaussian(noise=min(noises))
        # Scaled by the smallest, so that tiny and huge multipliers neither overflow nor vanish.
        least = min(noises)
        return Gaussian(noise=least / math.sqrt(sum((least / noise) ** 2 for noise in noises)))


@final
@dataclass(frozen=True)
class ProjectedGaussian(Event):
    """y_l = A_l^T S_l / sqrt(p_l) + N(0, (noise * clip)^2 I), A_l dense, iid N(0, 1), fresh and public.

    `dims` holds p_l, the width of the projection of each layer. Orthonormal projections are plain `Gaussian`.
    """

    noise: float
    dims: tuple[int, ...]
    kind: ClassVar[str] = "projected-gaussian"

    def __post_init__(self) -> None:
        check.not_negative(ABOUT_NOISE, noise=self.noise)
        remedy = "give the width of the projection of every layer"
        is_tuple = isinstance(self.dims, tuple) and len(self.dims) > 0
        check.require(is_tuple, "dims to be a tuple of at least one width", f"dims={self.dims!r}", remedy)
        for width in self.dims:
            check.count(remedy, width=width)


Release = Gaussian | CountQuery | SelectionQuery | Queries | ProjectedGaussian
RELEASES = (Gaussian, CountQuery, SelectionQuery, Queries, ProjectedGaussian)
Whitenable = Gaussian | CountQuery | SelectionQuery | Queries
WHITENABLE = (Gaussian, CountQuery, SelectionQuery, Queries)
