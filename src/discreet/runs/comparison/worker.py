"""One process that trains for a comparison: `python -m discreet.runs.comparison.worker THREADS COMMAND...`.

Takes one order a line on standard input, {"config": ..., "resume": ...}, answers with lines {"news": ...} and, at
the end of the run, {"end": reason, empty if it finished}. Standard input that closes is the signal to stop: the
run saves itself, as after Ctrl-C, and the process ends. So nothing trains on without a parent.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
from typing import Any

from discreet.core import check
from discreet.core.errors import RunStopped

_LONGEST_REASON = 300


def reason(error: Exception) -> str:
    """Why a run failed, in one line; validators' messages stand as they are."""
    if isinstance(error, RunStopped) and isinstance(error.__cause__, Exception):
        return f"{reason(error.__cause__)} ({error.outcome})"
    first = (str(error).splitlines() or [""])[0][:_LONGEST_REASON]
    return first if isinstance(error, check.Refused) else f"{type(error).__name__}: {first}"


def main() -> None:
    """Train until standard input ends."""
    import torch

    from discreet import runs

    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    torch.set_num_threads(int(sys.argv[1]))
    del sys.argv[:2]  # what is left is the command that the runs are part of

    def answer(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")

    def follow(news: runs.RunProgress) -> None:
        # No order comes before the end of this run, so input that can be read is input that has ended.
        if select.select([0], [], [], 0)[0]:
            raise KeyboardInterrupt
        answer(news=dataclasses.asdict(news))

    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        try:
            config = runs.RunConfig.from_json(order["config"])
            runs.train(config, on_progress=follow, resume=order["resume"])
        except KeyboardInterrupt:
            return
        except Exception as error:
            answer(end=reason(error))
        else:
            answer(end="")


if __name__ == "__main__":
    main()
