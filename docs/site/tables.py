"""Cells of tables with long words that may break, so that tables fit on narrow screens."""

from __future__ import annotations

import re

LONG = 9  # letters that fit into a column on a telephone
_CELL = re.compile(r"(<t[dh][^>]*>)(.*?)(</t[dh]>)", re.DOTALL)
_TEXT_OR_TAG = re.compile(r"(<[^>]*>)")
_JOINTS = re.compile(r"(?<=[\w)\]])([-_/=(]|\.(?=[A-Za-z]))(?=[\w\"'])")  # numbers stay whole


def breakable(html: str) -> str:
    """The page with places to break (`<wbr>`) at the joints of long words in cells.

    >>> breakable("<td>set_experts_implementation</td><p>left_as_it_is_here</p>")
    '<td>set_<wbr>experts_<wbr>implementation</td><p>left_as_it_is_here</p>'
    >>> breakable('<td><a href="a-very-long-address.html">1,234,567.5</a></td>')
    '<td><a href="a-very-long-address.html">1,234,567.5</a></td>'
    """
    return _CELL.sub(lambda cell: f"{cell[1]}{_words(cell[2])}{cell[3]}", html)


def _words(cell: str) -> str:
    parts = _TEXT_OR_TAG.split(cell)
    return "".join(part if part.startswith("<") else re.sub(r"\S+", _broken, part) for part in parts)


def _broken(word: re.Match[str]) -> str:
    return _JOINTS.sub(r"\1<wbr>", word[0]) if len(word[0]) > LONG else word[0]
