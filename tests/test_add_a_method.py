"""docs/add-a-method.md works as it is written: its toy method is built in a copy of the package and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
REGISTRY = Path("src/discreet/methods/__init__.py")


BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)  # language, code


def files() -> dict[str, str]:
    """Path to contents, for every code block that a line ending in a path introduces."""
    return dict(re.findall(r"`(src/\S+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL))


def block(start: str) -> str:
    """The one code block that starts with these characters."""
    (found,) = [code for _, code in BLOCKS if code.startswith(start)]
    return str(found)


def followed(root: Path) -> None:
    """Do what sections 1 and 2 say in a copy of the project."""
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for path, code in files().items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(code, encoding="utf-8")
    registry = (root / REGISTRY).read_text(encoding="utf-8")
    last_import, first_entry = "from discreet.stages.plan import Recipe\n", 'Method(name="dp-sgd"'
    assert registry.count(last_import) == registry.count(first_entry) == 1
    registry = registry.replace(last_import, block("from discreet.methods.smooth_clip") + last_import)
    registry = registry.replace(first_entry, block("Method(") + " " * 12 + first_entry)
    (root / REGISTRY).write_text(registry, encoding="utf-8")


def run(root: Path, *command: str) -> str:
    """Run a command on the copy and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def discreet(root: Path, line: str) -> str:
    return run(root, sys.executable, "-c", "from discreet.cli import main; main()", *line.split()[1:])


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    followed(root)
    return root


@pytest.fixture(scope="module")
def commands() -> dict[str, str]:
    """The page's commands, by their first word."""
    return {line.split()[1]: line for line in block("discreet methods").splitlines()}


def test_the_page_has_a_folder_of_three_files() -> None:
    assert [Path(path).name for path in files()] == ["__init__.py", "clipping.py", "recipes.py"]


def test_it_is_listed_and_priced(copy: Path, commands: dict[str, str]) -> None:
    assert "smooth-clip" in discreet(copy, commands["methods"])
    answer = json.loads(discreet(copy, commands["account"] + " --json"))
    dp_sgd = commands["account"].replace("smooth-clip", "dp-sgd") + " --json"
    assert answer["certified"] == json.loads(discreet(copy, dp_sgd))["certified"]


@pytest.mark.slow
def test_it_is_compared_and_has_a_page(copy: Path, commands: dict[str, str]) -> None:
    assert commands["compare"].count("--steps 60") == 1
    discreet(copy, commands["compare"].replace("--steps 60", "--steps 6 --seeds 0"))
    folder = copy / "runs" / "smooth-clip"
    assert "smooth-clip" in (folder / "report.html").read_text(encoding="utf-8")
    assert (folder / "smooth-clip" / "0" / "ledger.jsonl").is_file()


@pytest.mark.slow
def test_it_is_audited(copy: Path, commands: dict[str, str]) -> None:
    rows = json.loads(discreet(copy, commands["audit"] + " --json"))["rows"]
    assert {row["method"] for row in rows} == {"smooth-clip"}
    assert {row["verdict"] for row in rows} == {"holds"}


@pytest.mark.slow
def test_it_keeps_the_contracts(copy: Path) -> None:
    members = copy / "tests" / "contracts" / "test_members.py"
    text, last = members.read_text(encoding="utf-8"), "    AdaptiveQuantile(clip=1.0),\n"
    assert text.count(last) == 1
    text = text.replace(last, last + "    SmoothClip(0.7),\n")
    future = "from __future__ import annotations\n"
    text = text.replace(future, future + "from discreet.methods.smooth_clip.clipping import SmoothClip\n")
    members.write_text(text, encoding="utf-8")
    chosen = re.search(r'pytest tests/contracts -k "(.*?)"', PAGE)
    assert chosen is not None
    options = ["-q", "-n", "0", "-p", "no:cacheprovider"]
    printed = run(copy, sys.executable, "-m", "pytest", *options, "tests/contracts", "-k", chosen[1])
    assert printed.count(".") >= 6  # bounder, list of bounders, and the contracts of the method


def test_the_contract_of_imports_has_the_line(copy: Path) -> None:
    line = block('    "discreet.methods')
    settings = (copy / "pyproject.toml").read_text(encoding="utf-8")
    assert line.replace("smooth_clip", "dp_sgd") in settings  # the list that the page speaks of looks so
