"""The measured part of the page on federated training is that of the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from research.federated.page import written
from research.federated.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / name).read_text())
    return found


def test_the_page_shows_the_results() -> None:
    page = (ROOT / "docs" / "federated.md").read_text(encoding="utf-8")
    assert written(results("federated.json"), results("federated-tuning.json"), page) == page


def test_certified_epsilon_is_within_the_budget() -> None:
    for case in results("federated.json")["cases"].values():
        certified = [row["certified"] for row in case["rows"].values() if "certified" in row]
        assert certified
        assert max(certified) <= case["epsilon"]


def test_random_freeze_sends_few_bytes() -> None:
    ratios = [case["up_ratio"] for case in results("federated.json")["cases"].values() if "up_ratio" in case]
    assert all(ratio <= 0.15 for ratio in ratios)


def test_the_settings_are_the_best_of_the_search() -> None:
    for name, of in results("federated-tuning.json")["tasks"].items():
        best = max(of["trials"], key=lambda trial: trial["accuracy"])
        setting = SETTINGS[name]
        assert (best["clip"], best["rate"], best["batches"]) == (setting.clip, setting.rate, setting.batches)
