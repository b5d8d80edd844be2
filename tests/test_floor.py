"""A test suite must not shrink unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

FLOOR = 2800


def test_the_whole_suite_is_collected(request: pytest.FixtureRequest) -> None:
    """Raise FLOOR when tests are added; a lower count means that some are no longer found."""
    config = request.config
    chosen = [Path(argument.split("::")[0]) for argument in config.args]
    whole = {Path(config.rootpath, path) for path in config.getini("testpaths")}
    if {Path(config.invocation_params.dir, path).resolve() for path in chosen} != {
        p.resolve() for p in whole
    }:
        pytest.skip("only a part of the suite was asked for")
    assert len(request.session.items) >= FLOOR
