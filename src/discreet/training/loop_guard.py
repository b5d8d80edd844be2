"""Checks the order of calls in a training loop."""

import contextlib
from collections.abc import Callable, Iterator
from typing import final

from discreet.core import check


@final
class LoopGuard:
    """Enforces the order of calls: the loop yields a batch, the user calls `step`, the optimizer steps, and so on.

    Guarantee: `step` is called exactly once for every batch, and one loop is active at a time. No call
    follows an incomplete step, unless the losses were refused before anything was added.
    """

    def __init__(self) -> None:
        self._loop: object = None
        self._batch_pending = self._release_pending = self._broken = False
        self.is_closed = False
        self.is_cut_off = False  # whether a release, or the update after it, has begun and not ended
        self.sample_ended = False  # whether the last yielded micro-batch completes its logical batch

    def new_loop(self, *, between_steps: bool) -> object:
        """Start a loop over the remaining steps. Earlier loops may not continue."""
        remedy = "build a new Private, or resume from a checkpoint"
        check.require(not self.is_closed, "a Private that is open", "one after close()", remedy)
        expected, remedy = "a new loop after a completed logical batch", "finish the loop, or build a new Private"
        check.require(between_steps, expected, "a loop that was left in the middle of a logical batch", remedy)
        self._loop = object()
        return self._loop

    def give(self, *, is_last: bool) -> None:
        """A batch is yielded to the user; `is_last` marks the last micro-batch of a logical batch."""
        self._batch_pending, self.sample_ended, self._release_pending = True, is_last, is_last

    def go_on(self, loop: object) -> None:
        """Check that the loop may yield the next batch."""
        remedy = "use the newest iterator only: two loops would spend the same steps twice"
        check.require(loop is self._loop, "one loop over the steps at a time", "an older loop that continues", remedy)
        expected, got = "one call of step for each batch of the iterator", "a batch without a call of step"
        check.require(not self._batch_pending, expected, got, "call private.step(losses) for every batch")
        got, remedy = "an interrupted step", "resume from a checkpoint: two batches must not share one charge"
        check.require(not self._release_pending, "the release of a batch before the next batch is drawn", got, remedy)

    def has_ended(self, everywhere: Callable[[bool], bool]) -> bool:
        """Whether the logical batch is complete in all processes, and may be released."""
        if everywhere(self.sample_ended):
            return True
        self._release_pending = False  # the others need more passes of this process first
        return False

    def postpone(self) -> None:
        """The logical batch is not complete: its last micro-batch comes again in pieces."""
        self.sample_ended = self._release_pending = False

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """The user calls `step`. If the losses are refused, nothing was added, and `step` may be called again."""
        expected, got = "one call of step for each batch of the iterator", "a call without a new batch"
        check.require(self._batch_pending, expected, got, "call private.step once inside `for ... in private`")
        with self._all_or_nothing(repeatable=True):
            yield
        self._batch_pending = False

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """The completed logical batch is released, or the test of its update is decided."""
        with self._all_or_nothing():
            self.is_cut_off = True
            yield
            self.is_cut_off = False
        self._release_pending = False

    def check_ended(self, is_complete: bool) -> None:
        """Refuse to call a run complete whose loop was ended by an error."""
        expected, got = "a run whose last step completed", "a loop that an error has ended"
        check.require(is_complete, expected, got, "build a new Private, or resume from a checkpoint")

    @contextlib.contextmanager
    def _all_or_nothing(self, *, repeatable: bool = False) -> Iterator[None]:
        """Refuse all further calls if the block raises, because an incomplete step must not be continued or repeated.

        With `repeatable`, a `Refused` error does not count.
        """
        expected, got = "a run whose last step completed", "a run in which a step raised an error"
        check.require(not self._broken, expected, got, "resume from a checkpoint; the ledger records what was charged")
        self._broken = True
        try:
            yield
            self._broken = False
        except check.Refused:
            self._broken = not repeatable
            raise
