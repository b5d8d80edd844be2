"""A `Private` that cannot be built leaves nothing behind: no hooks, no ledger, no changed weights or state."""

from __future__ import annotations

import copy
import fcntl
import linecache
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import loop
from discreet import methods
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.methods.dpsgd_dc.guard import ClippedFeatures
from discreet.stages import update
from discreet.training import checkpoint, private
from discreet.training.private import Private
from discreet.training.step import Parameters


class Injected(Exception):
    """The failure of a test."""


class FailAt:
    """Raises before the line number `at` that the given functions run."""

    def __init__(self, at: int, *functions: Callable[..., Any]) -> None:
        self.at = at
        self._seen: list[str] = []
        self._codes = {function.__code__ for function in functions}  # type: ignore[attr-defined]

    def __enter__(self) -> FailAt:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code in self._codes else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not (text.startswith("with") and text in self._seen):  # the end of a with block
            self._seen.append(text)
            if len(self._seen) == self.at:
                raise Injected(text)
        return self._line


class Setting:
    """Arguments of Private, and what they looked like before."""

    def __init__(self, directory: Path, plan: Any, net: nn.Module, **options: Any) -> None:
        self.net, self.plan, self.options = net, plan, options
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        self.ledger = directory / "ledger.jsonl"
        self.before, self.was = self.state(), self.charges()

    def charges(self) -> bytes | None:
        return self.ledger.read_bytes() if self.ledger.exists() else None

    def build(self, seed: int = 7) -> Private:
        options = {"ledger": self.ledger, "streams": Streams.seeded(seed), "micro_batch": 8, **self.options}
        return Private(self.net, self.optimizer, self.plan, loop.data(), **options)

    def state(self) -> Any:
        hooks = {
            f"{place}.{name}": len(value)
            for place, owner in [("optimizer", self.optimizer), *self.net.named_modules()]
            for name, value in vars(owner).items()
            if name.endswith("_hooks")
        }
        held = copy.deepcopy((self.net.state_dict(), self.optimizer.state_dict()))
        grads = [parameter.grad for parameter in self.net.parameters()]
        return hooks, grads, self.optimizer in update._PACKED, held

    def check_untouched(self) -> None:
        hooks, grads, packed, (model, optimizer) = self.state()
        assert (hooks, grads, packed) == self.before[:3]
        assert all(torch.equal(value, self.before[3][0][name]) for name, value in model.items())
        assert optimizer == self.before[3][1]
        assert self.charges() == self.was
        if self.was is not None:
            with open(self.ledger, "rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it


# Nothing is built on these lines: a failure there can only be an interrupt.
DONE = ("self._opened =", "return reopened")
STEPS = (Private.__init__, Private._make_loaders, Private._open_ledger, Parameters.begin, checkpoint.resumed)


def new_run(directory: Path) -> Setting:
    return Setting(directory, loop.plan(), loop.model(), average=0.9)


def guarded_run(directory: Path) -> Setting:
    """Its guard hooks the linear layer, and its domain keeps the initial parameters."""
    recipe = methods.dpsgd_dc(link="softmax", learning_rate=0.5, radius=1.0)  # type: ignore[arg-type]
    net = nn.Sequential(ClippedFeatures(1.0), nn.Linear(4, 2))
    return Setting(directory, loop.plan(recipe, batch=loop.RECORDS), net)


def resumed_run(directory: Path) -> Setting:
    first = Setting(directory, loop.plan(), loop.model())
    run = first.build()
    loop.train(run, most=3)
    run.save(directory / "state.pt")
    run.close()
    return Setting(directory, loop.plan(), loop.model(), resume=directory / "state.pt")


@pytest.mark.parametrize("make", [new_run, guarded_run, resumed_run])
def test_a_failure_at_any_line_leaves_nothing_behind(
    make: Callable[[Path], Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private.binding, "dry_run", lambda *_: None)  # slow under a trace, and tested elsewhere
    setting, failed = make(tmp_path), 0
    while True:
        with FailAt(failed + 1, *STEPS):
            try:
                setting.build(seed=100 + failed)  # a resumed run needs new keys
            except Injected as failure:
                if str(failure).startswith(DONE):
                    break
                failed += 1
            else:
                raise AssertionError(f"line {failed + 1} did not fail")
        setting.check_untouched()
    assert failed > 25


@pytest.mark.parametrize("kind", [nn.Module, torch.optim.Optimizer])
def test_a_state_that_is_refused_is_not_half_restored(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, real, calls = resumed_run(tmp_path), kind.load_state_dict, []

    def fail_once(self: Any, state: Any) -> None:
        real(self, state)
        calls.append(state)
        if len(calls) == 1:
            raise Injected

    monkeypatch.setattr(kind, "load_state_dict", fail_once)
    with pytest.raises(Injected):
        setting.build(seed=8)
    setting.check_untouched()


def test_a_ledger_that_cannot_be_written_is_not_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = new_run(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            setting.build()
    setting.check_untouched()
    setting.build().close()


def test_a_ledger_in_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    setting = new_run(tmp_path / "none")
    with pytest.raises(Refused, match="a directory that exists"):
        setting.build()


def test_no_loop_begins_after_close(tmp_path: Path) -> None:
    private = new_run(tmp_path).build()
    private.close()
    with pytest.raises(Refused, match=r"one after close\(\).*build a new Private"):
        next(iter(private))


# Optimizers that wrap another one -----------------------------------------------------------------------------


class Delegating:
    """Has every attribute of the optimizer inside."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


class Prepared(torch.optim.Optimizer):
    """As in Accelerate: an Optimizer by its class, whose parameter groups and state are those of the one inside."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state


@pytest.mark.parametrize("wrapper", [Delegating, Prepared, lambda inner: None, lambda inner: torch.optim.SGD])
def test_a_wrapped_optimizer_is_refused_with_the_remedy(wrapper: Any, tmp_path: Path) -> None:
    setting = new_run(tmp_path)
    inner = setting.optimizer
    setting.optimizer = wrapper(inner)
    with pytest.raises(Refused, match=r"a torch.optim.Optimizer, got .*pass optimizer\.optimizer"):
        setting.build()
    setting.optimizer = inner
    setting.check_untouched()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_run_is_not_copied(copied: Callable[[Any], Any]) -> None:
    """A copy took the steps of the original, with sums of its own under one charge: two clips for one record."""
    original = loop.private()
    with pytest.raises(Refused, match=r"one object that takes the steps of a run"):
        copied(original)
    original.close()


@pytest.mark.parametrize("streams", [Streams.from_os, lambda: Streams.seeded(3)], ids=["from the system", "seeded"])
def test_two_runs_share_no_streams(streams: Callable[[], Streams]) -> None:
    """They would project by the same matrices, while their certificates are composed as those of independent runs."""
    shared = streams()
    with pytest.raises(Refused, match="LBFGS"):  # a run that was not built has used nothing
        loop.private(streams=shared, optimizer=torch.optim.LBFGS)
    first = loop.private(streams=shared)
    first.close()
    with pytest.raises(Refused, match="streams that another run has used"):
        loop.private(streams=shared)
