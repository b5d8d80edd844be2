"""Whether a place can be written: asked before the work whose result goes there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from discreet.core import check


def check_directory(directory: Path) -> None:
    """Refuse a directory that cannot be made or written to; nothing is left behind."""
    made = [place for place in (directory, *directory.parents) if not place.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"0")
    except OSError as error:
        check.refuse(
            "a directory that can be written",
            f"{directory} ({error.strerror or error})",
            "name another place for --out, or make this one writable",
        )
    finally:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()


def check_file(path: Path) -> None:
    """Refuse a file that cannot be written or replaced; nothing is left behind."""
    check.require(
        not path.exists() or (path.is_file() and os.access(path, os.W_OK)),
        "a file that can be written",
        f"{path}, which is a directory, a device or read-only",
        "name another file",
    )
    check_directory(path.parent)
