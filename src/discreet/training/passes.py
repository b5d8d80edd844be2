"""The steps of a run that batches of the user's own loader belong to."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Final, final

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from discreet.accounting.events import Free
from discreet.accounting.ledger import Ledger
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.core.secret_draws import SecretDraws
from discreet.stages.participation import FixedOrder, OnePass, Reshuffled
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon, OwnLoader
from discreet.training.agreement import keyed_digest
from discreet.training.binding import records_in
from discreet.training.noise_keys import NoiseKeys
from discreet.training.step import RunState

_ONE_PASS: Final = "give one pass over the loader, from its beginning, to each call of private.over"
_END: Final = object()  # a batch may be None
_OR_REPLACE_ONE: Final = "or protect with relation=discreet.Neighbouring.REPLACE_ONE"


@final
class Passes:
    """Lets a batch through only at the step that the certificate has for it. One call of `over` is one pass.

    Guarantee, by sampler:
    OwnLoader   under add/remove: batch i of a pass is released at step i of an epoch, which has no other (`aligned`)
    FixedOrder  batch i of a pass is released at step i of an epoch or not at all
    Reshuffled  the batches of a pass are released in one epoch
    OnePass     a process makes one pass

    What the loader draws from the global generators is secret, its order too, but for FixedOrder (`_walk`).
    """

    def __init__(
        self,
        plan: Plan,
        state: RunState,
        ledger: Ledger,
        keys: NoiseKeys | None,
        draws: SecretDraws,
        learn: Callable[[Any], None],
    ) -> None:
        self._plan, self._state, self._ledger, self._keys, self._draws = plan, state, ledger, keys, draws
        self._learn = learn  # the form of a batch, also of one that is not due: noise alone needs it to stand in
        self._begun = False
        self._read: Any = None  # the iterator of the last pass

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of a pass that are due; None for a step of noise alone."""
        source = without_bar(batches)
        check_loader(source)
        sampling, keys = self._plan.sampling, self._keys
        if isinstance(sampling, OwnLoader) and self._plan.relation is Neighbouring.ADD_REMOVE:
            check_order(source)
            check_keeps_the_rest(source)
            ahead = self._learned(self._walk(batches, source, is_new=True))
            yield from aligned(ahead, self._plan.horizon, self._state.step, has_end=_has_end(source))
            return
        if isinstance(sampling, OnePass):
            remedy = "give all batches to one call of private.over; for several passes use Reshuffled or FixedOrder"
            check.require(not self._begun, "one pass over a stream", "another call of over", remedy)
            self._begun = True
        if not isinstance(sampling, FixedOrder | Reshuffled):
            yield from self._walk(batches, source)
            return
        length = self._plan.horizon.steps_per_epoch
        if isinstance(sampling, Reshuffled):
            self._finish_epoch()
        start, records = self._state.step % length, 0
        # A fixed order may be one that the user's seed fixes, so it is left as it is.
        given = self._walk(batches, source) if isinstance(sampling, Reshuffled) else batches
        for place, batch in enumerate(given):
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

    def _walk(self, batches: Iterable[Any], source: Any, *, is_new: bool = False) -> Iterator[Any]:
        """The batches, while the global generators are keyed in secret: the order of `shuffle=True` is drawn from them.

        A generator of the loader's own is the user's word. With `is_new`, one that goes on where the last pass ended is
        refused.
        """
        with self._keyed(source):
            ahead = iter(batches)
        if is_new:
            self._check_begins(source, ahead)
        while True:
            with self._keyed(source):
                batch = next(ahead, _END)
            if batch is _END:
                return
            yield batch

    @contextmanager
    def _keyed(self, source: Any) -> Iterator[None]:
        """Key the generators. RandomSampler would take 32 bits of them as its seed, so it draws from torch's itself."""
        shuffled = [one for one in _samplers(source) if isinstance(one, RandomSampler) and one.generator is None]
        with self._draws.keyed():
            try:
                for sampler in shuffled:
                    sampler.generator = torch.default_generator
                yield
            finally:
                for sampler in shuffled:
                    sampler.generator = None

    def _check_begins(self, source: Any, ahead: Iterator[Any]) -> None:
        """Refuse an iterator that the last pass has read."""
        if isinstance(source, DataLoader | Sequence):  # they begin anew; one with persistent workers keeps its iterator
            self._read = None
            return
        read = source if isinstance(source, Iterator) else ahead
        got, remedy = "an iterator that the last call has read", f"pass the loader itself; {_OR_REPLACE_ONE}"
        check.require(read is not self._read, "a pass from its beginning", got, remedy)
        self._read = read

    def _learned(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._learn(batch)
            yield batch

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


def aligned(ahead: Iterator[Any], horizon: Horizon, step: int, *, has_end: bool) -> Iterator[Any]:
    """What the rest of the epoch of `step` releases in a pass of unknown order: its batches, None where it has none.

    Guarantee: step i of an epoch releases batch i of a pass or nothing, and all batches of a pass have the plan's size
    up to the last one, which has what is left. So one record less exchanges at most one record in each batch. A pass
    with more or fewer batches than another moves none of them to another step (docs/proofs/Unamplified.md).

    ahead    one pass, from its beginning
    has_end  whether it is known to end, so that batches beyond the epoch are left out unread
    """
    length, size, place = horizon.steps_per_epoch, horizon.size.batch, 0
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
        if records < size:
            break  # it was the last one
    yield from [None] * (length - max(place, step % length))


def without_bar(batches: Any) -> Any:
    """What a progress bar of tqdm shows; others as they are. The bar has a length that the user chose."""
    while any(kind.__module__.partition(".")[0] == "tqdm" for kind in type(batches).__mro__):
        inside = getattr(batches, "iterable", None)
        if inside is None:
            break
        batches = inside
    return batches


def _has_end(source: Any) -> bool:
    """Whether what gives batches knows how many there are: then it is one pass, and ends.

    The length of an iterator is no such number: it may be a part of what the iterator gives.
    """
    if isinstance(source, Iterator):
        return False
    try:
        return len(source) >= 0
    except TypeError:
        return False


def _is_over(ahead: Iterator[Any]) -> bool:
    return next(ahead, _END) is _END


def _samplers(source: Any) -> list[Any]:
    """What chooses the records of a DataLoader of PyTorch: its samplers, and those inside of PyTorch's BatchSampler."""
    found: list[Any] = [source.sampler, source.batch_sampler] if isinstance(source, DataLoader) else []
    for sampler in found:  # which grows
        inside = getattr(sampler, "sampler", None) if isinstance(sampler, BatchSampler) else None
        if inside is not None and all(inside is not one for one in found):
            found.append(inside)
    return found


def check_keeps_the_rest(source: Any) -> None:
    """Refuse a DataLoader of PyTorch that drops a last batch which is not full.

    One record less would then take a whole batch away.
    """
    drops = any(getattr(one, "drop_last", False) for one in (source, *_samplers(source)))
    remedy = f"use drop_last=False: the last batch of a pass may be smaller; {_OR_REPLACE_ONE}"
    is_kept = not (isinstance(source, DataLoader) and drops)
    check.require(is_kept, "a loader that gives all records of a pass", "drop_last=True", remedy)


def check_order(source: Any) -> None:
    """Refuse DistributedSampler, whose permutation comes from a public seed, and streams that workers divide.

    That and its padding follow the number of records, so one record less moves all others. If worker i of n takes every
    n-th record of a stream, one record less moves those behind it to other workers, whose batches come in turn.
    """
    is_public = any(isinstance(one, DistributedSampler) for one in _samplers(source))
    expected = "a loader whose order does not change with the number of records"
    remedy = f"draw from the dataset, which all processes share: sampling=discreet.Poisson(); {_OR_REPLACE_ONE}"
    check.require(not is_public, expected, "DistributedSampler", remedy)
    is_stream = isinstance(source, DataLoader) and isinstance(source.dataset, IterableDataset)
    got = "an IterableDataset that several workers divide"
    remedy = f"load with num_workers=1, or from a dataset with __getitem__; {_OR_REPLACE_ONE}"
    check.require(not is_stream or source.num_workers < 2, expected, got, remedy)


def check_loader(source: Any) -> None:
    """Refuse a DataLoader of PyTorch whose sampler gives a record more than once a pass.

    Seen are PyTorch's own samplers and plain sequences of indices; others are the user's word.
    """
    for sampler in _samplers(source):
        repeats = _has_twice(sampler, source.dataset, is_batches=sampler is source.batch_sampler)
        if isinstance(sampler, RandomSampler):
            repeats = sampler.replacement or sampler.num_samples > len(sampler.data_source)
        elif isinstance(sampler, WeightedRandomSampler):
            repeats = sampler.replacement
        remedy = "use shuffle=True, or draw from the dataset: sampling=discreet.Poisson()"
        got = f"{type(sampler).__name__}, which draws records again"
        check.require(not repeats, "a loader that gives each record at most once a pass", got, remedy)


def _has_twice(sampler: Any, data: Any, *, is_batches: bool) -> bool:
    """Whether a plain sequence of indices, or of batches of them, has a record of the data twice."""
    given = _plain(sampler)
    if not isinstance(given, list | tuple):
        return False
    parts = [_plain(one) for one in given]
    if is_batches or all(isinstance(one, list) for one in parts):  # without batch_size a sampler may give batches
        parts = [_plain(one) for one in chain.from_iterable(part for part in parts if isinstance(part, list | tuple))]
    indices = [one for one in parts if isinstance(one, Hashable)]
    indices = [one + len(data) if isinstance(one, int) and one < 0 else one for one in indices]
    return len(set(indices)) < len(indices)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor | np.ndarray) else value
