"""Where the research extra is not installed, modules that import its packages are not searched for doctests."""

from __future__ import annotations

from importlib.util import find_spec

from discreet.data.features.vision_operators import declare_vision_operators
from research.extra import LANGUAGE_MODEL, SENTENCES

declare_vision_operators()  # before a test imports transformers

collect_ignore: list[str] = []
if any(find_spec(name) is None for name in LANGUAGE_MODEL):
    collect_ignore += ["reproductions/dicesgd/table_3.py", "tasks/e2e.py", "tasks/smollm2.py", "tests/small_llama.py"]
    collect_ignore += ["e2e_peers.py"]
if any(find_spec(name) is None for name in SENTENCES[:1]):
    collect_ignore += ["reproductions/dicesgd/table_3_reviews.py", "tasks/sentences.py"]
if find_spec("flwr") is None:
    collect_ignore += [f"federated/{name}.py" for name in ("__main__", "grid", "tasks")]
