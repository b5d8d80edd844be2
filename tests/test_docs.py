"""What pages and messages say is true of the code: constants, names, commands, flags, files."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path

import pytest
import typer
from typer.main import get_command

import discreet
import written
from discreet.cli.entry import COMMANDS, build
from discreet.core import normals, streams
from discreet.engine import memory
from discreet.engine.factors import parts
from discreet.runs import statement
from discreet.stages import clipping
from discreet.training.private import Private

PITFALLS = (written.ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
LIMITS = " ".join(statement._LIMITS)


def largest_normal() -> float:
    """The longest radius that Box-Muller gives, for the word that is nearest to zero."""
    buffers = normals.Buffers.of(2)
    buffers.words[:] = 0
    return float(buffers.box_muller()[0])


# Where a number is stated, the pattern that finds it there, and the number in the code.
CONSTANTS = {
    "tail of the normals": (PITFALLS, r"(?:tail ends near|exceeds) ([\d.]+) standard\s+deviations", largest_normal()),
    "tail in the docstring": (
        inspect.getdoc(normals.Buffers.box_muller),
        r"sqrt\(-2 ln u\) in \[0, ([\d.]+)\]",
        largest_normal(),
    ),
    "bits of a uniform": (PITFALLS, r"(\d+)-bit\s+(?:uniforms|words)", 8 * normals.WORD_BYTES),
    "bits in the statement": (LIMITS, r"(\d+)-bit (?:uniforms|words)", 8 * normals.WORD_BYTES),
    "bits of a key": (LIMITS, r"AES-(\d+)", 8 * streams._KEY_BYTES),
    "rounding of norms": (PITFALLS, r"allowance of (\d+) units in the last\s+place", parts.ROUNDING_ULPS),
    "rounding of weights": (
        PITFALLS,
        r"rounded down by (?:a factor of 1 - )?2\^-(\d+)",
        -math.log2(1 - clipping.ROUND_DOWN),
    ),
    "records at once": (inspect.getdoc(Private), r"at most\s+(\d+)", memory.ENOUGH),
}


@pytest.mark.parametrize("what", CONSTANTS)
def test_constants_are_those_of_the_code(what: str) -> None:
    text, pattern, value = CONSTANTS[what]
    found = re.findall(pattern, text or "")
    assert found, f"no sentence matches {pattern!r}: change the pattern with the sentence"
    for number in found:
        digits = len(number.partition(".")[2])
        assert round(value, digits) == float(number)


def test_the_key_is_what_the_cipher_takes() -> None:
    """The check of a key's bits compares two numbers of ours; AES-256 itself wants this many bytes."""
    assert normals.cipher(bytes(streams._KEY_BYTES), normals.WORDS).update(bytes(16))
    with pytest.raises(ValueError, match="key size"):
        normals.cipher(bytes(streams._KEY_BYTES - 1), normals.WORDS)


# One page invents a method, with its file and flags; one quotes the commands that wrote its results at the time.
TRUE_PAGES = [page for page in written.PAGES if page.name not in ("add-a-method.md", "reproductions.md")]

# -- names ------------------------------------------------------------------------------------------------------


def name(path: Path) -> str:
    return str(path.relative_to(written.ROOT))


@pytest.mark.parametrize("page", TRUE_PAGES, ids=name)
def test_names_on_pages_can_be_imported(page: Path) -> None:
    missing = {one for one in written.dotted_names(written.code_of(page)) if not written.exists(one)}
    assert not missing


def test_names_in_messages_can_be_imported() -> None:
    named = {one for path in written.SOURCES for text in written.strings_of(path) for one in written.dotted_names(text)}
    assert len(named) > 10, "the search finds nothing"
    assert not {one for one in named if not written.exists(one)}


def test_messages_name_public_classes_with_their_path() -> None:
    """`OwnLoader()` alone cannot be typed: a user has to know where it is."""
    public = "|".join(one for one in discreet.__all__ if one[0].isupper())
    bare = re.compile(rf"(?<![\w.])(?:{public})(?=[(.]\w*\(?)")
    found = {
        f"{name(path)}: {text}" for path in written.SOURCES for text in written.messages_of(path) if bare.search(text)
    }
    assert not found


