"""The command and the package versions of this process, for the provenance of its results."""

import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path


def command_line() -> str:
    """The command as it was typed, without the folder of its program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def package_versions(*names: str) -> dict[str, str]:
    """The version of Python and of these installed packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
