"""A Ctrl-C is held back until the step is whole, and a second one is not."""

import signal
import threading

import pytest

from discreet.core.interrupts import HeldInterrupt


@pytest.fixture(autouse=True)
def default_handler():
    """Tests may run where Ctrl-C is ignored; what they find is put back."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _presses(times: int, held: HeldInterrupt, error: Exception | None = None) -> int:
    """How many presses of Ctrl-C a block survives before it ends, one way or another."""
    survived = 0
    try:
        with held:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
                survived += 1
            if error is not None:
                raise error
    except KeyboardInterrupt:
        return survived
    return -1


def test_the_first_is_held_until_check() -> None:
    with HeldInterrupt() as interrupt:
        interrupt.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
        interrupt.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_end_of_the_block_raises_it() -> None:
    assert _presses(1, HeldInterrupt()) == 1


def test_the_second_interrupts_at_once() -> None:
    assert _presses(2, HeldInterrupt()) == 1


def test_an_error_in_the_block_comes_first() -> None:
    with pytest.raises(ValueError, match="own"):
        _presses(1, HeldInterrupt(), ValueError("own"))


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_handlers_of_the_program_stay(handler) -> None:
    signal.signal(signal.SIGINT, handler)
    with HeldInterrupt():
        assert signal.getsignal(signal.SIGINT) is handler
    assert signal.getsignal(signal.SIGINT) is handler


def test_unwanted_and_other_threads_hold_nothing() -> None:
    assert _presses(1, HeldInterrupt(False)) == 0

    def elsewhere() -> None:
        with HeldInterrupt():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
