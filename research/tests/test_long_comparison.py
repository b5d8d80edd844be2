"""The long comparison: both parts at the same budgets, and what is kept of a finished part."""

from __future__ import annotations

from pathlib import Path

from research.long_comparison import SIX, TRIALS, commands, keep


def test_both_parts_have_the_same_budgets_and_seeds() -> None:
    parts = commands(Path("runs/x"), quick=False, seeds=5)
    for name, words in parts.items():
        assert words[words.index("--epsilon") + 1] == "1,3,8"
        assert (words[words.index("--main") + 1], words[words.index("--repeats") + 1]) == ("3", "5")
        assert (words[words.index("--tune-on") + 1], words[words.index("--trials") + 1]) == ("mnist", str(TRIALS[name]))
    assert "--methods" not in parts["features"]  # every certified method
    assert len(SIX.split(",")) == 6


def test_a_part_can_be_shown_before_it_is_finished() -> None:
    for words in commands(Path("runs/x"), quick=False, seeds=5, more="--finished-only").values():
        assert "--finished-only" in words
        assert [word for word in words if word != "--finished-only"] in commands(
            Path("runs/x"), quick=False, seeds=5
        ).values()


def test_a_finished_part_is_kept_without_its_runs(tmp_path: Path) -> None:
    part, place = tmp_path / "part", tmp_path / "kept" / "part"
    for name in ("report.html", "report.json", "figures/frontier.svg", "dp-sgd/os-1/result.json"):
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        (part / name).write_text(name)
    for _ in range(2):  # a second time replaces the first
        keep(part, place)
    kept = sorted(str(file.relative_to(place)) for file in place.rglob("*") if file.is_file())
    assert kept == ["figures/frontier.svg", "report.html", "report.json"]
