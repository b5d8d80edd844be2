"""The budget file: its limit holds under ten processes with kills, and under adaptive choices."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from discreet.accounting import gdp
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian, PoissonSampled, WithoutReplacement
from discreet.core.check import Damaged, Refused
from discreet.core.relation import Neighbouring
from discreet.runs.budget import Budget, BudgetLimit

LIMIT = BudgetLimit(epsilon=3.0, delta=1e-5)


def made(tmp_path: Path, limit: BudgetLimit = LIMIT) -> Budget:
    return Budget.create(tmp_path / "visits.json", limit, data="visits of 2024")


def release(noise: float) -> Charge:
    return Charge.of(Gaussian(noise))


def test_one_run_may_use_the_whole_limit_and_then_nothing_is_left(tmp_path: Path) -> None:
    budget = made(tmp_path)
    assert budget.read().left == 3.0
    state = budget.charge(release(1.391), entry="a", what="train a")
    assert state.spent == pytest.approx(gdp.epsilon(1 / 1.391, 1e-5))
    assert 2.99 < state.spent <= 3.0
    assert state.left == 0.0
    with pytest.raises(Refused, match=r"what is left of .*: epsilon 0 of 3 .*no record was read"):
        budget.charge(release(1000.0), entry="b", what="train b")
    second = Budget.create(tmp_path / "second.json", LIMIT)
    with pytest.raises(Refused, match=r"train c at epsilon 5\.68"):
        second.charge(release(0.8), entry="c", what="train c")


def test_several_charges_add_up_by_renyi_divergences_of_the_order_of_the_file(tmp_path: Path) -> None:
    budget, order = made(tmp_path), LIMIT.order_for(release(5.0))
    count = math.floor(LIMIT.room(order) / (order / (2 * 5.0**2)))
    for index in range(count):
        budget.charge(release(5.0), entry=str(index), what="one")
    state = budget.read()
    assert 2.8 < state.spent <= 3.0
    assert state.left < gdp.epsilon(0.2, 1e-5)
    with pytest.raises(Refused, match="what is left"):
        budget.charge(release(5.0), entry="more", what="one")
    # Never cheaper than the composition that is fixed in advance.
    assert state.spent >= gdp.epsilon(math.sqrt(count) / 5.0, 1e-5)


def test_an_entry_is_charged_once(tmp_path: Path) -> None:
    budget = made(tmp_path)
    for _ in range(3):
        state = budget.charge(release(4.0), entry="run", what="train")
    assert len(state.entries) == len(budget.read().entries) == 1
    assert budget.holds("run")
    assert not budget.holds("other")
    with pytest.raises(Refused, match="the charge of run as it is"):
        budget.charge(release(2.0), entry="run", what="train")


def test_parts_are_parallel_under_add_remove_and_two_pay_under_replace_one(tmp_path: Path) -> None:
    budget = made(tmp_path)
    for part in ("north", "south", "west"):
        state = budget.charge(release(2.0), entry=part, what="train", part=part)
    assert state.spent == pytest.approx(gdp.epsilon(0.5, 1e-5))
    whole = budget.charge(release(4.0), entry="all", what="train")
    assert whole.spent > state.spent
    replaced = Budget.create(
        tmp_path / "r.json", BudgetLimit(epsilon=8.0, delta=1e-5, relation=Neighbouring.REPLACE_ONE)
    )
    costs = [replaced.charge(release(4.0), entry=part, what="train", part=part).spent for part in ("n", "s", "w")]
    assert costs[0] < costs[1] == costs[2]
    with pytest.raises(Refused, match="proven under add/remove too for a part"):
        replaced.charge(Charge.of(WithoutReplacement(1000, 10, Gaussian(4.0))), entry="x", what="train", part="e")


def test_the_first_charge_alone_decides_the_order(tmp_path: Path) -> None:
    """An order that followed later charges would be a choice by released values."""
    budget = made(tmp_path)
    first = Charge.of(PoissonSampled(0.03, Gaussian(0.9)), 20)
    assert LIMIT.order_for(first) < LIMIT.order_for(release(5.0))
    order = budget.charge(first, entry="a", what="train").order
    for index in range(3):
        assert budget.charge(release(20.0), entry=str(index), what="train").order == order == LIMIT.order_for(first)


def test_a_torn_line_was_never_acknowledged_and_other_damage_is_refused(tmp_path: Path) -> None:
    budget = made(tmp_path)
    budget.charge(release(4.0), entry="a", what="train")
    whole = budget.path.read_bytes()
    budget.path.write_bytes(whole + b'{"body":{"entry":"b"')
    assert len(budget.read().entries) == 1
    budget.charge(release(4.0), entry="c", what="train")
    assert [entry.entry for entry in budget.read().entries] == ["a", "c"]
    budget.path.write_bytes(whole.replace(b'"noise":4.0', b'"noise":9.0'))
    with pytest.raises(Damaged, match="follow the line before"):
        budget.read()
    budget.path.write_bytes(b"")
    with pytest.raises(Damaged, match="a budget in"):
        budget.charge(release(4.0), entry="d", what="train")


def test_a_budget_is_never_replaced(tmp_path: Path) -> None:
    made(tmp_path).charge(release(2.0), entry="a", what="train")
    with pytest.raises(Refused, match="which exists"):
        made(tmp_path)
    with pytest.raises(Refused, match=r"discreet budget .* --epsilon"):
        Budget(tmp_path / "none.json")


_SPENDER = """
import os, sys
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian
from discreet.core.check import Refused
from discreet.runs.budget import Budget
budget, me, acknowledged = Budget(sys.argv[1]), sys.argv[2], open(sys.argv[3], "a")
print("ready", flush=True)
sys.stdin.readline()
for number in range(1000):
    entry = f"{me}-{os.getpid()}-{number}"
    try:
        budget.charge(Charge.of(Gaussian(12.0)), entry=entry, what="spend")
    except Refused:
        break
    acknowledged.write(entry + "\\n")
    acknowledged.flush()
"""


@pytest.mark.slow
def test_ten_processes_with_kills_never_exceed_the_limit_and_lose_nothing(tmp_path: Path) -> None:
    """Every charge that was acknowledged is in the file, and the file is within its limit."""
    budget, script = made(tmp_path), tmp_path / "spender.py"
    script.write_text(_SPENDER)
    chance = random.Random(5)

    def begin(index: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), str(budget.path), str(index), str(tmp_path / f"acknowledged-{index}")]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ))

    crew = [begin(index) for index in range(10)]
    for process in crew:
        assert process.stdout is not None
        process.stdout.readline()
    for process in crew:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    for process in chance.sample(crew, 6):
        time.sleep(chance.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
    for process in crew:
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    state = budget.read()
    paid = {entry.entry for entry in state.entries}
    acknowledged = [line for file in tmp_path.glob("acknowledged-*") for line in file.read_text().split()]
    assert set(acknowledged) <= paid
    assert len(acknowledged) == len(set(acknowledged))
    assert len(paid) - len(acknowledged) <= 6  # at most one of each killed process was charged and not told
    assert state.spent <= 3.0
    order = LIMIT.order_for(release(12.0))
    most = math.floor(LIMIT.room(order) / (order / (2 * 12.0**2)))
    assert len(paid) == most  # those that lived spent all of the rest
    assert all(json.loads(line) for line in budget.path.read_text().splitlines())
