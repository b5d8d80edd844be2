"""Two processes that share a model by FSDP2: sums and certificate of one process, precision, checkpoints, refusals.

Other numbers of processes, and HSDP: test_sharded_ranks.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import loop
from discreet.accounting.ledger import read
from discreet.core.check import Damaged
from discreet.training.checkpoint import Checkpoint
from discreet.training.sharded.checkpoint import _check_files
from noise_tests import are_independent, same_lengths
from sharded_runs import CLIP, SAMPLERS, Found, check_scale, check_sums, exact_sums, found_by, joined, parts_of

pytestmark = pytest.mark.timeout(900)  # one test waits for all processes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def found(place: Path) -> Found:
    """What each of two processes found."""
    return found_by(2, place)


@pytest.mark.parametrize("name", [*SAMPLERS, "pair"])
def test_the_sums_before_noise_are_those_of_one_process(found: Found, name: str) -> None:
    check_sums(found, name)


def test_a_pass_in_bfloat16_gives_about_the_sums_of_one_in_float32(found: Found) -> None:
    alone, half = joined([exact_sums("full", loop.model())]), joined([seen["half"] for seen in found])
    apart = np.linalg.norm(half - alone, axis=1) / np.linalg.norm(alone, axis=1)
    assert (apart > 1e-5).all()  # it was in bfloat16
    assert (apart < 0.03).all()


def test_no_record_moves_a_sum_in_bfloat16_by_more_than_the_clip(found: Found) -> None:
    """One record at a time, so that nothing else depends on whether the record is there."""
    all_records, fewer = (joined([seen["apart"][which] for seen in found]) for which in (0, 1))
    moved = np.linalg.norm(all_records - fewer, axis=1)
    assert (moved <= CLIP * (1 + 2**-17) + 1e-6).all()
    assert (moved > 0.99 * CLIP).all()  # the record is clipped, and its norm is no coarser than that


def test_noise_has_its_scale_and_is_independent_between_shards_and_steps(found: Found) -> None:
    z = np.array(found[0]["starts"][0])
    check_scale(z, 2)
    assert are_independent(same_lengths(parts_of(z, 2)))
    assert are_independent([*z])
    shared = parts_of(
        np.array(found[0]["one key"]), 2
    )  # the control: ranks with one key, whose shards differ in length
    assert not are_independent([part[0, :240] for part in shared])
    assert found[1]["starts"] == found[0]["starts"]


def test_the_certificate_is_that_of_one_process(found: Found) -> None:
    run = loop.private(None, loop.plan())
    loop.train(run)
    for seen in found:
        for moved, epsilon in seen["trained"]:
            assert moved > 0.1
            assert epsilon == run.spent().certified.epsilon
        assert seen["gathered"] == run.spent().certified.epsilon


def test_a_run_goes_on(found: Found, place: Path) -> None:
    first, second = found[0]["runs"]
    assert found[1]["runs"] == [first, second]
    assert (first["began"][0], first["left"][0], second["left"][0]) == (0, 3, loop.STEPS)
    assert second["began"] == first["left"]
    record = read(place / "ledger.jsonl")
    assert [entry.step for entry in record.entries] == list(range(loop.STEPS))
    keys = [value for entry in record.entries for value in entry.note.values() if isinstance(value, str)]
    assert len(set(keys)) == len(keys) == 2 * (2 + 2)
    assert record.charge().certified == loop.plan().charge().certified
    assert len(list(place.glob("run.pt*"))) == 2  # the file and one folder of shards


def test_damaged_shards_are_refused(found: Found, place: Path) -> None:
    folder = next(place.glob("run.pt.shards-*"))
    files = Checkpoint.read(place / "run.pt").shards
    assert files is not None
    _check_files(folder, files["files"])
    file = max(folder.iterdir(), key=lambda one: one.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match="as it was written"):
        _check_files(folder, files["files"])


def test_what_cannot_be_sharded_is_refused_by_name(found: Found) -> None:
    assert "written to in place" in found[0]["written"]
    said = found[1]["refused"]
    assert "random-freeze, which selects coordinates" in said["frozen"]
    assert "adds noise that depends on more than one coordinate" in said["grid"]
    assert "two-level, which" in said["two"]
    assert "gathered in torch.float16" in said["half"]
    assert "param_dtype=torch.bfloat16" in said["half"]
    assert "forward hooks of your own" in said["hooked"]
    assert "fully_shard(model) last" in said["part"]
    assert "outside of it" in said["beside"]
