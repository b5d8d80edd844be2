"""Write each example as a notebook: python -m research.notebooks"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, Final

EXAMPLES: Final = Path(__file__).resolve().parents[1] / "examples"
CALLS: Final = {
    "adult_sklearn": "main(parts())",
    "images_lightning": "main()",
    "minilm_reviews": 'run(3.0, "runs/minilm-reviews")',
    "smollm2_e2e": 'run(8.0, [0], "runs/smollm2-e2e")',
}
"""The last cell of each notebook, in place of the command line."""


def notebook(source: str, call: str) -> dict[str, Any]:
    """The docstring as text, the imports, the definitions, and the call."""
    tree = ast.parse(source)
    text, *rest = tree.body
    end = next(node.lineno for node in rest if isinstance(node, ast.If)) - 1
    first = next(node.lineno for node in rest if not isinstance(node, (ast.Import, ast.ImportFrom))) - 1
    lines = source.splitlines(keepends=True)
    assert text.end_lineno is not None
    imports, body = "".join(lines[text.end_lineno : first]).strip(), "".join(lines[first:end]).strip()
    find = 'import sys\n\nsys.path.insert(0, "../..")  # the root of the repository\n'
    code = [f"{find}\n{imports.removeprefix('from __future__ import annotations').strip()}", body, call]
    cells = [_cell("markdown", ast.get_docstring(tree) or ""), *(_cell("code", one) for one in code)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, text: str) -> dict[str, Any]:
    held: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
    return held if kind == "markdown" else {**held, "execution_count": None, "outputs": []}


def made(name: str) -> str:
    """The file of a notebook."""
    page = notebook((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"), CALLS[name])
    for number, cell in enumerate(page["cells"]):
        cell["id"] = f"{name.replace('_', '-')}-{number}"
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in CALLS:
        (EXAMPLES / "notebooks").mkdir(exist_ok=True)
        (EXAMPLES / "notebooks" / f"{name}.ipynb").write_text(made(name), encoding="utf-8")
