"""Ctrl-C that waits until the work of a step is whole."""

import signal
import threading
from types import FrameType
from typing import Self, final


@final
class HeldInterrupt:
    """Holds back the first Ctrl-C inside the block until `check`, or the end of the block. A second one interrupts.

    Outside the main thread, and where the program has a handler of its own, nothing is held back.

    is_wanted  False: hold nothing back
    """

    def __init__(self, is_wanted: bool = True) -> None:
        self._is_wanted, self._came, self._is_holding = is_wanted, False, False

    def __enter__(self) -> Self:
        is_wanted = self._is_wanted and threading.current_thread() is threading.main_thread()
        if is_wanted and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._is_holding = True
            signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._release()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the Ctrl-C that was held back, if there was one."""
        if self._came:
            self._came = False
            raise KeyboardInterrupt

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        self._release()  # the next one interrupts at once

    def _release(self) -> None:
        if self._is_holding:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_holding = False
