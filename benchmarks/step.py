"""The step-time table, as `discreet bench` prints it.

    python -m benchmarks.step --models cnn-d2p2,resnet20 --threads 2

The models, the rows and the clock are in `research.benchmarks`; results/step-time.json holds the last whole table.
"""

from __future__ import annotations

import sys

from discreet.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
