"""The optimizer step that the caller takes on a released gradient, after `Private.release`."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, final

from torch import Tensor
from torch.optim import Optimizer

from discreet.core import check
from discreet.engine.model.state import Gradients, ModelBetweenBatches
from discreet.stages.domain import Unbounded
from discreet.stages.plan import Plan
from discreet.stages.selection import Frozen
from discreet.stages.update import give, held_by
from discreet.stages.values import Released


def check_handover(plan: Plan) -> None:
    """Refuse a plan whose update is more than an optimizer step on the released gradient."""
    needs = {
        "tests its updates": plan.has_tests,
        "projects the parameters after each update": not isinstance(plan.domain, Unbounded),
        "freezes coordinates": not plan.selection.takes_all and plan.selection.frozen is not Frozen.COASTING,
        "is certified for its final parameters only": not plan.analysis.visible,
    }
    came = [reason for reason, holds in needs.items() if holds]
    expected = "a plan whose update is one optimizer step on the released gradient"
    remedy = "call private.step(losses), which does the whole update, or use another method such as methods.dp_sgd()"
    check.require(not came, expected, f"{plan.method}, which {' and '.join(came)}", remedy)


@final
class Handover:
    """Watches every step of the optimizer outside `private.step`.

    Guarantee: the optimizer steps once for each release, on the parameters and the gradients that the release left. A
    closure runs first, so gradients that it writes are compared too.

    between  the watch over the model between batches
    keep     called after the caller's step: counts the update and updates the average
    """

    def __init__(self, between: ModelBetweenBatches, keep: Callable[[], None]) -> None:
        self._between, self._keep = between, keep
        self._released: Gradients | None = None  # they wait for the optimizer
        self._loop: Generator[Any, None, None] | None = None
        self._is_checked = self._is_own_step = False
        self.is_on = False

    @property
    def is_due(self) -> bool:
        """Whether a released gradient waits for the caller's optimizer."""
        return self._released is not None

    def check_done(self) -> None:
        """Refuse a release, or a loop, before the optimizer has stepped on the last release."""
        expected, got = "one optimizer step after each release", "a release without a step of the optimizer"
        check.require(not self.is_due, expected, got, "call optimizer.step() once after private.release(...)")

    @contextmanager
    def turned_on(self, batches: Callable[[], Generator[Any, None, None]]) -> Iterator[Iterator[Any]]:
        """Leave the updates of the block to the caller, and give the one loop of all such blocks.

        An error ends the loop, so that no batch stays open.
        """
        self.is_on = True
        self._loop = batches() if self._loop is None else self._loop
        try:
            yield self._loop
        except BaseException:
            self._end_loop()
            raise
        finally:
            self.is_on = False

    def _end_loop(self) -> None:
        if self._loop is not None:
            self._loop.close()

    @contextmanager
    def own_step(self) -> Iterator[None]:
        """The library itself steps the optimizer."""
        self._is_own_step = True
        try:
            yield
        finally:
            self._is_own_step = False

    def give(self, parameters: Sequence[Tensor], released: Released) -> None:
        """Write the released gradient to `.grad`, which the engine found empty."""
        give(parameters, released)
        self._released = Gradients(parameters)

    @contextmanager
    def attached_to(self, optimizer: Optimizer) -> Iterator[Self]:
        """Watch the steps of the optimizer."""
        hooks = optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)
        try:
            yield self
        finally:
            self._end_loop()
            for hook in hooks:
                hook.remove()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """A hook that refuses steps of the optimizer on anything but a release."""
        if self._is_own_step:
            return None
        self._between.check()
        self._check_is_last(optimizer)
        itself, *rest = args
        closure = rest[0] if rest else kwargs.get("closure")
        if closure is None:
            self._check(optimizer)
            return None

        def checked() -> Any:
            result = closure()
            self._check(optimizer)
            return result

        return ((itself, checked, *rest[1:]), kwargs) if rest else (args, {**kwargs, "closure": checked})

    def _after(self, *_: Any) -> None:
        """A hook that ends the handover: the gradients are cleared, as by `private.step`."""
        if self._is_own_step:
            return
        expected, got = "an optimizer that calls its closure", "one that does not"
        check.require(self._is_checked, expected, got, "call optimizer.step() without a closure")
        assert self._released is not None
        self._released.clear()
        self._released, self._is_checked = None, False
        self._between.check_frozen()
        self._keep()
        self._between.remember()

    def _check_is_last(self, optimizer: Optimizer) -> None:
        """Refuse a hook of the optimizer that runs after this one, because what it writes is not compared."""
        *_, last = optimizer._optimizer_step_pre_hooks.values()
        expected, got = "hooks of the optimizer that were there before Private", "one that was registered since"
        remedy = "register it before Private is built, or remove it: it may write to the released gradient"
        check.require(last == self._before, expected, got, remedy)

    def _check(self, optimizer: Optimizer) -> None:
        expected = "the optimizer to step through private.step, or once after each private.release"
        remedy = "remove the call: private.step already updates the parameters and clears the gradients"
        if self._released is None:
            check.refuse(expected, "optimizer.step() called directly", remedy)
        expected, got = "gradients as private.release left them", "gradients that were written to since"
        remedy = (
            "remove zero_grad(), backward() and gradient clipping between release and optimizer.step(): the released "
            "gradient is clipped already, and values of records in it are not paid for"
        )
        check.require(self._released.are_untouched(), expected, got, remedy)
        got, remedy = "a gradient on another parameter of the optimizer", "call optimizer.zero_grad() before release"
        check.require(self._released.are_all_of(held_by(optimizer)), expected, got, remedy)
        self._is_checked = True
