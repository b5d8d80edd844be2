"""What the pages and messages tell a user to type: names, imports, commands, files."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted((ROOT / "src").rglob("*.py"))

_DOTTED = re.compile(r"(?<![\w./-])discreet((?:\.[A-Za-z_]\w*)+)(?![/\w]|\.?(?:md|toml|json|html)\b)")
_IMPORT = re.compile(r"^\s*from (discreet[\w.]*) import ([\w, ]+)$", re.MULTILINE)
_COMMAND = re.compile(r"(?<![\w/.-])(?<!from )discreet ((?!import\b)[a-z]+\b[^`|\n]*)")
_PATH = re.compile(r"(?<![\w/.{-])((?:docs|tests|examples|research|src)/[\w./-]*\w)")
REFUSING = {
    "refuse", "require", "positive", "not_negative", "fraction", "inside_unit", "count",
}  # fmt: skip


def code_of(page: Path) -> str:
    """The code blocks and inline code of a page, one piece a line; a line that ends in a backslash goes on."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^    (.*)$", rest, re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", rest)
    return re.sub(r"\\\n\s*", " ", "\n".join([*fenced, *indented, *inline]))


def strings_of(source: Path) -> Iterator[str]:
    """Every string in a module: docstrings, messages, remedies; of f-strings their fixed parts."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def messages_of(source: Path) -> Iterator[str]:
    """The strings that a refusal shows, each argument as one text."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in REFUSING:
                for argument in node.args:
                    parts = [
                        one.value
                        for one in ast.walk(argument)
                        if isinstance(one, ast.Constant) and isinstance(one.value, str)
                    ]
                    yield "".join(parts)


def dotted_names(text: str) -> set[str]:
    """Every `discreet.x.y`, and every name that a line imports from the package."""
    found = {f"discreet{rest}" for rest in _DOTTED.findall(text)}
    for module, names in _IMPORT.findall(text):
        found |= {f"{module}.{name.split(' as ')[0].strip()}" for name in names.split(",")}
    return found


def exists(name: str) -> bool:
    """Whether a dotted name can be imported."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] != parts[0]:  # a library that is not installed here
                return len(parts) == end or is_defined(parts[:end], parts[end])
            continue
        for attribute in parts[end:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def is_defined(module: list[str], name: str) -> bool:
    """Whether the file of a module of ours defines this name."""
    tree = ast.parse((ROOT / "src" / Path(*module)).with_suffix(".py").read_text(encoding="utf-8"))
    targets = {target.id for node in tree.body if isinstance(node, ast.AnnAssign) for target in [node.target]}
    return name in targets | {getattr(node, "name", "") for node in tree.body}


def commands(text: str) -> list[str]:
    """Every `discreet command …`, without the program's name."""
    return _COMMAND.findall(text)


def paths(text: str) -> set[str]:
    """Every file of the repository that is named."""
    return set(_PATH.findall(text))
