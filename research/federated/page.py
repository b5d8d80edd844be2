"""Write the measured part of the page on federated training from the results.

python -m research.federated.page results/federated.json results/federated-tuning.json docs/federated.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from discreet.core.files import write_text
from discreet.training.spending import format_epsilon

MARKS: Final = ("<!-- measured -->", "<!-- end -->")
NAMES: Final = {
    "discreet": "`PrivateStrategy`",
    "discreet, frozen": "… with random freeze 0.9",
    "flower": "Flower's own",
}
TASKS: Final = {"cnn": "a small CNN", "linear": "a linear head on public features"}
NOTES: Final = """Bytes are those of the arrays in one message.
Flower's own strategy is `DifferentialPrivacyServerSideFixedClipping` with the same clip and the same noise on the sum.
It draws a fixed number of clients with a known generator. The epsilon beside it is for noise of that size without
amplification, which is how Flower accounts for it. Strategies, messages and mods are those of Flower; the transport is
replaced by calls in one process (`research/federated/grid.py`)."""
TUNED: Final = """Clip and learning rate of the clients were chosen on MNIST, which is public, at epsilon 3: {tried}
(`python -m research.federated.tuning`)."""


def table(held: dict[str, Any], tuning: dict[str, Any]) -> list[str]:
    """The text and the table."""
    lines = ["## Measured", ""]
    lines += ["Fashion-MNIST, two labels for each client, one pass over its records in a round. One seed:"]
    lines += ["epsilon is that of the same run with secret keys.", ""]
    lines += ["| task | clients, in a round, rounds | strategy | noise multiplier | epsilon for every client | "]
    lines[-1] += "accuracy at rounds | bytes up, down |"
    lines += ["|---|---|---|---|---|---|---|"]
    for name, case in held["cases"].items():
        task = TASKS[name.partition(",")[0]]
        numbers = f"{case['clients']:,}, {case['batch']}, {case['rounds']}"
        for row, found in case["rows"].items():
            lines.append(f"| {task} | {numbers} | {NAMES[row]} | {found['noise']:.3f} | {_cells(found)} |")
    ratios = ", ".join(f"{case['up_ratio']:.3f}" for case in held["cases"].values() if "up_ratio" in case)
    lines += ["", *([f"With random freeze a client sends {ratios} of the bytes."] if ratios else []), NOTES]
    if all("rate" in case for case in held["cases"].values()):  # older cases had settings of their own
        tried = " and ".join(f"{len(of['trials'])} settings of {TASKS[name]}" for name, of in tuning["tasks"].items())
        lines.append(TUNED.format(tried=tried))
    return lines


def _cells(found: dict[str, Any]) -> str:
    certified = found.get("certified")
    epsilon = (
        format_epsilon(found["without_amplification"])
        if certified is None
        else f"{format_epsilon(certified)}, certified"
    )
    curve = ", ".join(f"{place}: {100 * value:.1f}%" for place, value in found["curve"].items() if place != "0")
    each = found["bytes_per_reply"]
    return f"{epsilon} | {curve} | {each['up']:,.0f}, {each['down']:,.0f}"


def written(held: dict[str, Any], tuning: dict[str, Any], page: str) -> str:
    """The page with the measured part."""
    before, rest = page.split(MARKS[0])
    return "\n".join([f"{before}{MARKS[0]}", *table(held, tuning), f"{MARKS[1]}{rest.split(MARKS[1])[1]}"])


if __name__ == "__main__":
    results, trials, target = map(Path, sys.argv[1:])
    found, tuned = (json.loads(file.read_text()) for file in (results, trials))
    write_text(target, written(found, tuned, target.read_text(encoding="utf-8")))
