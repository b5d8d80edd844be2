"""The count of tests that ran: skipped tests do not count, and part of a suite is not measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = Path(__file__).parent / "helpers"
CONFTEST = """
import floor

def pytest_configure(config):
    floor.watch(config, 4)
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", range({ran}))
def test_runs(number): pass

@pytest.mark.parametrize("number", range(10))
def test_skipped_by_mark_or_call(number):
    pytest.skip("not here")

@pytest.mark.skip(reason="not here")
def test_skipped(): pass
"""


def suite(place: Path, ran: int, *options: str) -> subprocess.CompletedProcess[str]:
    (place / "pytest.ini").write_text("[pytest]\ntestpaths = checks\n")
    (place / "checks").mkdir()
    (place / "checks" / "conftest.py").write_text(CONFTEST)
    (place / "checks" / "test_some.py").write_text(TESTS.format(ran=ran))
    environment = {**os.environ, "PYTHONPATH": str(HELPERS), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("ran", "code"), [(3, 1), (4, 0)])
def test_skipped_tests_do_not_count(tmp_path: Path, ran: int, code: int, workers: str) -> None:
    done = suite(tmp_path, ran, "-n", workers)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("3 tests ran, expected at least 4" in done.stdout) == (code == 1)


def test_part_of_a_suite_is_not_measured(tmp_path: Path) -> None:
    assert suite(tmp_path, 3, "-k", "test_runs").returncode == 0
