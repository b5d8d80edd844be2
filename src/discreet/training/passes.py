"""The places that batches of the user's own loader have in a run with correlated noise."""

from collections.abc import Iterable, Iterator
from typing import Any, final

from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from discreet.accounting.events import Free
from discreet.accounting.ledger import Ledger
from discreet.core import check
from discreet.stages.participation import FixedOrder, OnePass, Reshuffled
from discreet.stages.plan import Plan
from discreet.training.agreement import keyed_digest
from discreet.training.binding import records_in
from discreet.training.noise_keys import NoiseKeys
from discreet.training.step import RunState


@final
class Passes:
    """Lets a batch through only at the step that the certificate has for it. One call of `over` is one pass.

    Guarantee, by sampler:
    FixedOrder  batch i of a pass is released at step i of an epoch or not at all
    Reshuffled  the batches of a pass are released in one epoch
    OnePass     a process makes one pass
    """

    def __init__(self, plan: Plan, state: RunState, ledger: Ledger, keys: NoiseKeys | None) -> None:
        self._plan, self._state, self._ledger, self._keys = plan, state, ledger, keys
        self._begun = False

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of a pass that are due."""
        check_loader(batches)
        sampling, keys = self._plan.sampling, self._keys
        if isinstance(sampling, OnePass):
            remedy = "give all batches to one call of private.over; for several passes use Reshuffled or FixedOrder"
            check.require(not self._begun, "one pass over a stream", "another call of over", remedy)
            self._begun = True
        if not isinstance(sampling, FixedOrder | Reshuffled):
            yield from batches
            return
        length = self._plan.horizon.steps_per_epoch
        if isinstance(sampling, Reshuffled):
            self._finish_epoch()
        start, records = self._state.step % length, 0
        for place, batch in enumerate(batches):
            got, remedy = "more batches", "give one pass over the loader to each call of private.over"
            check.require(place < length, f"at most {length} batches a pass, which are one epoch", got, remedy)
            records += records_in(batch)
            most = self._plan.horizon.size.records
            remedy = "build the plan with the number of records of a pass: it is public"
            check.require(records <= most, f"at most records={most} in a pass", "more of them", remedy)
            if isinstance(sampling, FixedOrder) and sampling.checked and keys is not None:
                keys.check_batch(place, keyed_digest(batch, keys.salt))
            if place >= start:  # the earlier ones have been used, or were left out by a crash
                yield batch
        self._finish_epoch()

    def _finish_epoch(self) -> None:
        """Leave out the rest of an epoch that has begun: after a short pass, or one that a crash interrupted.

        The ledger says so, so that no resume returns to these steps.
        """
        horizon, step = self._plan.horizon, self._state.step
        end = min(step + -step % horizon.steps_per_epoch, horizon.steps)
        if end > step:
            self._ledger.append(Free(), step=end - 1, note={"left out from": step})
            self._state.step = end


def check_loader(batches: Iterable[Any]) -> None:
    """Refuse a DataLoader of PyTorch whose sampler gives a record more than once a pass."""
    sampler = batches.sampler if isinstance(batches, DataLoader) else None
    repeats = isinstance(sampler, WeightedRandomSampler) and sampler.replacement
    if isinstance(sampler, RandomSampler):
        repeats = sampler.replacement or sampler.num_samples > len(sampler.data_source)
    remedy = "use shuffle=True, or draw from the dataset: sampling=discreet.Poisson()"
    got = f"{type(sampler).__name__}, which draws records again"
    check.require(not repeats, "a loader that gives each record at most once a pass", got, remedy)
