"""Writing the charge of a step to the ledger, with the public facts that belong to it."""

from typing import final

from discreet.accounting.events import Event, Free
from discreet.accounting.ledger import Ledger
from discreet.core.streams import Streams
from discreet.engine.record_watch import RecordWatch
from discreet.stages.plan import Plan
from discreet.training.checkpoint import note_of


@final
class Payment:
    """Pays for a step before its release.

    Guarantee: when a call returns, the charge is in the ledger. The first charge under a key records the key's
    fingerprint, so that a resume with the same key is refused. Lines that declare values public are recorded once.
    """

    def __init__(self, plan: Plan, ledger: Ledger, streams: Streams, watch: RecordWatch) -> None:
        self._plan, self._ledger, self._streams, self._watch = plan, ledger, streams, watch
        self._is_first = True
        self._declared: set[str] = set()

    def __call__(self, event: Event, step: int) -> None:
        if isinstance(event, Free) and not self._plan.pays_at_once:
            return  # the epoch is already charged
        note = note_of(self._streams, first=self._is_first)
        declared = [line for line in self._watch.declared_at if line not in self._declared]
        if declared:
            note["public"] = declared
        self._ledger.append(event, step=step, note=note)
        self._is_first = False
        self._declared.update(declared)
