"""Every family of models as it comes: norms are those of autograd, one record at a time."""

from __future__ import annotations

import pytest

pytest.importorskip("timm", reason="needs the test extra: pip install -c constraints.txt -e '.[test]'")

from research.families import text
from research.families.family import Family
from research.families.measure import FAMILIES, norm_error

# tests/engine/test_hugging_face.py has the text models, with both kinds of attention.
OTHERS = [family for family in FAMILIES if family not in text.FAMILIES]


@pytest.mark.parametrize("family", OTHERS, ids=lambda family: family.name)
def test_norms_are_those_of_autograd(family: Family) -> None:
    assert norm_error(family) < 1e-5
