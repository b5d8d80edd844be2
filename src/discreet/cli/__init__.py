"""The command line: no logic, it builds plans from recipes and calls the library."""

from discreet.cli.entry import main

__all__ = ["main"]
