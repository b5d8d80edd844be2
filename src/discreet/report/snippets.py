"""The README's measured parts, from result files: `python -m discreet.report.snippets README.md RESULTS`.

Each part stands between `<!-- name -->` and `<!-- /name -->`; a part whose file is missing is left as it is.

comparison  RESULTS/fashion-mnist/report.json: the figure, a table of the budgets, the command
truth       RESULTS/truth-table.json: the claims that an attack has exceeded
speed       RESULTS/speed.json, of `python -m research.benchmarks --out`, else RESULTS/step-time.json: private
            steps over plain ones
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from discreet.core import check
from discreet.report import page, tables, wording
from discreet.runs.comparison.stored import truth_table
from discreet.runs.comparison.values import Comparison, Entry, Truth

COMPARISON = "fashion-mnist"
TRUTH = "truth-table.json"
_NOT_PRIVATE = ("plain", "floor")
SPEED = ("speed.json", "step-time.json")


def main() -> None:
    """Rewrite the README in place."""
    check.require(len(sys.argv) == 3, "README.md and the folder of results", sys.argv[1:], "name both")
    readme, results = Path(sys.argv[1]), Path(sys.argv[2])
    text = readme.read_text(encoding="utf-8")
    file = results / COMPARISON / page.DATA
    if file.is_file():
        text = put(text, "comparison", comparison(page.read(file), f"{results.name}/{COMPARISON}"))
    if (results / TRUTH).is_file():
        text = put(text, "truth", truth(truth_table(results / TRUTH)))
    timed = next((results / name for name in SPEED if (results / name).is_file()), None)
    if timed is not None:
        text = put(text, "speed", speed(json.loads(timed.read_text(encoding="utf-8"))))
    page.replace(readme, text)


def put(text: str, name: str, part: str) -> str:
    """`text` with what stands between the marks of this name exchanged.

    >>> put("a <!-- x -->old<!-- /x --> b", "x", "new")
    'a <!-- x -->\\n\\nnew\\n\\n<!-- /x --> b'
    """
    pattern = re.compile(f"(<!-- {name} -->).*?(<!-- /{name} -->)", re.DOTALL)
    check.require(
        len(pattern.findall(text)) == 1,
        f"one place <!-- {name} --> <!-- /{name} -->",
        "none",
        "add the marks",
    )
    return pattern.sub(lambda found: f"{found[1]}\n\n{part}\n\n{found[2]}", text)


def comparison(found: Comparison, place: str) -> str:
    """The figure, a row for each method, what could not be compared, and the command."""
    stages = found.stages
    held = [{entry.name: entry for entry in stage.entries} for stage in stages]
    heads = [f"epsilon {stage.epsilon:g} ({wording.counted(stage.repeats, 'run')})" for stage in stages]
    rows = [[entry.name, *(_accuracy(by.get(entry.name)) for by in held)] for entry in found.entries]
    rest = [f"{one.method}: {one.reason or one.guarantee}" for one in found.excluded]
    parts = [
        f"![Test accuracy against certified epsilon]({place}/figures/frontier.svg)",
        f"{found.data}, {found.model}, {found.steps} steps of batch {found.batch:g}, delta {found.delta:g}; test "
        "accuracy, mean over runs with the half width of its 95 % interval:",
        _table(["method", *heads], rows),
        *([f"Not comparable: {'; '.join(rest)}."] if rest else []),
        f"    {found.provenance.command}",
    ]
    return "\n\n".join(parts)


def truth(rows: tuple[Truth, ...]) -> str:
    """The claims that do not survive."""
    broken = [row for row in rows if row.claimed is not None and row.verdict == "claim broken"]
    cells = [
        [row.method, tables.setting(row), _up(row.claimed), _shown(row), _up(row.certified)] for row in broken
    ]
    heads = [
        "method",
        "setting",
        "claimed epsilon",
        "an attack shows at least",
        "certified for the same noise",
    ]
    return _table(heads, cells)


def speed(held: dict[str, Any]) -> str:
    """How many times as long as a plain step a private one takes, by model; beside the peers where they were timed."""
    timed = {name: own["rows"] for name, own in held["models"].items() if own.get("rows")}
    columns = list(dict.fromkeys(row for rows in timed.values() for row in rows if row not in _NOT_PRIVATE))
    rows = [
        [str(held["models"][name].get("about", name)), *(_ratio(rows.get(c, {})) for c in columns)]
        for name, rows in timed.items()
    ]
    return "\n\n".join(
        [
            "A private step takes this many times as long as a step of plain SGD on the same batch:",
            _table(["model", *columns], rows),
            # Rows may come from several calls; this one measures them all.
            f"    python -m research.benchmarks --threads {held['threads']} --out results/step-time.json",
        ]
    )


def _ratio(row: dict[str, Any]) -> str:
    return f"{row['over_plain']:.2f}" if "over_plain" in row else "–"


def _accuracy(entry: Entry | None) -> str:
    accuracy = None if entry is None else entry.accuracy
    if accuracy is None:
        return "–"
    half = wording.half(accuracy)
    return f"{accuracy.mean * 100:.1f}" + (f" {half}" if half else "") + " %"


def _up(value: float | None) -> str:
    return wording.epsilon(value)


def _shown(row: Truth) -> str:
    """Lower bounds, rounded down."""
    audited = 0.0 if row.audited is None else row.audited
    text = f"{math.floor(audited * 100) / 100:.2f}"
    if row.analytic is None or row.analytic <= audited:
        return text
    return f"{text} (analytic: {math.floor(row.analytic * 100) / 100:g})"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main()
