"""The wheel: what it contains, and that it installs and runs in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

import discreet

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_written_once() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "discreet.__version__"}
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [discreet.__version__]
    assert f"\n## {discreet.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_file_of_the_package_is_packed() -> None:
    package = ROOT / "src" / "discreet"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["discreet"]
    compiled = (".py", ".pyc", ".c", ".h", ".so")
    others = [path for path in package.rglob("*") if path.is_file() and path.suffix not in compiled]
    names = [str(path.relative_to(package)) for path in others]
    assert len(names) > 5
    assert not [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]


def test_every_extra_is_pinned() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for file in ("constraints.txt", "constraints-flower.txt")
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(one for names in extras.values() for one in names)]
    names = {re.split(r"[\[><=~! ]", one)[0].lower().replace("_", "-") for one in wanted}
    assert not names - pinned - {"discreet"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_runs_in_an_empty_environment(tmp_path: Path) -> None:
    """Needs an index of packages, from which torch comes."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    venv.create(tmp_path / "builder", with_pip=True)
    run(tmp_path / "builder/bin/pip", "install", "--quiet", "build", "-c", ROOT / "constraints.txt")
    run(tmp_path / "builder/bin/python", "-m", "build", "--outdir", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if not name.startswith(("discreet/", f"discreet-{discreet.__version__}"))]
    if shutil.which("cc"):  # the generator of noise is compiled where that is possible
        assert [name for name in names if "_normals" in name and name.endswith(".so")]

    venv.create(tmp_path / "empty", with_pip=True)
    run(tmp_path / "empty/bin/pip", "install", "--quiet", wheel, "-c", ROOT / "constraints.txt")
    program = tmp_path / "empty/bin/discreet"
    assert run(program, "--version") == f"discreet {discreet.__version__}\n"
    where = run(tmp_path / "empty/bin/python", "-c", "import discreet; print(discreet.__file__)")
    assert where.startswith(str(tmp_path / "empty"))
    shared = ("--data", "digits", "--epsilon", "3", "--delta", "1e-5", "--steps", "5", "--json")
    assert '"epsilon"' in run(program, "train", *shared, "--method", "dp-sgd", "--out", "run")
    run(program, "compare", *shared, "--methods", "dp-sgd", "--repeats", "1", "--out", "all")
    assert (tmp_path / "all" / "report.html").is_file()
