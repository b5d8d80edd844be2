"""Audits draw keys and coins from the operating system; here both are fixed, so that every run is the same run.

A test therefore fails by a change of the code alone. The confidence that a test states is the chance that a change
which only moves the draws, and breaks nothing, makes it fail.
"""

from __future__ import annotations

import pytest

from fixed_keys import fix_keys


@pytest.fixture(autouse=True)
def _fixed_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the operating system's own keys are left alone."""
    if request.node.get_closest_marker("os_entropy") is None:
        fix_keys(request.node.nodeid, monkeypatch)
