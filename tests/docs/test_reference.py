"""Every public name has a page with its arguments, an example and its guarantee."""

from __future__ import annotations

import math
import re

import pytest

import discreet
import pictures
import reference
import written
from discreet.methods import METHODS

REFERENCE = written.ROOT / "docs" / "reference"
NAMES = [name for name in discreet.__all__ if name != "__version__"]


def lacking(name: str, page: str, arguments: set[str]) -> set[str]:
    """What the page of a public name does not say."""
    shown = re.sub(r"^::: ([\w.*]+)$", lambda match: reference.described(match[1]), page, flags=re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", shown.partition("## Example")[0], flags=re.DOTALL | re.MULTILINE)
    missing = {f"the argument {one}" for one in arguments if f"`{one}`" not in prose}
    example = re.search(r"^## Example\n\n```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    if example is None or name not in example[1]:
        missing.add("an example that uses it")
    if not re.search(r"^## Guarantee\n\n\S", page, re.MULTILINE):
        missing.add("its guarantee")
    return missing


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_page(name: str) -> None:
    path = REFERENCE / f"{name}.md"
    assert path.is_file(), f"write docs/reference/{name}.md: `::: discreet.{name}`, arguments, example, guarantee"
    page = path.read_text(encoding="utf-8")
    assert f"::: discreet.{name}" in page
    assert not lacking(name, page, reference.argument_names(f"discreet.{name}"))


def test_every_page_is_about_a_public_name() -> None:
    assert {path.stem for path in REFERENCE.glob("*.md")} == {"README", *NAMES}
    index = (REFERENCE / "README.md").read_text(encoding="utf-8")
    assert not [name for name in NAMES if f"({name}.md)" not in index]


def test_the_search_can_fail() -> None:
    page = "# x\n\n## Example\n\n```python\nprint(1)\n```\n\n## Guarantee\n\n## More\n"
    assert lacking("fish", page, {"fins"}) == {"the argument fins", "an example that uses it"}
    assert "its guarantee" in lacking("fish", "# x\n", set())


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_method_has_a_page_whose_example_runs(method: object) -> None:
    assert isinstance(method, type(METHODS["dp-sgd"]))
    name = method.recipe.__name__
    page = reference.method_page(method)
    assert not lacking(name, page, reference.argument_names(f"discreet.methods.{name}"))
    assert method.guarantee[1:] in page
    recipe = method.recipe()  # the example binds it, which costs seconds for some
    assert f"methods.{name}()" in page
    assert recipe.method == method.name or method.certified


def test_docstrings_become_tables_and_boxes() -> None:
    text = (
        "What it does.\n\none, two  first things\n          that go on\nthree     third | last\n\nGuarantee: it holds."
    )
    assert reference.prose(text).splitlines() == [
        "What it does.",
        "",
        "| argument | meaning |",
        "|---|---|",
        "| `one`, `two` | first things that go on |",
        "| `three` | third \\| last |",
        "",
        '!!! success "Guarantee"',
        "    it holds.",
    ]


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_what_the_script_draws(name: str) -> None:
    assert (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == pictures.PICTURES[name]()


def test_the_table_of_attacks_is_the_definition() -> None:
    page = (written.ROOT / "docs" / "concepts" / "epsilon.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) %", page, re.MULTILINE)
    assert len(rows) == 4
    for epsilon, power in rows:
        digits = len(power.partition(".")[2])
        bound = math.ceil(100 * pictures.attack_power(0.01, float(epsilon)) * 10**digits) / 10**digits  # rounded up
        assert bound == float(power)
