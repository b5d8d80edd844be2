"""The measured part of the page on federated training is that of the results."""

from __future__ import annotations

import json
from pathlib import Path

from research.federated.page import written

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_the_results() -> None:
    held = json.loads((ROOT / "results" / "federated.json").read_text())
    page = (ROOT / "docs" / "federated.md").read_text(encoding="utf-8")
    assert written(held, page) == page


def test_certified_epsilon_is_within_the_budget() -> None:
    held = json.loads((ROOT / "results" / "federated.json").read_text())
    for case in held["cases"].values():
        certified = [row["certified"] for row in case["rows"].values() if "certified" in row]
        assert certified
        assert max(certified) <= case["epsilon"]
