"""Write the table of docs/models.md from results/models.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "models.md"
_COLUMNS: Final = ("family", "from", "settings", "parameters, trained", "norm error", "private / plain", "set-up (s)")


def table(answer: Mapping[str, Any]) -> str:
    """A row for each family."""
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS)]
    rows += [_cells(name, row) for name, row in answer["families"].items()]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    about = f"Measured by `{answer['command']}` with PyTorch {answer['torch']}, {answer['threads']} thread"
    return f"{lines}\n\n{about}{'' if answer['threads'] == 1 else 's'}, {answer['records']} records."


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    trained = "all" if row["trained"] == row["parameters"] else _short(row["trained"])
    cost = f"{row['over_plain']:.2f}" if "over_plain" in row else "refused"
    setup = f"{row['setup_seconds']:.1f}" if "setup_seconds" in row else "-"
    source = f"{row['library']} {row['version'].partition('+')[0]}"
    size = f"{_short(row['parameters'])}, {trained}"
    return name, source, row["settings"], size, f"{row['norm_error']:.0e}", cost, setup


def _short(count: int) -> str:
    """
    >>> _short(1_234_567), _short(46_100), _short(90)
    ('1.2 M', '46.1 k', '90')
    """
    if count >= 1_000_000:
        return f"{count / 1e6:.1f} M"
    return f"{count / 1e3:.1f} k" if count >= 1000 else str(count)


def write(answer: Mapping[str, Any], page: Path = PAGE) -> None:
    """Replace the text between the markers."""
    filled = f"<!-- families -->\n{table(answer)}\n<!-- end -->"
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"<!-- families -->.*?<!-- end -->", lambda _: filled, text, flags=re.DOTALL), "utf-8")
