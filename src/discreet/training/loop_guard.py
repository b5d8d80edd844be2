"""Whose turn it is in a training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, final

from discreet.core import check


@final
class LoopGuard:
    """The loop gives a batch, the user steps on it, the optimizer moves; then the loop goes on.

    Guarantee: every batch that is given is stepped on once, by one loop at a time; the optimizer moves inside a step
    only; half of a step is followed by nothing, unless it was refused before anything was added.
    """

    def __init__(self) -> None:
        self._loop: object = None
        self._given = self._is_last = self._owed = self._updating = self._broken = False

    def new_loop(self, *, between_steps: bool) -> object:
        """A loop over the steps that are left; it ends the right of every earlier one to go on."""
        check.require(
            between_steps,
            "every logical batch to be finished",
            "a new loop while one was abandoned half-way",
            "finish the loop, or build a new Private: dropping batches changes what the noise is for",
        )
        self._loop = object()
        return self._loop

    def give(self, *, is_last: bool) -> None:
        """A batch goes to the user; it may be the last of its sample."""
        self._given, self._is_last, self._owed = True, is_last, is_last

    def go_on(self, loop: object) -> None:
        """The loop may give the next batch."""
        check.require(
            loop is self._loop,
            "one loop over the steps at a time",
            "an older loop that goes on",
            "use the newest iterator: two of them would spend the same steps twice",
        )
        check.require(
            not self._given,
            "one call of step for each batch of the iterator",
            "a batch that was skipped",
            "call private.step(losses) for every batch; skipping some would change what is released",
        )
        check.require(
            not self._owed,
            "a sample that was released before the next is drawn",
            "one that an interrupt cut short",
            "resume from a checkpoint: two samples must not share one charge",
        )

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """The user steps on the batch; losses are refused before anything is added, and may be given again."""
        check.require(
            self._given,
            "one call of step for each batch of the iterator",
            "a call without a new batch",
            "call private.step once inside `for ... in private`",
        )
        with self.whole(repeatable=True):
            yield
        self._given = False

    @property
    def sample_ended(self) -> bool:
        """Whether the batch that was given last ends its sample."""
        return self._is_last

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """The sample that ended is released, or its test decided."""
        with self.whole():
            yield
        self._owed = False

    @contextlib.contextmanager
    def whole(self, *, repeatable: bool = False) -> Iterator[None]:
        """A step is whole or it is the last: half of one must not be followed by the rest, or by another."""
        check.require(
            not self._broken,
            "a run whose last step went through",
            "one that an error cut short",
            "resume from a checkpoint: its ledger knows what was charged",
        )
        self._broken = True
        try:
            yield
            self._broken = False
        except check.Refused:
            self._broken = not repeatable
            raise

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """The optimizer may move."""
        self._updating = True
        try:
            yield
        finally:
            self._updating = False

    def check_updating(self, *_: Any) -> None:
        """A hook on the optimizer's step."""
        check.require(
            self._updating,
            "the optimizer to step through private.step",
            "optimizer.step() called directly",
            "remove the call: private.step releases, updates and clears the gradients",
        )
