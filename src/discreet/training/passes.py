"""The steps of a run that batches of the user's own loader belong to."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, final

from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from discreet.accounting.events import Free
from discreet.accounting.ledger import Ledger
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.stages.participation import FixedOrder, OnePass, Reshuffled
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon, OwnLoader
from discreet.training.agreement import keyed_digest
from discreet.training.binding import records_in
from discreet.training.noise_keys import NoiseKeys
from discreet.training.step import RunState

_ONE_PASS: Final = "give one pass over the loader, from its beginning, to each call of private.over"
_OR_REPLACE_ONE: Final = "or protect with relation=discreet.Neighbouring.REPLACE_ONE"


@final
class Passes:
    """Lets a batch through only at the step that the certificate has for it. One call of `over` is one pass.

    Guarantee, by sampler:
    OwnLoader   under add/remove: batch i of a pass is released at step i of an epoch, which has no other (`aligned`)
    FixedOrder  batch i of a pass is released at step i of an epoch or not at all
    Reshuffled  the batches of a pass are released in one epoch
    OnePass     a process makes one pass
    """

    def __init__(self, plan: Plan, state: RunState, ledger: Ledger, keys: NoiseKeys | None) -> None:
        self._plan, self._state, self._ledger, self._keys = plan, state, ledger, keys
        self._begun = False
        self._read: Any = None  # the iterator of the last pass

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of a pass that are due; None for a step of noise alone."""
        check_loader(batches)
        sampling, keys = self._plan.sampling, self._keys
        if isinstance(sampling, OwnLoader) and self._plan.relation is Neighbouring.ADD_REMOVE:
            self._check_begins(batches)
            yield from aligned(batches, self._plan.horizon, self._state.step)
            return
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
            expected = f"at most {length} batches a pass, which are one epoch"
            check.require(place < length, expected, "more batches", _ONE_PASS)
            records += records_in(batch)
            most = self._plan.horizon.size.records
            remedy = "build the plan with the number of records of a pass: it is public"
            check.require(records <= most, f"at most records={most} in a pass", "more of them", remedy)
            if isinstance(sampling, FixedOrder) and sampling.checked and keys is not None:
                keys.check_batch(place, keyed_digest(batch, keys.salt))
            if place >= start:  # the earlier ones have been used, or were left out by a crash
                yield batch
        self._finish_epoch()

    def _check_begins(self, batches: Iterable[Any]) -> None:
        """Refuse an iterator that goes on where the last pass ended."""
        got, remedy = "an iterator that the last call has read", f"pass the loader itself; {_OR_REPLACE_ONE}"
        check.require(batches is not self._read, "a pass from its beginning", got, remedy)
        self._read = batches if isinstance(batches, Iterator) and not _has_end(batches) else None

    def _finish_epoch(self) -> None:
        """Leave out the rest of an epoch that has begun: after a short pass, or one that a crash interrupted.

        The ledger says so, so that no resume returns to these steps.
        """
        horizon, step = self._plan.horizon, self._state.step
        end = min(step + -step % horizon.steps_per_epoch, horizon.steps)
        if end > step:
            self._ledger.append(Free(), step=end - 1, note={"left out from": step})
            self._state.step = end


def check_is_own(plan: Plan) -> None:
    """Refuse a plan that draws its batches itself."""
    is_own, got = plan.sampling.is_own_loader, type(plan.sampling).__name__
    remedy = "iterate `private` itself, which draws the batches of the plan"
    check.require(is_own, "a plan for your own loader, such as sampling=discreet.OwnLoader()", got, remedy)


def aligned(batches: Iterable[Any], horizon: Horizon, step: int) -> Iterator[Any]:
    """What the rest of the epoch of `step` releases in a pass of unknown order: its batches, None where it has none.

    Guarantee: step i of an epoch releases batch i of a pass or nothing, and all batches of a pass have the plan's size
    up to the last one, which has what is left. So one record less exchanges at most one record in each batch. A pass
    with more or fewer batches than another moves none of them to another step (docs/proofs/Unamplified.md).
    """
    check_keeps_the_rest(batches)
    length, size, place = horizon.steps_per_epoch, horizon.size.batch, 0
    ahead, has_end = iter(batches), _has_end(batches)
    for place, batch in enumerate(islice(ahead, length), 1):
        records = records_in(batch)
        remedy = f"build the plan with the batch size of the loader, or draw from the dataset; {_OR_REPLACE_ONE}"
        check.require(records <= size, f"batches of the plan's size, batch={size:g}", "a larger one", remedy)
        if records < size:
            expected = f"batches of the plan's size, batch={size:g}, up to the last batch of a pass"
            remedy = f"{_ONE_PASS}, in batches of the plan's size; {_OR_REPLACE_ONE}"
            check.require(_is_over(ahead), expected, "a smaller one before the last", remedy)
        elif place == length and not has_end:
            expected = f"an iterator that ends after a pass, which is {length} batches of the plan"
            check.require(_is_over(ahead), expected, "one that goes on", f"{_ONE_PASS}; {_OR_REPLACE_ONE}")
        if place > step % length:  # the earlier ones have been used, or were left out by a crash
            yield batch
    yield from [None] * (length - max(place, step % length))


def _has_end(batches: Any) -> bool:
    """Whether what gives batches knows how many there are: then it is one pass, and ends."""
    try:
        return len(batches) >= 0
    except TypeError:
        return False


def _is_over(ahead: Iterator[Any]) -> bool:
    return next(ahead, None) is None


def check_keeps_the_rest(batches: Iterable[Any]) -> None:
    """Refuse a DataLoader of PyTorch that drops a last batch which is not full.

    One record less would then take a whole batch away.
    """
    if isinstance(batches, DataLoader):
        drops = batches.drop_last or getattr(batches.batch_sampler, "drop_last", False)
        remedy = f"use drop_last=False: the last batch of a pass may be smaller; {_OR_REPLACE_ONE}"
        check.require(not drops, "a loader that gives all records of a pass", "drop_last=True", remedy)


def check_loader(batches: Iterable[Any]) -> None:
    """Refuse a DataLoader of PyTorch whose sampler gives a record more than once a pass."""
    sampler = batches.sampler if isinstance(batches, DataLoader) else None
    repeats = isinstance(sampler, WeightedRandomSampler) and sampler.replacement
    if isinstance(sampler, RandomSampler):
        repeats = sampler.replacement or sampler.num_samples > len(sampler.data_source)
    remedy = "use shuffle=True, or draw from the dataset: sampling=discreet.Poisson()"
    got = f"{type(sampler).__name__}, which draws records again"
    check.require(not repeats, "a loader that gives each record at most once a pass", got, remedy)
