"""Write the tables of docs/speed.md from results/step-time.json and results/memory.json.

    python -m research.benchmarks.page

Only the text between the markers is replaced.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ORDER = ("plain", "floor", "discreet", "opacus", "opacus-ghost", "fastdp", "torch.func", "jax-privacy")


def steps(answer: dict[str, Any]) -> str:
    """Milliseconds, with the ratio to plain SGD and its quartiles."""
    lines = [f"| model | {' | '.join(ORDER)} |", "|---|" + "---|" * len(ORDER)]
    for own in answer["models"].values():
        cells = [_time(own["rows"].get(name, {})) for name in ORDER]
        lines.append(f"| {own['about']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _time(row: dict[str, Any]) -> str:
    if "ms" not in row:
        return str(row.get("absent", "-")).split(":")[0]
    low, high = row["over_plain_quartiles"]
    return f"{row['ms']:.1f} ms, {row['over_plain']:.2f}x ({low:.2f}-{high:.2f})"


def verdicts(answer: dict[str, Any]) -> str:
    """Each model against its target, its fastest peer, and the memory of plain SGD."""
    lines = [
        "| model | x floor | bar | met | fastest peer | peer / discreet | memory / plain |",
        "|---|---|---|---|---|---|---|",
    ]
    for own in answer["models"].values():
        found, row = own.get("verdict", {}), own["rows"].get("discreet", {})
        met = {True: "yes", False: "no"}.get(found.get("met"), "-")
        names = ("fastest_peer", "peer_over_discreet", "memory_over_plain")
        rest = [str(found.get(name, "-")) for name in names]
        cells = [own["about"], str(row.get("over_floor", "-")), str(found.get("bar", "-")), met, *rest]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def methods(answer: dict[str, Any]) -> str:
    """The cost of each method over DP-SGD."""
    found = answer.get("methods", {})
    if not found:
        return "Not measured yet: `python -m research.benchmarks --no-time --methods --out results/step-time.json`."
    lines = [f"| method | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    for name in next(iter(found.values()), {}):
        cells = [_method(rows.get(name, {})) for rows in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def memory(answer: dict[str, Any]) -> str:
    """Peak memory of a step above that of the model, in MB."""
    shown = ("plain", "discreet", "opacus", "opacus-ghost")
    lines = [f"| model | {' | '.join(shown)} | discreet / plain |", "|---|" + "---|" * (len(shown) + 1)]
    for own in answer["models"].values():
        peaks = [own["rows"].get(name, {}).get("peak_mb") for name in shown]
        ratio = "-" if None in peaks[:2] else f"{peaks[1] / peaks[0]:.2f}"
        cells = ["-" if peak is None else f"{peak:.0f}" for peak in peaks]
        lines.append(f"| {own['about']} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def _method(row: dict[str, Any]) -> str:
    if "ms" not in row:
        return str(row.get("absent", "-"))
    low, high = row["over_dp_sgd_quartiles"]
    return f"{row['over_dp_sgd']:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    page = ROOT / "docs" / "speed.md"
    text = page.read_text()
    tables = (("step-time", steps), ("step-time", verdicts), ("step-time", methods), ("memory", memory))
    for results, write in tables:
        answer = json.loads((ROOT / "results" / f"{results}.json").read_text())
        filled = f"<!-- {write.__name__} -->\n{write(answer)}\n<!-- end -->"
        text = re.sub(rf"<!-- {write.__name__} -->.*?<!-- end -->", lambda _, new=filled: new, text, flags=re.DOTALL)
    page.write_text(text)


if __name__ == "__main__":
    main()
