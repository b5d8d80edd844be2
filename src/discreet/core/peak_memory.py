"""The memory of this process, as the operating system counts it."""

import contextlib
import ctypes
import gc
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_RESET: Final = Path("/proc/self/clear_refs")


def give_back() -> None:
    """Return freed memory to the system: the allocator of glibc keeps pieces of up to 32 MB. Elsewhere nothing happens.

    It takes milliseconds: it is for moments at which much was freed, and much is about to be taken.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


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
