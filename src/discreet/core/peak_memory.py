"""The memory of this process, as the operating system counts it."""

import contextlib
import ctypes
import gc
from pathlib import Path
from typing import Final, final

_STATUS: Final = Path("/proc/self/status")
_RESET: Final = Path("/proc/self/clear_refs")


def give_back() -> None:
    """Return freed memory to the system: the allocator of glibc keeps pieces of up to 32 MB. Elsewhere nothing happens.

    It takes milliseconds: it is for moments at which much was freed, and much is about to be taken.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@final
class FreedMemory:
    """Freed memory that the allocator keeps, as what a process has above the least that it had at such a moment.

    Where tensors of many sizes are taken and freed in turns, the allocator cuts its free pieces smaller and smaller and
    touches new pages for large ones: a process may come to keep several times what it uses. New pages take time too,
    so that freed ones go back to the system only when they are much.
    """

    def __init__(self, much: int) -> None:
        self._much = much
        self._least: int | None = None

    def give_back_if_much(self) -> None:
        """Call it where as little is in use as ever between two calls, and much is about to be taken."""
        resident = _status("VmRSS")
        if resident is not None and self._least is not None and resident > self._least + self._much:
            give_back()
            self._least = resident = _status("VmRSS")  # what is left is in use
        if resident is not None and (self._least is None or resident < self._least):
            self._least = resident


def resident_bytes() -> int | None:
    """Bytes in memory now, after freed ones were given back; None where the system does not say (not Linux)."""
    gc.collect()
    give_back()
    return _status("VmRSS")


def restart_peak() -> None:
    """The peak is counted from here on."""
    with contextlib.suppress(OSError):
        _RESET.write_text("5")


def peak_bytes() -> int | None:
    """The most bytes in memory since `restart_peak`."""
    return _status("VmHWM")


def _status(field: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":")), None)
