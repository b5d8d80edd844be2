"""The README's measured parts come from result files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import synthetic

from discreet import Refused
from discreet.report.page import write
from research import readme as snippets

NAMES = ("records", "comparison-features", "truth", "speed")
MARKS = "".join(f"<!-- {name} -->old {name}<!-- /{name} -->\n" for name in NAMES)
ROOT = Path(__file__).resolve().parents[2]


def rewritten(readme: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["snippets", str(readme), str(results)])
    snippets.main()
    return readme.read_text(encoding="utf-8")


def test_parts_are_written_from_their_files_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme, results = tmp_path / "README.md", tmp_path / "results"
    readme.write_text(f"before\n{MARKS}after\n")
    found = synthetic.full()
    write(found, results / "long-comparison" / "features")
    text = rewritten(readme, results, monkeypatch)
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old comparison-features" not in text
    assert "old speed" in text  # no file, no change
    for entry in found.entries:
        assert f"| {entry.name} |" in text
    assert "epsilon 1 (one run) | epsilon 3 (three runs) | epsilon 8 (one run)" in text
    assert "dpsgd-gc: Expected full batches" in text
    assert f"    {found.provenance.command}" in text
    assert (results / "long-comparison" / "features" / "figures" / "frontier.svg").is_file()
    assert "results/long-comparison/features/figures/frontier.svg" in text
    assert found.best is not None
    assert f"First at epsilon 3: {found.best.name}." in text
    assert rewritten(readme, results, monkeypatch) == text


def test_the_long_comparison_fills_parts_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme, results = tmp_path / "README.md", tmp_path / "results"
    names = ("comparison-features", "comparison-cnn-small")
    readme.write_text("".join(f"<!-- {name} -->old {name}<!-- /{name} -->\n" for name in names))
    write(synthetic.full(), results / "long-comparison" / "features")
    text = rewritten(readme, results, monkeypatch)
    assert "results/long-comparison/features/figures/frontier.svg" in text
    assert [name for name in names if f"old {name}<" in text] == ["comparison-cnn-small"]
    marks = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in marks for name in names)


def test_only_broken_claims_are_in_the_truth_part() -> None:
    text = snippets.truth(synthetic.full().truth)
    assert "| GeoDP as published | beta 1, how one step | 4.85 | 7.81 (analytic: 249) | no proven guarantee |" in text
    assert "dp-sgd" not in text


def test_speeds_stand_beside_the_peers_that_were_timed() -> None:
    """As `python -m research.benchmarks --out` writes them."""
    rows = {"plain": {"over_plain": 1.0}, "discreet": {"over_plain": 1.237}, "opacus": {"absent": "no"}}
    held = {"threads": 2, "models": {"mlp": {"about": "an MLP", "rows": rows}}}
    text = snippets.speed(held)
    assert "| model | discreet | opacus |" in text
    assert "| an MLP | 1.24 | – |" in text
    assert "    python -m research.benchmarks --threads 2 --out" in text  # the whole table's, not the last model's


def test_a_readme_without_marks_is_refused() -> None:
    with pytest.raises(Refused, match="add the marks"):
        snippets.put("text", "truth", "new")


def test_the_readme_shows_the_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers in the README are those of the files in results/."""
    copy = tmp_path / "README.md"
    copy.write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    before = copy.read_text(encoding="utf-8")
    assert rewritten(copy, ROOT / "results", monkeypatch) == before, "run: python -m research.readme README.md results"
