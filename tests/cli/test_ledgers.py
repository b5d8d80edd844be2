from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import refused, run

from discreet.accounting.events import Gaussian, PoissonSampled
from discreet.accounting.ledger import Ledger
from discreet.core.relation import Neighbouring

STEP = PoissonSampled(rate=0.02, event=Gaussian(noise=1.0))


def write(path: Path, steps: int, relation: Neighbouring = Neighbouring.ADD_REMOVE) -> Path:
    with Ledger.create(path, {"relation": str(relation), "delta": 1e-5, "plan": "a" * 64}) as ledger:
        for step in range(steps):
            ledger.append(STEP if relation is Neighbouring.ADD_REMOVE else Gaussian(noise=9.0), step=step)
    return path


def epsilon(*paths: Path) -> float:
    words = [word for path in paths for word in ("--ledger", path)]
    answer = run("account", *words, "--delta", "1e-5", "--json").json
    assert answer["method"] == "ledger"
    return float(answer["certified"]["epsilon"])


def test_two_halves_cost_what_the_whole_costs(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.jsonl", 12)
    halves = write(tmp_path / "a.jsonl", 5), write(tmp_path / "b.jsonl", 7)
    assert epsilon(*halves) == epsilon(whole) > epsilon(halves[1])
    words = ["--method", "dp-sgd", "--noise", "1", "--rate", "0.02", "--steps", "12", "--delta", "1e-5", "--json"]
    assert epsilon(whole) == run("account", *words).json["certified"]["epsilon"]


def test_the_relation_comes_from_the_ledger(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", 3, Neighbouring.REPLACE_ONE)
    other = write(tmp_path / "b.jsonl", 3)
    answer = run("account", "--ledger", path, "--delta", "1e-5", "--json").json
    assert answer["certified"]["relation"] == "replace-one"
    refused(run("account", "--ledger", path, "--delta", "1e-5", "--relation", "add/remove"), "replace-one")
    refused(run("account", "--ledger", path, "--ledger", other, "--delta", "1e-5"), "relation")


def test_a_ledger_that_was_edited_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", 5)
    lines = path.read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace('"noise":1.0', '"noise":9.0')
    path.write_text("".join(lines))
    assert lines[3] not in write(tmp_path / "b.jsonl", 5).read_text()  # the edit changed something
    refused(run("account", "--ledger", path, "--delta", "1e-5"), "line 4")


@pytest.mark.parametrize("content", [b"", b"\n", b"not a ledger\n", b"\xff\xfe\n", b"[1]\n", b'{"a": 1}\n'])
def test_what_is_no_ledger_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    refused(run("account", "--ledger", path, "--delta", "1e-5"), "a.jsonl")


def test_a_ledger_without_charges_is_refused(tmp_path: Path) -> None:
    refused(run("account", "--ledger", write(tmp_path / "a.jsonl", 0), "--delta", "1e-5"), "a.jsonl")


def test_missing_torn_repeated_and_unreadable(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", 3)
    refused(run("account", "--ledger", tmp_path / "b.jsonl", "--delta", "1e-5"), "b.jsonl")
    refused(run("account", "--ledger", tmp_path, "--delta", "1e-5"), tmp_path.name)
    refused(run("account", "--ledger", path, "--ledger", path, "--delta", "1e-5"), "once")
    refused(run("account", "--ledger", path), "--delta")
    refused(run("account", "--ledger", path, "--delta", "1e-5", "--noise", "1"), "--noise")
    refused(run("account", "--ledger", path, "--delta", "1e-5", "--curve", "c.svg"), "--curve")
    path.write_bytes(path.read_bytes()[:-9])
    refused(run("account", "--ledger", path, "--delta", "1e-5"), "line 4")
