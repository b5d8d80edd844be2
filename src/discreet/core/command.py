"""The command and the package versions of this process, for the provenance of its results."""

import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path


def command_line() -> str:
    """The command as it was typed, without the folder of its program; a module as `python -m MODULE`."""
    program = Path(sys.argv[0])
    if program.name != "__main__.py":
        return shlex.join([program.name, *sys.argv[1:]])
    return shlex.join(["python", "-m", program.parent.name, *sys.argv[1:]])


def package_versions(*names: str) -> dict[str, str]:
    """The version of Python and of these installed packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
