"""Rendering: values to a page, figures and the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.core.lazy import lazy

if TYPE_CHECKING:
    from discreet.report.page import Written as Written
    from discreet.report.page import read as read
    from discreet.report.page import render as render
    from discreet.report.page import write as write

_HOME = dict.fromkeys(("Written", "read", "render", "write"), "discreet.report.page")

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME)
