"""Which code a proof was read against: hashes of functions, blind to formatting, comments and docstrings.

Run it to print the current line for a function, after the proof has been read again beside the new code:

    python tests/accounting/proofs.py src/discreet/accounting/pld.py::discretise
    python tests/accounting/proofs.py docs/proofs/Gaussian.md        every line of that proof
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROOFS = ROOT / "docs" / "proofs"
LINE = re.compile(r"^code-sha256: (?P<path>\S+)::(?P<name>\S+) (?P<digest>[0-9a-f]{64})$", re.MULTILINE)


def digest(path: str, name: str) -> str:
    """sha256 of the function or class `name` (dotted for methods) in the file, without docstrings."""
    scope: ast.AST = ast.parse((ROOT / path).read_text())
    for part in name.split("."):
        scope = next(node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == part)
    for node in ast.walk(scope):
        documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if documented and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(scope).encode()).hexdigest()


def cited(proof: Path) -> list[tuple[str, str, str]]:
    """(path, name, digest) of every line of code that the proof was read against."""
    return [(m["path"], m["name"], m["digest"]) for m in LINE.finditer(proof.read_text())]


def main(arguments: list[str]) -> None:
    """Print the current lines."""
    for argument in arguments:
        if argument.endswith(".md"):
            found = [(path, name) for path, name, _ in cited(Path(argument))]
        else:
            path, _, name = argument.partition("::")
            found = [(path, name)]
        for path, name in found:
            print(f"code-sha256: {path}::{name} {digest(path, name)}")


if __name__ == "__main__":
    main(sys.argv[1:])