def test_the_search_for_names_can_fail() -> None:
    text = "use `discreet.OwnLoader()`\nfrom discreet.stages.sampling import Poisson, Fish\ndiscreet.nowhere.at_all"
    assert {one for one in written.dotted_names(text) if not written.exists(one)} == {
        "discreet.stages.sampling.Fish",
        "discreet.nowhere.at_all",
    }


# -- commands ---------------------------------------------------------------------------------------------------

APPLICATION = get_command(build([listed.load() for listed in COMMANDS]))
FLAGS = {
    listed.name: {
        option
        for parameter in APPLICATION.get_command(typer.Context(APPLICATION), listed.name).params  # type: ignore[attr-defined]
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    | {"--help"}
    for listed in COMMANDS
}


def wrong_in(line: str) -> set[str]:
    """What a command line names that does not exist: the command, or flags of it."""
    line = line.partition("#")[0]
    command = line.split()[0]
    if command not in FLAGS:
        return {command}
    return set(re.findall(r"(?<!\S)\[?(--[a-z][\w-]*)", line)) - FLAGS[command]


def wrong_commands(text: str) -> set[str]:
    return {f"discreet {line}: {wrong}" for line in written.commands(text) if (wrong := wrong_in(line))}


@pytest.mark.parametrize("page", TRUE_PAGES, ids=name)
def test_commands_on_pages_exist(page: Path) -> None:
    assert not wrong_commands(written.code_of(page))


def test_commands_in_messages_exist() -> None:
    texts = [text for path in written.SOURCES for text in written.strings_of(path)]
    quoted = [piece for text in texts for piece in re.findall(r"`(discreet [^`]+)`", text)]
    assert len(quoted) > 10, "the search finds nothing"
    assert not set().union(*map(wrong_commands, quoted))


def test_the_search_for_commands_can_fail() -> None:
    assert wrong_commands("discreet account --rate 0.1 --fish 3") == {
        "discreet account --rate 0.1 --fish 3: {'--fish'}"
    }
    assert wrong_commands("discreet fly --help") == {"discreet fly --help: {'fly'}"}
    assert not wrong_commands("discreet methods")


# -- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", TRUE_PAGES, ids=name)
def test_files_named_on_pages_exist(page: Path) -> None:
    found = written.paths(page.read_text(encoding="utf-8"))
    assert not {path for path in found if not (written.ROOT / path).exists()}


FOLDERS = (written.ROOT, written.ROOT / "src" / "discreet", written.ROOT / "tests")
INVENTED = "smooth_clip"  # the toy method of add-a-method.md


def missing_modules(text: str) -> set[str]:
    """Modules that are named with a folder, as `stages/plan.py`, and are in none of `FOLDERS`."""
    named = set(re.findall(r"(?<![\w/.<>{*-])((?:[\w-]+/)+[\w-]+\.py)\b", text))
    return {one for one in named if not any((folder / one).exists() for folder in FOLDERS) and INVENTED not in one}


@pytest.mark.parametrize("page", written.PAGES, ids=name)
def test_modules_named_on_pages_exist(page: Path) -> None:
    assert not missing_modules(page.read_text(encoding="utf-8"))


def test_the_search_for_modules_can_fail() -> None:
    text = "`stages/plan.py`, `src/discreet/stages/plan.py`, `stages/gaussian.py`, tests/stages/test_plan.py"
    assert missing_modules(text) == {"stages/gaussian.py"}


def test_files_named_in_the_source_exist() -> None:
    found = {one for path in written.SOURCES for text in written.strings_of(path) for one in written.paths(text)}
    assert len(found) > 10, "the search finds nothing"
    assert not {path for path in found if not (written.ROOT / path).exists()}


def test_the_known_bad_page_names_tests_that_exist() -> None:
    page = (written.ROOT / "tests" / "known_bad" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+/test_\w+\.py)`", page))
    assert len(named) > 10
    assert not {path for path in named if not (written.ROOT / "tests" / path).exists()}
