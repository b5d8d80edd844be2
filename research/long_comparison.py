"""The long comparison on Fashion-MNIST: `python -m research.long_comparison [--quick] [OUT]`; rerun to resume.

Two parts, each a `discreet compare` of its own, at epsilon 1, 3 and 8:

features   every certified method with a linear head on scattering features, 240 steps of batch 8192
cnn-small  six methods with a small network for 30 epochs of batch 2048

Every method gets six trials on MNIST, which stands in for the private records, and five seeds at epsilon 3 (one at the
others). This takes about six processor-hours. `--quick` takes minutes: two methods, few steps, two seeds.
"""

from __future__ import annotations

import shlex
import sys
from typing import Final

from discreet.cli import main as discreet

NETWORK_METHODS: Final = "dp-sgd,dp-adam,adaptive-quantile,psac,auto-s,random-freeze"
SHARED: Final = "--data fashion-mnist --delta 1e-5 --epsilon 1,3,8 --main 3 --other-repeats 1 --tune-on mnist"
PARTS: Final = {
    "features": "--preset fast --repeats 5",
    "cnn-small": f"--model cnn-small --batch 2048 --epochs 30 --methods {NETWORK_METHODS} --repeats 5",
}
QUICK: Final = {
    "features": "--preset fast --methods dp-sgd,psac --steps 12 --repeats 2",
    "cnn-small": "--model cnn-small --batch 512 --steps 6 --methods dp-sgd,psac --repeats 2",
}


def commands(out: str, *, quick: bool) -> list[list[str]]:
    """The arguments of `discreet` for each part.

    >>> commands("runs/x", quick=True)[0][-1]
    'runs/x/features'
    """
    truth = "--truth results/truth-table.json"
    chosen = QUICK if quick else PARTS
    return [shlex.split(f"compare {SHARED} {own} {truth} --out {out}/{name}") for name, own in chosen.items()]


def main() -> int:
    names = [word for word in sys.argv[1:] if word != "--quick"]
    quick = "--quick" in sys.argv[1:]
    out = names[0] if names else ("runs/long-comparison-quick" if quick else "runs/long-comparison")
    for words in commands(out, quick=quick):
        print("discreet " + shlex.join(words), flush=True)
        sys.argv = ["discreet", *words]  # the page names this command
        if code := discreet(words):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
