"""A run that was seeded in any of its steps is not private, and everything that shows its epsilon says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run as command

import discreet
import loop
from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian
from discreet.accounting.ledger import Ledger, merge, read
from discreet.accounting.ledger_chain import UNSTATED
from discreet.core.randomness import KEYED, SEEDED
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams

HALF = 4


def trained(place: Path, *keys: Streams) -> discreet.Private:
    """A run in as many stretches as there are keys, the first of which ends after a few steps."""
    first, *others = keys
    run = loop.private(streams=first, ledger=place / "ledger.jsonl")
    loop.train(run, most=HALF if others else None)
    for streams in others:
        run.save(place / "state.pt")
        run.close()
        run = loop.private(streams=streams, ledger=place / "ledger.jsonl", resume=place / "state.pt")
        loop.train(run)
    run.close()
    return run


def by_os() -> Streams:
    return Streams.from_os()


def seeded() -> Streams:
    return Streams.seeded(3)


ORDERS = {
    "seeded": ([seeded], True),
    "seeded, then keyed": ([seeded, by_os], True),
    "keyed, then seeded": ([by_os, seeded], True),
    "keyed": ([by_os], False),
    "keyed twice": ([by_os, by_os], False),
}


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_run_says_and_what_its_ledger_says_alone(tmp_path: Path, order: str) -> None:
    keys, marked = ORDERS[order]
    run = trained(tmp_path, *(key() for key in keys))
    spent, charge = run.spent(), read(tmp_path / "ledger.jsonl").charge()
    assert spent.certified.epsilon == run.plan.certificate().epsilon  # the number is not touched
    assert spent.statement == (SEEDED if marked else KEYED)
    assert (SEEDED in str(spent)) == marked
    assert spent.to_json()["randomness"] == spent.statement
    assert charge.seeded == run.ledger.charge().seeded == marked
    certificate = certify(charge, delta=1e-5, relation=Neighbouring.ADD_REMOVE)
    assert (SEEDED in certificate.conditions) == (SEEDED in certificate.to_json()["assumptions"]) == marked
    page = discreet.statement(run, data="nobody's")
    assert ("NOT private" in page) == (f"({SEEDED})" in page) == marked
    assert ("the released model is differentially private" in page.lower()) == (not marked)


def test_before_its_first_charge() -> None:
    run = loop.private(streams=seeded())
    assert SEEDED in str(run.spent())
    assert run.spent().certified.seeded


@pytest.mark.parametrize("order", ["seeded, then keyed", "keyed"])
def test_the_command_line_reads_it_from_the_ledger(tmp_path: Path, order: str) -> None:
    keys, marked = ORDERS[order]
    trained(tmp_path, *(key() for key in keys))
    words = ("account", "--ledger", tmp_path / "ledger.jsonl", "--delta", "1e-5")
    assert (SEEDED in command(*words).out) == marked
    assert (SEEDED in command(*words, "--json").json["certified"]["assumptions"]) == marked


def test_merged_with_private_runs_it_stays_marked(tmp_path: Path) -> None:
    for name, key in (("a", by_os), ("b", seeded), ("c", by_os)):
        (tmp_path / name).mkdir()
        trained(tmp_path / name, key())
    paths = [tmp_path / name / "ledger.jsonl" for name in "abc"]
    assert merge(paths).seeded
    assert not merge([paths[0], paths[2]]).seeded
    words = [word for path in paths for word in ("--ledger", path)]
    assert SEEDED in command("account", *words, "--delta", "1e-5").out
    total = Charge.of(Gaussian(1.0)) + merge(paths[1:2]) * 2
    assert total.seeded
    assert not Charge.of(Gaussian(1.0)).seeded


def test_a_crash_does_not_take_the_mark_away(tmp_path: Path) -> None:
    """Every charge of a seeded run has it: the first line may be torn, or any other."""
    trained(tmp_path, seeded())
    path = tmp_path / "ledger.jsonl"
    for lines in (2, 5):
        whole = b"".join(path.read_bytes().splitlines(keepends=True)[: lines + 1])
        torn = tmp_path / f"torn-{lines}"
        torn.write_bytes(whole[:-30])
        with Ledger.resume(torn, planned=lambda record: Gaussian(1.0)) as ledger:
            assert ledger.length == lines
            assert ledger.charge().seeded
        assert read(torn).charge().seeded


def old_notes(path: Path) -> Path:
    """The ledger as the version before wrote it: keys in the first note, and not a word about seeds."""
    header, *entries = (json.loads(line)["body"] for line in path.read_text().splitlines())
    old = path.with_name("old.jsonl")
    fields = {name: value for name, value in header["header"].items() if name != "seeded"}
    with Ledger.create(old, fields) as ledger:
        for entry in entries:
            note: dict[str, Any] = {k: v for k, v in entry["note"].items() if k != "seeded"}
            ledger.append(Gaussian(2.0), step=entry["step"], note=note)
    return old


def test_a_ledger_of_an_older_version_is_read_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    trained(tmp_path, seeded())
    old = old_notes(tmp_path / "ledger.jsonl")
    charge = read(old).charge()
    assert charge.assumptions.count(UNSTATED) == 1
    assert not charge.seeded
    assert UNSTATED in " ".join(command("account", "--ledger", old, "--delta", "1e-5").out.split())
    assert merge([old, tmp_path / "ledger.jsonl"]).seeded
