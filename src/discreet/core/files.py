"""Write whole files atomically, and check before the work that its result can be written."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from discreet.core import check


def replace_file(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a whole file; `fill` writes its bytes.

    Guarantee: after a crash at any moment, `path` has its old content or all of the new one. The new bytes are on the
    disk before they get the name, and so is the name when this returns. If `fill` raises, `path` stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")  # another process may be writing the same file
    try:
        with open(temporary, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a text file, as `replace_file` does; what UTF-8 cannot encode becomes a question mark."""
    replace_file(path, lambda file: file.write(text.encode("utf-8", "replace")))


def write_json(path: Path, value: Any, *, indent: int = 2) -> None:
    write_text(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


def sync_directory(path: Path) -> None:
    """Make the names of new files as durable as their bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_directory(directory: Path) -> None:
    """Refuse a directory that cannot be made or written to; nothing is left behind."""
    made = [place for place in (directory, *directory.parents) if not place.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"0")
    except OSError as error:
        remedy = "name another place for --out, or make this one writable"
        check.refuse("a directory that can be written", f"{directory} ({error.strerror or error})", remedy)
    finally:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()


def check_file(path: Path) -> None:
    """Refuse a file that cannot be written or replaced; nothing is left behind."""
    fits = not path.exists() or (path.is_file() and os.access(path, os.W_OK))
    remedy = "name another file"
    check.require(fits, "a file that can be written", f"{path}, which is a directory, a device or read-only", remedy)
    check_directory(path.parent)
