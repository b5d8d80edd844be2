"""Names of a package that are imported at their first use, so that the package starts without torch."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; `homes` maps each public name to the module that defines it.

    A name that is its own home is a module of the package.

    >>> find, names = lazy("discreet", {"Refused": "discreet.core.check"})
    >>> find("Refused").__name__, names()
    ('Refused', ['Refused'])
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    return find, lambda: sorted(homes)
