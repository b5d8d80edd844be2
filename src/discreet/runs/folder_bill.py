"""One bill for a folder of runs: what showing all of them, the best, or one that was fixed in advance costs."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from discreet.accounting.accountants import Certificate, certify
from discreet.accounting.charges import Charge
from discreet.accounting.events import BestOfRuns
from discreet.accounting.ledger import merge, read
from discreet.core import check

_WHOLE = ("tune.json", "scaling.json")  # directories of searches, whose ledger covers everything below


@final
@dataclass(frozen=True, kw_only=True)
class FolderBill:
    """The certificates of a folder of runs on the same records.

    everything  showing all runs, or the best of them: their number is known, so the choice costs all of them
    one         showing one run that was fixed before any was seen: the most expensive one
    by_tune     what `discreet tune` would have cost with as many runs expected; None for fewer than two runs
    """

    ledgers: tuple[Path, ...]
    everything: Certificate
    one: Certificate
    by_tune: Certificate | None

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": len(self.ledgers),
            "all": self.everything.to_json(),
            "best": self.everything.to_json(),
            "fixed": self.one.to_json(),
            "tune": None if self.by_tune is None else self.by_tune.to_json(),
        }


def folder_bill(folder: Path, *, delta: float) -> FolderBill:
    """Read every ledger below the folder; a search is one run, and a run includes its evaluations."""
    ledgers = tuple(path for path in sorted(folder.rglob("ledger.jsonl")) if not _is_part(path, folder))
    check.require(bool(ledgers), "at least one run", f"none in {folder}", "name a folder that holds run directories")
    records = [read(path) for path in ledgers]
    relation, charges = records[0].relation, [record.charge() for record in records]
    shown = [(path, *sorted(path.parent.glob("evaluation-*.jsonl"))) for path in ledgers]
    together = merge(itertools.chain.from_iterable(shown))  # refuses different relations and copies
    total = certify(together, delta=delta, relation=relation)
    single = max((certify(merge(one), delta=delta, relation=relation) for one in shown), key=lambda one: one.epsilon)
    searched = any(isinstance(event, BestOfRuns) for charge in charges for event, _ in charge.certified)
    by_tune = None
    if len(ledgers) > 1 and not searched:
        event = BestOfRuns(tuple(dict.fromkeys(charge.certified for charge in charges)), float(len(ledgers)))
        by_tune = certify(Charge.of(event), delta=delta, relation=relation)
    return FolderBill(ledgers=ledgers, everything=total, one=single, by_tune=by_tune)


def _is_part(ledger: Path, folder: Path) -> bool:
    """Whether a search further up has charged for this run."""
    above = [place for place in ledger.parent.parents if place == folder or folder in place.parents]
    return any((place / name).exists() for place in above for name in _WHOLE)
