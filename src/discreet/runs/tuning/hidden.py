"""What a search must hide: K, the drawn settings, the split of the records, scores and files of the candidates.

It lies in a directory that only its owner can read, so that a search can be resumed, and is deleted when the chosen run
has been released. In memory it is a `PrivateState`.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from discreet.accounting.best_of_runs import RunLaw
from discreet.core import check
from discreet.core.files import write_json, write_text
from discreet.core.workers import failure_of
from discreet.runs.folder import read_json
from discreet.runs.tuning.space import Setting, Space
from discreet.stages.values import PrivateState

STATE: Final = "state.json"
SCORE: Final = "score.json"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class HiddenDraw:
    """The secret randomness of a search: one entry for each of the K candidates.

    ties   breaks ties between equal scores
    split  the key that assigns each record to training or scoring
    """

    settings: tuple[Mapping[str, Setting], ...]
    ties: tuple[float, ...]
    split: bytes


@final
class HiddenFolder:
    """The secret files of a search."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._state, self.reason = directory, directory / STATE, directory / "failure.txt"

    def begin(self, law: RunLaw, space: Space, *, charged: bool) -> PrivateState:
        """Draw K and the candidates, or read what was drawn: K is drawn once.

        The draw is on the disk before the search is charged. So a search that was charged and has no draw has lost it,
        and cannot go on: another K would be another release.
        """
        if not self._state.exists():
            remedy = "its charge stays spent; begin a new search in another directory"
            check.require(not charged, f"the hidden state of this search in {self.directory}", "none", remedy)
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chmod(self.directory, 0o700)  # if it was there
            runs = law.draw(_uniform())
            drawn = [space.draw([_uniform() for _ in space.axes]) for _ in range(runs)]
            body = {"settings": drawn, "ties": [_uniform() for _ in drawn], "split": os.urandom(32).hex()}
            write_json(self._state, body)
        held = read_json(self._state)
        split = bytes.fromhex(held["split"])
        return PrivateState(HiddenDraw(settings=tuple(held["settings"]), ties=tuple(held["ties"]), split=split))

    def run(self, index: int) -> Path:
        return self.directory / f"run-{index}"

    def keep_score(self, index: int, score: Mapping[str, Any]) -> None:
        write_json(self.run(index) / SCORE, dict(score))

    def score(self, index: int) -> dict[str, Any] | None:
        """The score of a candidate; None while it is not trained."""
        file = self.run(index) / SCORE
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def keep_reason(self, failure: Exception) -> None:
        write_text(self.reason, f"{failure_of(failure)}\n")

    def forget(self) -> None:
        """Delete everything that was hidden."""
        shutil.rmtree(self.directory, ignore_errors=True)


def _uniform() -> float:
    """53 bits of the operating system as a number in [0, 1)."""
    return (int.from_bytes(os.urandom(8), "big") >> 11) / 2**53
