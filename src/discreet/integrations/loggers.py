"""Log a private run: step, certified epsilon, and evaluations on public data. Nothing else.

log = PublicLog(private, TensorBoard("runs/a"))
for x, y in private:
    if private.step(losses(x, y)):
        log.step(test_accuracy=evaluate(public_records))
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, final

import discreet
from discreet.integrations.refusal import require

EPSILON = "certified epsilon"


class Logger(Protocol):
    """Where values go. Any object with this method is a logger."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Store the values of a step."""


@final
class TensorBoard:
    """Writes event files for TensorBoard (`pip install tensorboard`)."""

    def __init__(self, folder: str | Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]
        self._writer.flush()  # type: ignore[no-untyped-call]


@final
class PublicLog:
    """Gives loggers the public values of a run. That an evaluation used public records only is your word."""

    def __init__(self, private: discreet.Private, *loggers: Logger) -> None:
        remedy = "pass discreet.integrations.loggers.TensorBoard(folder), or any object with log(values, step)"
        require(bool(loggers), "at least one logger", "none", remedy)
        self._private, self._loggers = private, loggers

    def step(self, **evaluations: float) -> None:
        """Log the epsilon spent so far, and numbers from public data, such as test_accuracy=0.8."""
        numbers = {name: float(value) for name, value in evaluations.items()}
        values = {EPSILON: self._private.spent().certified.epsilon, **numbers}
        for logger in self._loggers:
            logger.log(values, self._private.progress.step)
