"""One process of a run under torchrun; arguments: kind, folder, steps.

It leaves its number first, before the imports that take a while: from then on it may be killed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def pid_file(place: Path, start: int, rank: int) -> Path:
    """Where a process leaves its number."""
    return place / f"pid-{start}-{rank}"


def main() -> None:
    start, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    kind, place, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    pid_file(place, start, rank).write_text(str(os.getpid()), encoding="utf-8")
    import torch

    from research.kills.train import train

    torch.set_num_threads(1)
    train(kind, place, steps, start)
    os._exit(0)  # gloo's teardown may abort


if __name__ == "__main__":
    main()
