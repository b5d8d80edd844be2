"""1, 2 and 4 processes that share a model by FSDP2, and HSDP: the same sums, noise by shards, one run after another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import loop
from discreet.accounting.ledger import read
from noise_tests import are_independent, same_lengths
from sharded_runs import SAMPLERS, Found, check_scale, check_sums, found_by, parts_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # one test waits for all processes


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that all of them go on with."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> dict[int, Found]:
    """What each of 1, 2 and 4 processes found."""
    return {size: found_by(size, tmp_path_factory.mktemp(f"ranks{size}"), shared) for size in (1, 2, 4)}


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", [*SAMPLERS, "pair", "hsdp"])
def test_the_sums_before_noise_are_those_of_one_process(found: dict[int, Found], name: str, size: int) -> None:
    if name == "hsdp" and size != 4:
        pytest.skip("HSDP has four processes")
    check_sums(found[size], name)


def test_noise_has_its_scale_on_every_coordinate(found: dict[int, Found]) -> None:
    first = found[4][0]
    for run, shards in ((first["starts"][0], 4), (first["starts"][1], 4), (first["hsdp noise"], 2)):
        check_scale(np.array(run), shards)


def test_noise_is_independent_between_shards_steps_and_starts(found: dict[int, Found]) -> None:
    seen = found[4][0]
    first, second, hybrid = np.array(seen["starts"][0]), np.array(seen["starts"][1]), np.array(seen["hsdp noise"])
    assert are_independent(same_lengths(parts_of(first, 4)) + same_lengths(parts_of(second, 4)))
    assert are_independent(same_lengths(parts_of(hybrid, 2)))
    halves = [half for part in parts_of(hybrid, 2) for half in np.array_split(part, 2, 1)]  # which replica drew it
    assert are_independent(same_lengths(halves))
    assert are_independent([*first, *second, *hybrid])  # every two steps, of the same start or not
    # The controls: ranks with one key, and a start that repeats the other's noise.
    assert not are_independent(same_lengths(parts_of(np.array(seen["one key"]), 4)))
    assert not are_independent([*first, *first])


def test_every_process_sees_the_same_parameters(found: dict[int, Found]) -> None:
    first, *others = found[4]
    for other in others:
        assert (other["starts"], other["hsdp noise"]) == (first["starts"], first["hsdp noise"])


def test_the_certificate_is_that_of_one_process(found: dict[int, Found]) -> None:
    run = loop.private(None, loop.plan())
    loop.train(run)
    for seen in found[4]:
        for moved, epsilon in seen["trained"]:
            assert moved > 0.1
            assert epsilon == run.spent().certified.epsilon


def test_a_run_goes_on_with_another_number_of_processes(found: dict[int, Found], shared: Path) -> None:
    """One process begins it, two go on and four end it; nothing is charged twice, and no key comes back."""
    ends = {size: ranks[0]["run"] for size, ranks in found.items()}
    assert [ends[size]["began"][0] for size in (1, 2, 4)] == [0, 2, 5]
    for earlier, later in ((1, 2), (2, 4)):
        assert ends[later]["began"] == ends[earlier]["left"]
    for rank in found[4]:
        assert rank["run"] == ends[4]
    record = read(shared / "ledger.jsonl")
    assert [entry.step for entry in record.entries] == list(range(loop.STEPS))
    keys = [value for entry in record.entries for value in entry.note.values() if isinstance(value, str)]
    assert len(set(keys)) == len(keys) == 2 * (1 + 2 + 4)
    assert record.charge().certified == loop.plan().charge().certified
    assert len(list(shared.iterdir())) == 3  # the ledger, the file and one folder of shards
