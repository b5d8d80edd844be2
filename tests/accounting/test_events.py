"""Events: what they mean, that they survive JSON, and that nothing doubtful becomes one."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.accounting.events import (
    EVENTS,
    BallsInBinsEpoch,
    ClippedFeedback,
    CountQuery,
    Event,
    Free,
    Gaussian,
    GroupPoissonSampled,
    LastIterateRun,
    NonPrivate,
    PoissonSampled,
    ProjectedGaussian,
    Queries,
    SelectionQuery,
    TruncatedPoissonSampled,
    Unamplified,
    WithoutReplacement,
    event_from_json,
    units,
)
from discreet.accounting.rules import RULES
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring

noises = st.floats(min_value=0.0, max_value=1e6)
rates = st.floats(min_value=1e-9, max_value=1.0)
counts = st.integers(min_value=1, max_value=10**6)
positive = st.floats(min_value=1e-6, max_value=1e6)

gaussians = st.builds(Gaussian, noises)
queries = st.one_of(gaussians, st.builds(CountQuery, noises), st.builds(SelectionQuery, noises, positive))
whitenable = st.one_of(queries, st.builds(Queries, st.lists(queries, min_size=1, max_size=3).map(tuple)))
projected = st.builds(ProjectedGaussian, noises, st.lists(counts, min_size=1, max_size=3).map(tuple))


def groups(of: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    return st.builds(GroupPoissonSampled, rates, counts, of)


def truncated(of: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    return st.builds(TruncatedPoissonSampled, rates, counts, counts, of)


def fixed(of: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    return st.tuples(counts, counts).flatmap(
        lambda sizes: st.builds(WithoutReplacement, st.just(max(sizes)), st.just(min(sizes)), of)
    )


events = st.one_of(
    whitenable,
    projected,
    st.builds(PoissonSampled, rates, st.one_of(whitenable, projected)),
    groups(whitenable),
    truncated(whitenable),
    fixed(whitenable),
    st.builds(BallsInBinsEpoch, counts, whitenable),
    st.builds(Unamplified, whitenable),
    st.builds(
        ClippedFeedback,
        rate=rates,
        steps=counts,
        batch=positive,
        clip=positive,
        feedback_clip=noises,
        noise_std_on_mean=noises,
        preclip=st.none() | positive,
    ),
    st.builds(
        LastIterateRun,
        step=st.one_of(gaussians, truncated(gaussians), fixed(gaussians)),
        steps=counts,
        clip=positive,
        batch=positive,
        learning_rate=positive,
        diameter=positive,
        expansion=noises,
    ),
    st.just(Free()),
    st.just(NonPrivate()),
)


@given(events)
def test_every_event_survives_json(event: Event) -> None:
    again = event_from_json(json.loads(json.dumps(event.to_json())))
    assert again == event
    assert hash(again) == hash(event)
    assert type(again) is type(event)


def test_every_event_has_a_kind_of_its_own_and_a_rule() -> None:
    ours = {cls for cls in Event.__subclasses__() if cls.__module__.startswith("discreet.")}
    assert ours == set(EVENTS.values())
    assert len({cls.kind for cls in ours}) == len(ours)
    assert set(RULES) == set(EVENTS.values()) - {Free, NonPrivate}


def test_events_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gaussian(1.0).noise = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("noises", "expected"),
    [((1.2, 4.0), 1.149392), ((2.0, 3.0), 1.66410), ((1.0, 1.0), 1 / math.sqrt(2)), ((7.0,), 7.0)],
)
def test_queries_on_one_sample_whiten(noises: tuple[float, ...], expected: float) -> None:
    whitened = Queries(tuple(Gaussian(noise) for noise in noises)).whitened
    assert whitened.noise == pytest.approx(expected, abs=1e-5)


def test_whitening_keeps_extremes() -> None:
    assert Queries((Gaussian(0.0), Gaussian(1.0))).whitened == Gaussian(0.0)
    tiny = Queries((Gaussian(1e-200), Gaussian(1e200))).whitened.noise
    assert tiny == pytest.approx(1e-200)


def test_the_count_is_charged_against_one_half() -> None:
    assert CountQuery(sigma=10.0).whitened == Gaussian(20.0)
    # Counted from 0 or 1 instead of -1/2 or +1/2 the same noise would hide twice as much.
    assert CountQuery(sigma=10.0).whitened.noise != 10.0


def test_a_selection_query_is_charged_against_its_sensitivity() -> None:
    assert SelectionQuery(sigma=3.0, sensitivity=0.5).whitened == Gaussian(6.0)


def test_a_replaced_record_moves_two_clips() -> None:
    assert units(Neighbouring.ADD_REMOVE) == 1
    assert units(Neighbouring.REPLACE_ONE) == 2


BAD: list[tuple[type[Event], dict[str, Any]]] = [
    (Gaussian, {"noise": -1.0}),
    (Gaussian, {"noise": math.nan}),
    (Gaussian, {"noise": math.inf}),
    (Gaussian, {"noise": "1"}),
    (Gaussian, {"noise": True}),
    (CountQuery, {"sigma": -0.1}),
    (SelectionQuery, {"sigma": 1.0, "sensitivity": 0.0}),
    (Queries, {"queries": ()}),
    (Queries, {"queries": [Gaussian(1.0)]}),
    (Queries, {"queries": (Free(),)}),
    (ProjectedGaussian, {"noise": 1.0, "dims": ()}),
    (ProjectedGaussian, {"noise": 1.0, "dims": (0,)}),
    (ProjectedGaussian, {"noise": 1.0, "dims": (2.5,)}),
    (PoissonSampled, {"rate": 0.0, "event": Gaussian(1.0)}),
    (PoissonSampled, {"rate": 1.3, "event": Gaussian(1.0)}),
    (PoissonSampled, {"rate": 0.1, "event": Free()}),
    (PoissonSampled, {"rate": 0.1, "event": PoissonSampled(0.1, Gaussian(1.0))}),
    (GroupPoissonSampled, {"rate": 0.1, "most": 0, "event": Gaussian(1.0)}),
    (GroupPoissonSampled, {"rate": 0.1, "most": 2, "event": ProjectedGaussian(1.0, (2,))}),
    (TruncatedPoissonSampled, {"rate": 0.1, "cap": 0, "records": 10, "event": Gaussian(1.0)}),
    (TruncatedPoissonSampled, {"rate": 0.1, "cap": 5, "records": 10, "event": ProjectedGaussian(1.0, (2,))}),
    (WithoutReplacement, {"records": 10, "batch": 11, "event": Gaussian(1.0)}),
    (BallsInBinsEpoch, {"epochs": 0, "event": Gaussian(1.0)}),
    (Unamplified, {"event": NonPrivate()}),
]


@pytest.mark.parametrize(("cls", "fields"), BAD, ids=lambda value: getattr(value, "__name__", str(value)))
def test_bad_numbers_are_refused_in_one_style(cls: type[Event], fields: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=r"^Expected .*, got .*\. Remedy: .*\.$"):
        cls(**fields)


def test_a_last_iterate_run_needs_bounded_batches() -> None:
    with pytest.raises(Refused, match="LastIterateRun"):
        LastIterateRun(
            step=PoissonSampled(0.1, Gaussian(1.0)),  # type: ignore[arg-type]
            steps=10,
            clip=1.0,
            batch=10,
            learning_rate=0.1,
            diameter=2.0,
            expansion=1.0,
        )


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "laplace", "noise": 1.0},
        {"noise": 1.0},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise": 1.0, "count": 3},
        {"kind": ["gaussian"], "noise": 1.0},
        {"kind": "poisson-sampled", "rate": 0.1, "event": {"kind": "guess"}},
        {"kind": "gaussian", "noise": -1.0},
        "gaussian",
    ],
)
def test_unknown_or_damaged_json_is_refused(body: Any) -> None:
    with pytest.raises(Refused):
        event_from_json(body)
