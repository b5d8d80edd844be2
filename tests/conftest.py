"""Shared by all tests: one thread each (the suite runs in parallel), and quick hypothesis profiles."""

from __future__ import annotations

import os

import hypothesis
import pytest
import torch

import floor
import frozen
from discreet.data.features.vision_operators import declare_vision_operators

LEAST_TESTS = 3800  # raise it when tests are added

torch.set_num_threads(1)
declare_vision_operators()  # before a test imports transformers or timm
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=300)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure(config: pytest.Config) -> None:
    floor.watch(config, LEAST_TESTS)


def pytest_collection_finish() -> None:
    frozen.freeze()


@pytest.fixture(autouse=True)
def _known_global_seed() -> None:
    """Models and data that tests make with torch's own generator are the same in every run."""
    torch.manual_seed(0)
