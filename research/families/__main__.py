"""`python -m research.families`: check every family of models, and write results/models.json and docs/models.md."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

from discreet.cli import entry
from discreet.cli.flags import flag
from discreet.core import check
from discreet.core.files import check_file

_RESULTS = Path(__file__).parents[2] / "results" / "models.json"


def families(
    only: Annotated[
        str | None, flag("Comma-separated families (default: those of random weights); others keep their rows.")
    ] = None,
    out: Annotated[Path, flag("The file to write or to update (default: results/models.json).")] = _RESULTS,
    docs: Annotated[bool, flag("Only write docs/models.md from the file.")] = False,
) -> int:
    """Compare per-record norms with autograd, and time set-up and a private step of each family beside a plain one."""
    check_file(out)
    from research.families import page

    answer: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"families": {}}
    if not docs:
        _measure(answer, only, out)
    if out == _RESULTS:
        page.write(answer)
    return 0


def _measure(answer: dict[str, Any], only: str | None, out: Path) -> None:
    """Add rows, and write the file after each of them."""
    warnings.simplefilter("ignore")  # of the libraries
    import torch

    from research.families.family import MEASURED
    from research.families.measure import ALL, FAMILIES, row_of_own_process

    torch.set_num_threads(1)
    names = [family.name for family in ALL]
    chosen = [family.name for family in FAMILIES] if only is None else [name.strip() for name in only.split(",")]
    unknown = [name for name in chosen if name not in names]
    check.require(not unknown, f"families of {', '.join(names)}", ", ".join(unknown), "use these names")
    kept = answer["families"]
    answer |= {"command": "python -m research.families", "torch": torch.__version__.partition("+")[0]}
    answer |= {"threads": torch.get_num_threads(), "records": MEASURED.records}
    for family in ALL:
        if family.name in chosen:
            kept[family.name] = row_of_own_process(family)
            told = [kept[family.name].get(name, "refused") for name in ("over_plain", "setup_seconds")]
            print(f"{family.name}: {told[0]}, set-up {told[1]}", file=sys.stderr)
            answer["families"] = {name: kept[name] for name in names if name in kept}
            out.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(entry.main(["families", *sys.argv[1:]], commands=(families,), program="python -m research.families"))
