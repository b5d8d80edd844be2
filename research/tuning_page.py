"""Fill the table of docs/tuning.md: `python -m research.tuning_page results/tuning.json docs/tuning.md`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discreet.core import check
from discreet.core.files import write_text


def table(body: Mapping[str, Any]) -> str:
    """The mean test accuracy of each arm with its standard error, and the command."""
    lines = ["| task | arm | epsilon of a run | test accuracy | one in twenty is below |", "|---|---|---|---|---|"]
    for row in body["rows"]:
        error = 100 * (row["standard_error"] or 0.0)
        cells = (row["problem"], row["arm"], f"{row['epsilon_of_a_run']:.2f}")
        lines.append(
            f"| {' | '.join(cells)} | {100 * row['mean']:.2f} ± {error:.2f} % | {100 * row['one_in_twenty']:.2f} % |"
        )
    total = f"epsilon {body['epsilon']:g} and delta {body['delta']:g} for everything that an arm does"
    runs = f"mean ± its standard error, from {body['runs']} trained candidates for each search"
    return "\n".join([f"Test accuracy at {total}; {runs}:", "", *lines, "", f"    {body['command']}"])


def main() -> None:
    check.require(len(sys.argv) == 3, "a result file and a page", sys.argv[1:], "name both")
    body, page = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    part = re.compile(r"(<!-- tuning -->\n).*?(<!-- /tuning -->)", re.DOTALL)
    text, count = part.subn(lambda found: f"{found[1]}\n{table(body)}\n\n{found[2]}", page.read_text(encoding="utf-8"))
    check.require(count == 1, f"one part <!-- tuning --> in {page}", f"{count}", "restore the markers")
    write_text(page, text)


if __name__ == "__main__":
    main()
