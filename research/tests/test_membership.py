"""Membership inference: finds what was memorised, finds nothing under noise, and never mixes estimate and bound."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discreet.core.check import Refused
from discreet.runs import RunConfig
from fixed_keys import fix_keys
from research.membership.attack import AttackClassifier, attack_features
from research.membership.inference import auc, estimate, membership, membership_course


@pytest.fixture(autouse=True)
def _fixed_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and coins are the same in every run of the tests."""
    fix_keys(request.node.nodeid, monkeypatch)


@pytest.fixture
def noise_file(tmp_path: Path) -> str:
    """400 random points with random labels: nothing to learn, so that what is known of one was memorised."""
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((400, 200)).astype(np.float32), rng.integers(0, 2, 400)
    path = tmp_path / "random.npz"
    np.savez(path, x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    return str(path)


def _config(data: str, **given: Any) -> RunConfig:
    usual: dict[str, Any] = {
        "delta": 1e-5,
        "out": "",
        "data": data,
        "classes": 2,
        "records": 300,
        "model": "softmax",
        "noise": 1e-4,
        "batch": 50,
        "steps": 60,
        "seed": 7,
        "learning_rate": 0.5,
        "parameters": (("clip", 10.0),),
        "average": 0.0,
    }
    return RunConfig(**{**usual, **given})


def test_what_was_memorised_is_found(noise_file: str) -> None:
    found = membership(_config(noise_file), shadows=3, seeds=(0, 1))
    assert found.lira_auc > 0.7
    assert found.auc > 0.8
    assert found.advantage > 0.5
    assert found.estimate > 1
    assert 0 < found.lower_bound < found.estimate
    assert found.targets == 2
    assert len(found.scores) == len(found.members) == 2 * 200
    assert found.spread is not None


def test_under_noise_nothing_is_found(noise_file: str) -> None:
    """Seeded: the areas are 0.5 up to chance (deviation 0.041), and the bound shows nothing."""
    found = membership(_config(noise_file, noise=20.0, parameters=(("clip", 0.1),)), shadows=3, seeds=(0,))
    assert abs(found.lira_auc - 0.5) < 0.2
    assert abs(found.auc - 0.5) < 0.2
    assert found.lower_bound == 0
    assert found.spread is None


@pytest.mark.slow
def test_a_seeded_inference_can_be_repeated(noise_file: str) -> None:
    config = _config(noise_file, steps=5)
    first, second = (membership(config, shadows=2, seeds=(3,)) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert (first.scores == second.scores).all()


def test_the_course_of_a_run(noise_file: str) -> None:
    told: list[tuple[int, int]] = []
    course = membership_course(
        _config(noise_file, steps=30),
        shadows=2,
        seeds=(0,),
        at=(30, 5),
        on_step=lambda done, total: told.append((done, total)),
    )
    assert [found.step for found in course] == [5, 30]
    assert course[0].estimate < course[1].estimate
    assert told[-1] == (90, 90)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    with pytest.raises(Refused, match="steps between"):
        membership_course(_config(noise_file, steps=30), shadows=2, at=(31,))


def test_replace_one_trains_on_exactly_half(noise_file: str) -> None:
    config = _config(noise_file, sampling="fixed-size", steps=20)
    found = membership(config, shadows=2, seeds=(0,))
    assert found.members.sum() == len(found.members) // 2
    assert (found.members[:100] == ~found.members[100:]).all()


def test_bad_requests_are_refused(noise_file: str) -> None:
    with pytest.raises(Refused, match="quarter"):
        membership(_config(noise_file), size=200)
    with pytest.raises(Refused, match="shadow"):
        membership(_config(noise_file), shadows=1)
    with pytest.raises(Refused, match="target"):
        membership(_config(noise_file), seeds=())


def test_json_has_the_numbers_and_not_the_records(noise_file: str) -> None:
    told = membership(_config(noise_file, steps=2), shadows=2, seeds=(0,)).to_json()
    assert {"estimate", "lower_bound", "confidence", "auc", "advantage", "lira_auc"} <= set(told)
    assert not {"scores", "lira_scores", "members"} & set(told)


@pytest.mark.parametrize(
    ("false_positive", "false_negative", "expected"),
    [
        (0.3, 0.4, math.log((1 - 1e-5 - 0.4) / 0.3)),
        (0.05, 0.9, math.log((1 - 1e-5 - 0.9) / 0.05)),
        (0.5, 0.5, math.log((0.5 - 1e-5) / 0.5)),
        (0.0, 0.5, math.log((0.5 - 1e-5) / 0.0005)),
        (0.0, 0.0, math.log((1 - 1e-5 - 0.0005) / 0.0005)),
    ],
)
def test_the_papers_estimator(false_positive: float, false_negative: float, expected: float) -> None:
    found = estimate(false_positive=false_positive, false_negative=false_negative, delta=1e-5, records=1000)
    assert found == pytest.approx(expected)


def test_areas_and_rates() -> None:
    members = np.array([True] * 50 + [False] * 50)
    scores = np.arange(100.0)[::-1]
    assert auc(scores, members) == 1
    assert auc(-scores, members) == 0
    assert auc(np.zeros(100), members) == 0.5
    assert math.isnan(auc(scores, np.ones(100, dtype=bool)))


def test_the_classifier_learns_and_sees_classes_alike() -> None:
    generator = torch.Generator().manual_seed(1)
    answers = torch.randn(600, 5, generator=generator, dtype=torch.float64)
    members = torch.arange(600) % 2 == 0
    labels = torch.randint(0, 5, (600,), generator=generator)
    answers[members, labels[members]] += 4
    answers = answers.log_softmax(1)
    features = attack_features(answers, labels)
    attack = AttackClassifier()
    attack.learn(features[:400], members[:400])
    right = ((attack.scores(features[400:]) > 0) == members[400:]).double().mean()
    assert right > 0.85
    order = torch.tensor([3, 1, 4, 0, 2])  # class k is now called places[k]
    places = order.argsort()
    renamed = attack_features(answers[:, order], places[labels])
    assert torch.equal(renamed, features)
