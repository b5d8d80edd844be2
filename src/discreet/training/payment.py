"""Writing the charge of a step to the ledger, with the public facts that belong to it."""

from collections.abc import Callable, Mapping, Sequence
from typing import final

from discreet.accounting.events import Event, Free
from discreet.accounting.ledger import Ledger
from discreet.core.streams import Streams
from discreet.stages.plan import Plan
from discreet.training.checkpoint import note_of


@final
class Payment:
    """Pays for a step before its release.

    Guarantee: when a call returns, the charge is in the ledger. The first charge under the keys of a start records
    their fingerprints, those of all processes, so that a resume with one of them is refused. Lines that declare values
    public are recorded once.

    declared  which lines declare values public, so far
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        streams: Streams,
        keys: Mapping[str, str],
        declared: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._plan, self._ledger, self._streams, self._declared_at = plan, ledger, streams, declared
        self._keys: Mapping[str, str] | None = keys  # until they are noted
        self._declared: set[str] = set()

    def __call__(self, event: Event, step: int) -> None:
        if isinstance(event, Free) and not self._plan.pays_at_once:
            return  # the epoch is already charged
        note = note_of(self._streams, self._keys)
        declared = [line for line in self._declared_at() if line not in self._declared]
        if declared:
            note["public"] = declared
        self._ledger.append(event, step=step, note=note)
        self._keys = None
        self._declared.update(declared)
