"""Long words in the cells of the site may break, and nothing else changes."""

import doctest
import re

import tables


def test_the_examples() -> None:
    assert doctest.testmod(tables).failed == 0


def test_only_places_to_break_are_added() -> None:
    cells = "<th>a.b</th><td><code>discreet.fix(model, inputs)</code> 1/(10 n)</td>"
    page = f"<p>a_long_word_outside_of_cells</p><table>{cells}</table>"
    broken = tables.breakable(page)
    assert re.sub("<wbr>", "", broken) == page
    assert "discreet.<wbr>fix(<wbr>model" in broken
    assert "<p>a_long_word_outside_of_cells</p>" in broken
