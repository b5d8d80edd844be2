"""What happened to the data: frozen, serialisable values that an accountant turns into epsilon.

An event states its mathematics completely. `noise` is the multiplier z on a sum: standard deviation of the noise /
clip, for the add/remove sensitivity of one clip. The accountants divide it once by `units(relation)`. A `Charge` says
how often each event happened. An accountant refuses events that it does not know.

>>> event = PoissonSampled(rate=0.01, event=Gaussian(noise=1.1))
>>> event_from_json(event.to_json()) == event
True
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from discreet.accounting.events.runs import BestOfRuns as BestOfRuns
from discreet.accounting.events.runs import ClippedFeedback as ClippedFeedback
from discreet.accounting.events.runs import CorrelatedRun as CorrelatedRun
from discreet.accounting.events.runs import CyclicPoissonRun as CyclicPoissonRun
from discreet.accounting.events.runs import LastIterateRun as LastIterateRun
from discreet.accounting.events.runs import ReshuffledRun as ReshuffledRun
from discreet.accounting.events.steps import BallsInBinsEpoch as BallsInBinsEpoch
from discreet.accounting.events.steps import CountQuery as CountQuery
from discreet.accounting.events.steps import Event as Event
from discreet.accounting.events.steps import Free as Free
from discreet.accounting.events.steps import Gaussian as Gaussian
from discreet.accounting.events.steps import GroupPoissonSampled as GroupPoissonSampled
from discreet.accounting.events.steps import NonPrivate as NonPrivate
from discreet.accounting.events.steps import PoissonSampled as PoissonSampled
from discreet.accounting.events.steps import ProjectedGaussian as ProjectedGaussian
from discreet.accounting.events.steps import Queries as Queries
from discreet.accounting.events.steps import Query as Query
from discreet.accounting.events.steps import Release as Release
from discreet.accounting.events.steps import SelectionQuery as SelectionQuery
from discreet.accounting.events.steps import TruncatedPoissonSampled as TruncatedPoissonSampled
from discreet.accounting.events.steps import Unamplified as Unamplified
from discreet.accounting.events.steps import Whitenable as Whitenable
from discreet.accounting.events.steps import WithoutReplacement as WithoutReplacement
from discreet.accounting.events.steps import units as units
from discreet.core import check

_POISSON = (PoissonSampled, GroupPoissonSampled, TruncatedPoissonSampled)
_SAMPLED = (*_POISSON, WithoutReplacement, BallsInBinsEpoch, Unamplified)
_RUNS = (ClippedFeedback, LastIterateRun, CorrelatedRun, ReshuffledRun, CyclicPoissonRun, BestOfRuns)
_KINDS: tuple[type[Event], ...] = (*get_args(Release), *_SAMPLED, *_RUNS, Free, NonPrivate)
EVENTS: Mapping[str, type[Event]] = {event.kind: event for event in _KINDS}


def event_from_json(body: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote. Unknown kinds and wrong fields are refused."""
    remedy = "read it with the version of the library that wrote it"
    check.require(isinstance(body, Mapping), "an event as a JSON object", f"{body!r}", remedy)
    kind = body.get("kind")
    known = isinstance(kind, str) and kind in EVENTS
    check.require(known, f"kind to be one of {', '.join(EVENTS)}", f"kind={kind!r}", remedy)
    cls = EVENTS[str(kind)]
    names = {f.name for f in dataclasses.fields(cls)}
    given = set(body) - {"kind"}
    check.require(given == names, f"{kind} with {sorted(names)}", f"{sorted(given)}", remedy)
    return cls(**{name: _value(body[name]) for name in names})


def _value(plain: Any) -> Any:
    if isinstance(plain, Mapping):
        return event_from_json(plain)
    if isinstance(plain, list):
        return tuple(_value(item) for item in plain)
    return plain
