"""The long comparison on Fashion-MNIST: `python -m research.long_comparison` (`--help` lists the options).

Rerun the command to resume: finished runs and trials are kept in OUT. Each part searches first, then trains every
method once at epsilon 3, 1 and 8, then with the other seeds at 3. So an interrupted part has the most important runs:
`--finished` trains nothing and writes the page of the runs that there are, which says how many are missing. The full
form keeps page, values and figures in results/long-comparison/PART and fills its part of docs/comparison.md.

Two parts, each a `discreet compare` of its own, at epsilon 1, 3 and 8:

features   every certified method with a linear head on scattering features, 240 steps of batch 8192
cnn-small  six methods with a small network for 10 epochs of batch 2048

Every method gets trials on MNIST, which stands in for the private records (four in the first part, two in the second),
and five seeds at epsilon 3 (one at the others). `--tuned-in` takes the settings of an earlier search in place of
trials. `--methods` gives the first part fewer methods; rerun without it to add the others. `--quick` takes minutes: two
methods, few steps, two seeds.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from discreet.cli import main as discreet
from research.readme import rewrite

SIX: Final = "dp-sgd,dp-adam,adaptive-quantile,psac,auto-s,per-layer"
SHARED: Final = "--data fashion-mnist --delta 1e-5 --epsilon 1,3,8 --main 3 --other-repeats 1"
SEARCH: Final = "--tune-on mnist --trials"
TRIALS: Final = {"features": 4, "cnn-small": 2}
PARTS: Final = {
    "features": "--preset fast --eval-every 80",
    "cnn-small": f"--model cnn-small --batch 2048 --epochs 10 --eval-every 300 --methods {SIX}",
}
QUICK: Final = {
    "features": "--preset fast --methods dp-sgd,psac --steps 12",
    "cnn-small": "--model cnn-small --batch 512 --steps 6 --methods dp-sgd,psac",
}
SEEDS, QUICK_SEEDS = 5, 2
KEPT: Final = Path("results/long-comparison")
PAGE: Final = Path("docs/comparison.md")


def commands(
    out: Path, *, quick: bool, seeds: int, more: str = "", tuned_in: Path | None = None
) -> dict[str, list[str]]:
    """The arguments of `discreet` for each part.

    >>> commands(Path("runs/x"), quick=True, seeds=2)["features"][-1]
    'runs/x/features'
    """
    rest = f"--repeats {seeds} --truth results/truth-table.json {more}"
    words = {}
    for name, own in (QUICK if quick else PARTS).items():
        search = f"{SEARCH} {TRIALS[name]}" if tuned_in is None else f"--tuned-in {tuned_in}"
        words[name] = shlex.split(f"compare {SHARED} {own} {search} {rest} --out {out / name}")
    return words


def keep(part: Path, place: Path) -> None:
    """Copy what a comparison wrote: report.html, report.json and figures, without its runs."""
    place.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", "report.json"):
        shutil.copy2(part / name, place / name)
    shutil.copytree(part / "figures", place / "figures", dirs_exist_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m research.long_comparison")
    parser.add_argument("--quick", action="store_true", help="minutes: two methods, few steps, two seeds")
    parser.add_argument("--finished", action="store_true", help="train nothing: the pages of the finished runs")
    parser.add_argument("--methods", help="methods of the first part")
    parser.add_argument("--seeds", type=int, help=f"seeds at epsilon 3 (default: {SEEDS})")
    parser.add_argument("--only", choices=tuple(PARTS), help="one part alone")
    parser.add_argument("--tuned-in", type=Path, help="the report.json of an earlier search, in place of trials")
    parser.add_argument("--workers", type=int, help="runs that are trained at once")
    parser.add_argument("--out", type=Path, help="where runs are kept")
    given = parser.parse_args()
    out = given.out or Path("runs/long-comparison-quick" if given.quick else "runs/long-comparison")
    more = "--finished-only " * given.finished + (f"--workers {given.workers}" if given.workers else "")
    seeds = given.seeds or (QUICK_SEEDS if given.quick else SEEDS)
    for name in PARTS if given.only is None else (given.only,):
        for repeats in (seeds,) if given.finished else (1, seeds):
            fewer = f" --methods {given.methods}" if given.methods and name == "features" else ""
            words = commands(out, quick=given.quick, seeds=repeats, more=more + fewer, tuned_in=given.tuned_in)[name]
            print("discreet " + shlex.join(words), flush=True)
            sys.argv = ["discreet", *words]  # the page names this command
            if code := discreet(words):
                return code
            if not given.quick:
                keep(out / name, KEPT / name)
                rewrite(PAGE, KEPT.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
