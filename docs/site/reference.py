"""A public object as Markdown: its signature, its docstring and its public members.

Docstrings of this project list arguments as lines `name  what it is`, with two or more spaces between and further lines
indented; these become tables. `>>>` becomes a code block, and a paragraph that starts with "Guarantee:" a box.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from discreet.cli import recipes
from discreet.methods import METHODS, Method

_ARGUMENT = re.compile(r"^([A-Za-z_]\w*(?:\([^)]*\))?(?:(?:, | or )[A-Za-z_]\w*)*)  +(\S.*)$")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_QUALIFIED = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])|\b(?:collections\.abc|typing)\.")


def find(dotted: str) -> Any:
    """The object with this name, for example `discreet.Private` or `discreet.methods.dp_sgd`."""
    parts = dotted.split(".")
    found: Any = importlib.import_module(parts[0])
    for part in parts[1:]:
        found = getattr(found, part)
    return found


def described(dotted: str) -> str:
    """The Markdown that stands in the place of `::: dotted`; `dotted.*` stands for the members of a class."""
    if dotted.endswith(".*"):
        cls = find(dotted[:-2])
        return "\n\n".join(member.text(cls.__name__) for member in members(cls))
    found, name = find(dotted), dotted.rpartition(".")[2]
    if inspect.ismodule(found):
        return prose(inspect.getdoc(found) or "")
    lines = [_code(signature(name, found))] if callable(found) and not _is_exception(found) else []
    lines.append(prose(_own_doc(found)))
    return "\n\n".join(line for line in lines if line)


def _own_doc(found: Any) -> str:
    return inspect.getdoc(found) or "" if inspect.isclass(found) or inspect.isroutine(found) else ""


def _is_exception(found: Any) -> bool:
    return inspect.isclass(found) and issubclass(found, BaseException)


def signature(name: str, found: Callable[..., Any]) -> str:
    """One line if it is short, otherwise a line for each argument."""
    if inspect.isclass(found) and issubclass(found, enum.Enum):
        return "\n".join(f"{name}.{member.name}" for member in found)
    try:
        read = inspect.signature(found)
    except ValueError:
        return f"{name}(...)"
    kept = [p for p in read.parameters.values() if p.name not in ("self", "cls")]
    texts = [_short(str(parameter)) for parameter in _with_star(kept)]
    returned = "" if read.return_annotation in (inspect.Signature.empty, None, "None") else _returned(read)
    line = f"{name}({', '.join(texts)}){returned}"
    if len(line) <= 90:
        return line
    return "\n".join([f"{name}(", *(f"    {text}," for text in texts), f"){returned}"])


def _with_star(parameters: list[inspect.Parameter]) -> Iterator[Any]:
    seen = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not seen:
            yield "*"
        seen = seen or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        yield parameter


def _returned(read: inspect.Signature) -> str:
    return f" -> {_short(inspect.formatannotation(read.return_annotation))}"


def _short(text: str) -> str:
    text = re.sub(r"<(\w+)\.(\w+): [^>]+>", r"\1.\2", _ADDRESS.sub("", text))
    return _QUALIFIED.sub("", text.replace("'", ""))


@dataclass(frozen=True)
class Member:
    name: str
    found: Any
    is_value: bool

    def text(self, owner: str) -> str:
        heading = f"### `{self.name}` {{#{owner}.{self.name}}}"
        shown = "" if self.is_value else _code(signature(self.name, self.found))
        return "\n\n".join(part for part in (heading, shown, prose(inspect.getdoc(self.found) or "")) if part)


def members(cls: type) -> list[Member]:
    """What a class itself defines for its users, in the order of the source."""
    found = []
    for name, value in vars(cls).items():
        inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if not name.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, property)) and inner.__doc__:
            found.append(Member(name, inner, isinstance(inner, property)))
    return found


def argument_names(dotted: str) -> set[str]:
    """The arguments of a function or of a class's constructor."""
    found = find(dotted)
    if not callable(found) or _is_exception(found) or (inspect.isclass(found) and issubclass(found, enum.Enum)):
        return set()
    return {name for name in inspect.signature(found).parameters if name not in ("self", "cls")}


# -- docstrings -----------------------------------------------------------------------------------------------


def prose(doc: str) -> str:
    """A docstring as Markdown."""
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", doc) if block.strip())


def _block(block: str) -> str:
    lines = block.splitlines()
    if lines[0].startswith(">>>"):
        return _code(block, "pycon")
    if all(line.startswith("    ") for line in lines):
        return _code("\n".join(line[4:] for line in lines))
    if _ARGUMENT.match(lines[0]):
        return _table(list(_arguments(lines)))
    if block.startswith("Guarantee:"):
        body = "\n".join(f"    {line}" for line in lines).replace("Guarantee:", "", 1).strip()
        return f'!!! success "Guarantee"\n    {body}'
    return block


def _arguments(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, what = "", ""
    for line in lines:
        found = _ARGUMENT.match(line)
        if found:
            if name:
                yield name, what
            name, what = found[1], found[2]
        else:
            what = f"{what} {line.strip()}"
    yield name, what


def _table(rows: list[tuple[str, str]]) -> str:
    names = (re.sub(r"\b(\w+(?:\([^)]*\))?)(?=, | or |$)", r"`\1`", name) for name, _ in rows)
    body = [f"| {name} | {what.replace('|', chr(92) + '|')} |" for name, (_, what) in zip(names, rows, strict=True)]
    return "\n".join(["| argument | meaning |", "|---|---|", *body])


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


# -- methods --------------------------------------------------------------------------------------------------


def method_page(method: Method) -> str:
    """The reference page of one recipe."""
    name = method.recipe.__name__
    claim = "" if method.certified else "\n\n`discreet` never ranks it and prints its epsilon as infinite."
    return f"""# methods.{name}

{described(f"discreet.methods.{name}")}

{_flags(method)}

## Example

{_code(method_example(method))}

## Guarantee

{method.guarantee[:1].upper()}{method.guarantee[1:]}.{claim} The proofs are in [Proofs](../../proofs/README.md).
"""


def _flags(method: Method) -> str:
    """The arguments with their flags; arguments that text cannot say have none."""
    flags = {parameter.name: parameter for parameter in recipes.parameters(method)}
    rows = [
        f"| `{name}` | `{flags[name].flag}` | {flags[name].about.replace('|', ' or ')} |"
        if name in flags
        else f"| `{name}` | | |"
        for name in inspect.signature(method.recipe).parameters
    ]
    head = ["| argument | flag of `discreet train --method " + method.name + "` | value |", "|---|---|---|"]
    return "\n".join([*head, *rows])


def method_example(method: Method) -> str:
    """Code that binds a recipe to public numbers."""
    return f"""import discreet
from discreet import methods

horizon = discreet.Horizon.of(records=60_000, batch=1024, epochs=1)
plan = methods.{method.recipe.__name__}().bind(noise=1.0, horizon=horizon, delta=1e-6)
print(plan.certificate().epsilon)"""


def method_pages() -> dict[str, str]:
    """Every method's page by its path in the documentation."""
    return {f"reference/methods/{method.name}.md": method_page(method) for method in METHODS.values()}
