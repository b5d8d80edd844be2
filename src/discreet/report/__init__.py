"""Rendering: values to a page, figures and the terminal."""

from discreet.report.page import Written, read, render, write

__all__ = ["Written", "read", "render", "write"]
