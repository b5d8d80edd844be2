"""Errors that end a running training; bad input is `check.Refused`."""

from pathlib import Path
from typing import final


class ProcessLost(RuntimeError):
    """Another process of the run ended or does not answer. The ledger contains what the run has spent."""


@final
class RunStopped(RuntimeError):
    """Training that ended early after spending privacy; `__cause__` is the reason.

    charges  the number of charges in the ledgers at `place`
    resume   the command that resumes the run
    """

    def __init__(self, charges: int, place: Path, resume: str) -> None:
        told = "1 charge" if charges == 1 else f"{charges} charges"
        self.outcome = f"Spent so far, and kept in {place}: {told}. Resume with: {resume}"
        super().__init__(self.outcome)

    def __str__(self) -> str:
        return f"{type(self.__cause__).__name__}: {self.__cause__}. {self.outcome}"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory was exhausted: Python's error, torch's for accelerators, or that of torch's CPU allocator."""
    told = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("can't allocate memory" in told or "not enough memory" in told))
    )
