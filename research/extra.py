"""The packages of the `research` extra, which only the language and text experiments need."""

from __future__ import annotations

import importlib.util
from typing import Final

from discreet.core import check

LANGUAGE_MODEL: Final = ("transformers", "peft", "gguf", "tokenizers", "sacrebleu")
SENTENCES: Final = ("transformers", "pandas", "pyarrow")
REMEDY: Final = "pip install -c constraints.txt -e '.[research]'"
NEEDED: Final = f"needs the research extra: {REMEDY}"
"""Why a test is skipped."""


def require_packages(names: tuple[str, ...]) -> None:
    """Refuse an experiment before it starts if a package that it imports is not installed."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    check.require(not absent, "the packages of the research extra", f"no {', '.join(absent)}", REMEDY)
