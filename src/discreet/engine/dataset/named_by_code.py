"""What code reaches by names: globals, attributes of modules, and what it imports when it runs."""

import builtins
import dis
import functools
import importlib
import importlib.util
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any, Final

_Steps = list[tuple[str, Any]]
_READS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT")
_GLOBAL: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT")
_ATTRIBUTE: Final = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
_BY_TEXT: Final = (globals, eval, exec, __import__, importlib.import_module, sys.modules)


def named_by(code: CodeType, names: Mapping[str, Any], outer: Mapping[str, Any]) -> Iterator[Any]:
    """What the user's code names, also in functions inside it.

    names  its globals
    outer  modules among the variables that it closes over

    Of a module those are the attributes that the code reads, so that others stay public. A module that the code uses in
    another way, such as `getattr(module, name)`, comes itself. Where names may be text, all globals come, and modules
    that a text in the code mentions. `vars` and `locals` show nothing else than what the code names anyway.
    """
    if is_installed(names.get("__name__")):
        return
    codes = list(_with_inner(code))
    parts = [_steps(one) for one in codes]
    bound = defaultdict[str, list[Any]](list, {name: [value] for name, value in outer.items()})
    for steps in parts:
        for place, (step, _) in enumerate(steps):
            if step == "IMPORT_NAME":
                _bind_imported(steps, place, names, bound)
    for steps in parts:
        for place, (step, name) in enumerate(steps):
            if not step.startswith(_READS):
                continue
            values = list(bound.get(name, ()))
            if step.startswith(_GLOBAL):
                values.append(names.get(name, getattr(builtins, name, None)))
            for value in values:
                found = _followed(value, steps, place)
                if any(found is one for one in _BY_TEXT):
                    yield from _by_text(codes, names)
                else:
                    yield found


def contents_of(module: ModuleType) -> Iterator[Any]:
    """What a module of the user's holds; of other modules, only those inside it."""
    if is_installed(module.__name__):
        return
    for one in list(vars(module).values()):
        if not isinstance(one, ModuleType) or one.__name__.startswith(f"{module.__name__}."):
            yield one


@functools.cache
def is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package, whose globals hold no records."""
    top = (module or "").partition(".")[0]
    found = sys.modules.get(top)
    places = [getattr(found, "__file__", None) or "", *map(str, getattr(found, "__path__", ()))]
    is_packaged = any("site-packages" in place or "dist-packages" in place for place in places)
    return top in sys.stdlib_module_names or top == "discreet" or is_packaged


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _with_inner(inner)


def _steps(code: CodeType) -> _Steps:
    """The instructions and their arguments; those that later Pythons do two at a time come one by one."""
    steps: _Steps = []
    for step in dis.get_instructions(code):
        if isinstance(step.argval, tuple) and step.opname.startswith(("LOAD_FAST", "STORE_FAST")):
            steps += zip(re.findall("LOAD_FAST|STORE_FAST", step.opname), step.argval, strict=True)
        elif step.opname != "EXTENDED_ARG":
            steps.append((step.opname, step.argval))
    return steps


def _followed(value: Any, steps: _Steps, place: int) -> Any:
    """The value, or what the code reads of it at once if it is a module: `package.module.value`."""
    place += 1
    while isinstance(value, ModuleType) and steps[place][0] in _ATTRIBUTE:
        value = _attribute(value, steps[place][1])
        place += 1
    return value


def _attribute(module: ModuleType, name: str) -> Any:
    """Read without running code of the module."""
    held = vars(module)
    found = held[name] if name in held else sys.modules.get(f"{module.__name__}.{name}", held.get("__getattr__"))
    is_open = isinstance(found, ModuleType) or any(found is one for one in _BY_TEXT)
    return found if is_open or not is_installed(module.__name__) else None


def _bind_imported(steps: _Steps, place: int, names: Mapping[str, Any], bound: dict[str, list[Any]]) -> None:
    """Note which variables an import sets to what. A module that was not imported yet holds no tensors."""
    (_, level), (_, parts), (_, name) = steps[place - 2 : place + 1]
    if level:
        package = str(names.get("__package__") or "")
        name = importlib.util.resolve_name("." * level + name, package) if package else ""
    value: Any = sys.modules.get(name if parts else name.partition(".")[0])
    for ahead in range(place + 1, len(steps)):
        step, name = steps[ahead]
        if step == "IMPORT_FROM" and isinstance(value, ModuleType):
            found = _attribute(value, name)
            if parts:
                bound[steps[ahead + 1][1]].append(found)
            else:
                value = found  # import package.module as value
        elif step.startswith("STORE_"):
            if not parts:
                bound[name].append(value)
                return
        elif (step == "POP_TOP" and parts) or step not in ("POP_TOP", "SWAP", "IMPORT_FROM"):
            return


def _by_text(codes: list[CodeType], names: Mapping[str, Any]) -> Iterator[Any]:
    """What code reaches that looks up names at run time."""
    yield from (one for one in list(names.values()) if not isinstance(one, ModuleType))
    texts = [text for code in codes for text in code.co_consts if isinstance(text, str)]
    for word in {word for text in texts for word in re.findall(r"\w+(?:\.\w+)*", text)}:
        yield sys.modules.get(word)
        yield names.get(word.partition(".")[0])
