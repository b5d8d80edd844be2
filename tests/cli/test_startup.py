"""What a command imports before it works, and how long that takes.

Times are processor times of child processes, measured in turns in one run and compared with `import numpy`.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from discreet.cli.entry import COMMANDS, ListedCommand

ACCOUNTS = {
    "Poisson": "--method dp-sgd --noise 1.1 --rate 0.02 --steps 20 --delta 1e-5",
    "JSON": "--method dp-sgd --noise 1.1 --rate 0.02 --steps 20 --delta 1e-5 --json",
    "truncated": "--method dp-sgd --noise 1.1 --records 5000 --batch 50 --steps 20 --delta 1e-5 "
    "--sampling truncated-poisson --cap 60",
    "DiceSGD": "--method dicesgd --noise 50 --records 5000 --batch 50 --steps 20 --delta 1e-5",
}
HEAVY = ("torch", "scipy.stats", "scipy.optimize", "scipy.signal", "scipy.fft", "matplotlib", "jinja2", "sklearn")
PROGRAM = """
import sys
from discreet.cli import main
code = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""

PROGRAMS = {
    "numpy": "import numpy",
    "--help": "from discreet.cli import main; main(['--help'])",
    "methods": "from discreet.cli import main; main(['methods'])",
    "account": "import discreet.cli.account",
}
LIMITS = {"--help": 2.5, "methods": 2.5, "account": 4.0}


def imported_by(words: Sequence[str]) -> set[str]:
    """The modules that a command has imported when it ends."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--help"], ["methods"], ["methods", "--json"]], ids=" ".join)
def test_help_and_methods_import_no_library_for_numbers(words: list[str]) -> None:
    assert not imported_by(words) & {"numpy", "scipy", "pydantic", "cryptography", *HEAVY}


@pytest.mark.parametrize("words", ACCOUNTS.values(), ids=ACCOUNTS)
def test_account_imports_of_scipy_its_special_functions_alone(words: str) -> None:
    imported = imported_by(["account", *words.split()])
    assert not imported & set(HEAVY)
    assert "scipy.special" in imported  # negative control: the list of modules is not empty


@pytest.mark.parametrize("listed", COMMANDS, ids=lambda listed: listed.name)
def test_a_command_imports_no_other_command(listed: ListedCommand) -> None:
    imported = imported_by([listed.name, "--help"])
    homes = {f"discreet.cli.{command.module}" for command in COMMANDS}
    assert imported & homes == {f"discreet.cli.{listed.module}"}


@pytest.mark.parametrize("listed", COMMANDS, ids=lambda listed: listed.name)
def test_the_list_of_commands_says_what_the_command_says(listed: ListedCommand) -> None:
    assert (listed.load().__doc__ or "").splitlines()[0] == listed.summary


def test_start_up_is_quick(tmp_path: Path) -> None:
    """Twice the limits, so that a busy machine passes: importing scipy.stats or torch alone exceeds them."""
    found = times_numpy(tmp_path, repeats=3)
    assert all(found[name] <= 2 * limit for name, limit in LIMITS.items()), found


@pytest.mark.slow
def test_start_up_is_within_its_limits(tmp_path: Path) -> None:
    found = times_numpy(tmp_path, repeats=9)
    assert all(found[name] <= limit for name, limit in LIMITS.items()), found


def times_numpy(bytecode: Path, *, repeats: int) -> Mapping[str, float]:
    """The median processor time of each program, divided by that of `import numpy`; all modules are compiled."""
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(repeats + 1):
        for name, program in PROGRAMS.items():
            taken[name].append(_processor_time(program, bytecode))
    medians = {name: statistics.median(values[1:]) for name, values in taken.items()}  # the first one compiles
    return {name: value / medians["numpy"] for name, value in medians.items()}


def _processor_time(program: str, bytecode: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_package_runs_as_a_module() -> None:
    """`torchrun -m discreet` needs it."""
    done = subprocess.run([sys.executable, "-m", "discreet", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "train" in done.stdout
