"""Runs with correlated noise: places of batches, crashes, lost keys, and what the ledger certifies of each."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

import discreet
import loop
from discreet import methods
from discreet.accounting.ledger import merge, read
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.core.streams import Stream
from discreet.methods.dp_ftrl.correlated_noise import HISTORY
from discreet.stages.plan import Plan
from discreet.training.noise_keys import NoiseKeys
from discreet.training.private import Private

REPLACE = Neighbouring.REPLACE_ONE
EPOCH = loop.RECORDS // loop.BATCH  # steps
FIXED, SHUFFLED, ONCE, BINS = discreet.FixedOrder(), discreet.Reshuffled(), discreet.OnePass(), discreet.FixedBins()


def plan(sampling: Any, *, bands: int = 3, epochs: int = 3) -> Plan:
    relation = Neighbouring.ADD_REMOVE if sampling == BINS else REPLACE
    return loop.plan(methods.dp_ftrl(clip=0.5, bands=bands).using(sampling=sampling, relation=relation), epochs=epochs)


def begin(sampling: Any, ledger: Path | None = None, **options: Any) -> Private:
    dataset = loop.data() if sampling == BINS else None
    return loop.private(which=plan(sampling), dataset=dataset, ledger=ledger, **options)


def loader(*, shuffle: bool = False, drop_last: bool = False) -> DataLoader[Any]:
    return DataLoader(loop.data(), batch_size=loop.BATCH, shuffle=shuffle, drop_last=drop_last)


def walk(run: Private, batches: Iterable[Any], most: int = 1000) -> list[Tensor]:
    """One pass, for at most so many steps; returns the inputs that were used."""
    used, stop = [], run.progress.step + most
    for x, y in run.over(batches):
        if not run.is_rehearsal:
            used.append(x)
        run.step(loop.losses(run.model, x, y))
        if run.progress.step >= stop:
            break
    return used


def go(run: Private, steps: int) -> None:
    """So many steps more of a run from its dataset."""
    loop.train(run, most=run.progress.step + steps)


def steps_of(ledger: Path) -> list[tuple[int, str]]:
    return [(entry.step, entry.event.kind) for entry in read(ledger).entries]


# -- places ------------------------------------------------------------------------------------------------------


def test_a_fixed_order_is_checked(tmp_path: Path) -> None:
    run = begin(FIXED, tmp_path / "ledger")
    walk(run, loader())
    with pytest.raises(Refused, match=r"batch 0 of the first pass again, got another batch.*Reshuffled"):
        walk(run, loader(shuffle=True))
    assert run.progress.step == EPOCH  # refused before it was used


def test_an_unchecked_order_is_the_users_word() -> None:
    run = begin(discreet.FixedOrder(checked=False))
    walk(run, loader())
    walk(run, loader(shuffle=True))
    assert run.progress.step == 2 * EPOCH
    assert "if every pass over the loader has the same order" in str(run.spent())


def test_a_fixed_order_keeps_its_places_when_a_pass_is_left() -> None:
    run = begin(FIXED)
    x, _ = loop.data().tensors
    walk(run, loader(), most=2)
    at = run.progress.step
    used = walk(run, loader(), most=1)
    assert torch.equal(torch.cat(used), x[at * loop.BATCH : (at + 1) * loop.BATCH])


def test_a_reshuffled_epoch_that_was_left_is_not_gone_on_with() -> None:
    run = begin(SHUFFLED)
    walk(run, loader(shuffle=True), most=2)
    walk(run, loader(shuffle=True))
    assert run.progress.step == 2 * EPOCH
    kinds = [(entry.step, dict(entry.note).get("left out from")) for entry in run.ledger.entries]
    assert (EPOCH - 1, 2) in kinds
    assert run.updates == EPOCH + 2


@pytest.mark.parametrize("sampling", [FIXED, SHUFFLED], ids=str)
def test_a_short_pass_ends_its_epoch(sampling: Any) -> None:
    data = TensorDataset(*(tensor[:-5] for tensor in loop.data().tensors))
    run = begin(sampling)
    walk(run, DataLoader(data, batch_size=loop.BATCH, drop_last=True))
    assert (run.progress.step, run.updates) == (EPOCH, EPOCH - 1)


@pytest.mark.parametrize("sampling", [FIXED, SHUFFLED], ids=str)
def test_two_passes_in_one_call_are_refused(sampling: Any) -> None:
    run = begin(sampling)
    with pytest.raises(Refused, match=f"at most {EPOCH} batches a pass"):
        walk(run, [*loader(), *loader()])
    assert run.progress.step == EPOCH


def test_more_records_than_planned_are_refused() -> None:
    run = begin(SHUFFLED)
    with pytest.raises(Refused, match="at most records=60 in a pass"):
        walk(run, DataLoader(loop.data(80), batch_size=16))


@pytest.mark.parametrize("sampling", [FIXED, SHUFFLED, discreet.OwnLoader()], ids=str)
@pytest.mark.parametrize(
    "sampler",
    [
        WeightedRandomSampler([1.0] * loop.RECORDS, loop.RECORDS),
        RandomSampler(range(loop.RECORDS), replacement=True),
        RandomSampler(range(loop.RECORDS), num_samples=2 * loop.RECORDS),
    ],
)
def test_a_loader_that_draws_records_again_is_refused(sampling: Any, sampler: Any) -> None:
    made = plan(sampling) if sampling in (FIXED, SHUFFLED) else loop.plan(methods.dp_sgd().using(sampling=sampling))
    run = loop.private(which=made, dataset=None)
    with pytest.raises(Refused, match=f"at most once a pass, got {type(sampler).__name__}"):
        walk(run, DataLoader(loop.data(), batch_size=loop.BATCH, sampler=sampler))
    assert run.progress.step == 0
    once = WeightedRandomSampler([1.0] * loop.RECORDS, loop.RECORDS, replacement=False)
    walk(run, DataLoader(loop.data(), batch_size=loop.BATCH, sampler=once), most=1)


def test_a_stream_is_read_once() -> None:
    run = loop.private(which=plan(ONCE, epochs=1), dataset=None)
    walk(run, loader())
    with pytest.raises(Refused, match="one pass over a stream, got another call"):
        walk(run, loader())


def test_a_plan_for_a_loader_draws_no_batches() -> None:
    with pytest.raises(Refused, match="a plan for your own loader"):
        next(iter(begin(FIXED, None)))
    with pytest.raises(Refused, match="a plan for your own loader, such as"):
        next(iter(begin(BINS).over(loader())))


# -- crashes -----------------------------------------------------------------------------------------------------


def noise_of(run: Private) -> list[Tensor]:
    return list(run.progress.secrets[HISTORY].reveal_to_mechanism()._past)


def crash(tmp_path: Path, *, saved_at: int = 4, crashed_at: int = 7) -> tuple[list[Tensor], dict[str, Any]]:
    """A run that saved a checkpoint, went on and was lost; returns its last noise and its keys."""
    run = begin(BINS, tmp_path / "ledger", seed=1)
    go(run, saved_at)
    run.save(tmp_path / "state.pt")
    go(run, crashed_at - saved_at)
    noise = noise_of(run)
    run.ledger.close()  # the lock; nothing else is tidied up
    return noise, json.loads(NoiseKeys.path_of(tmp_path / "ledger").read_text())


def resume(tmp_path: Path, seed: int = 2) -> Private:
    return begin(BINS, tmp_path / "ledger", resume=tmp_path / "state.pt", seed=seed)


def test_a_resumed_run_has_the_noise_of_the_crashed_one_and_a_new_key(tmp_path: Path) -> None:
    noise, keys = crash(tmp_path)
    run = resume(tmp_path)
    assert run.progress.step == 7
    for kept, again in zip(noise, noise_of(run), strict=True):
        assert torch.equal(kept, again)
    now = json.loads(NoiseKeys.path_of(tmp_path / "ledger").read_text())
    assert [first for first, _ in now["noise"]] == [0, 7]
    assert now["noise"][0] == keys["noise"][0]
    assert now["noise"][1][1] != keys["noise"][0][1]
    assert now["sampling"] == keys["sampling"]  # every record keeps its place
    loop.train(run)
    run.close()
    assert steps_of(tmp_path / "ledger") == [(0, "correlated-run"), *((step, "free") for step in range(1, 3 * EPOCH))]
    assert run.spent().certified.epsilon == run.plan.certificate().epsilon


def test_records_keep_their_places_after_a_resume(tmp_path: Path) -> None:
    run = begin(BINS, tmp_path / "ledger", seed=1)
    first = [batch.tolist() for batch in BINS.batches(60, run.plan.horizon, run._sampler.stream, 0)]
    go(run, 3)
    run.save(tmp_path / "state.pt")
    run.ledger.close()
    run = resume(tmp_path)
    assert [batch.tolist() for batch in BINS.batches(60, run.plan.horizon, run._sampler.stream, 3)] == first[3:]


def test_a_charged_step_that_crashed_is_never_released(tmp_path: Path) -> None:
    run = begin(BINS, tmp_path / "ledger", seed=1)
    run.save(tmp_path / "state.pt")
    go(run, 2)
    run._ledger.append(run.plan.event_at(2), step=2)  # charged, and then the process ended
    run.ledger.close()
    assert resume(tmp_path).progress.step == 3


def test_lost_keys_begin_a_new_factorisation_that_is_charged(tmp_path: Path) -> None:
    crash(tmp_path)
    NoiseKeys.path_of(tmp_path / "ledger").unlink()
    run = resume(tmp_path)
    assert run.progress.step == 8  # the line of the charge takes a step
    assert not noise_of(run)
    assert run.ledger.entries[7].event == run.plan.event_at(0)
    loop.train(run)
    whole = run.plan.charge()
    assert run.ledger.charge().certified == (whole * 2).certified
    assert run.spent().certified.epsilon > run.plan.certificate().epsilon


@pytest.mark.parametrize("damage", [b"", b"{", b'{"ledger": "another"}'])
def test_damaged_keys_are_lost_keys(tmp_path: Path, damage: bytes) -> None:
    crash(tmp_path)
    NoiseKeys.path_of(tmp_path / "ledger").write_bytes(damage)
    assert len(resume(tmp_path).ledger.charge().certified) == 1
    assert read(tmp_path / "ledger").charge().certified[0][1] == 2


def test_keys_of_another_run_are_lost_keys(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        crash(tmp_path / name)
    shutil.copy(NoiseKeys.path_of(tmp_path / "one" / "ledger"), NoiseKeys.path_of(tmp_path / "two" / "ledger"))
    run = resume(tmp_path / "two")
    assert run.ledger.charge().certified[0][1] == 2


def test_a_backup_of_the_keys_that_lacks_the_latest_is_as_good_as_none(tmp_path: Path) -> None:
    crash(tmp_path)
    file = NoiseKeys.path_of(tmp_path / "ledger")
    old = file.read_text()
    run = resume(tmp_path)
    go(run, 2)
    run.ledger.close()
    current = file.read_text()
    file.write_text(old)
    run = resume(tmp_path, seed=3)
    assert run.ledger.charge().certified[0][1] == 2
    assert run.progress.step == 10
    run.ledger.close()
    file.write_text(current)  # and keys from before a restart are not those of the new factorisation
    run = resume(tmp_path, seed=4)
    assert run.ledger.charge().certified[0][1] == 2
    assert run.progress.step == 10
    go(run, 1)
    run.ledger.close()
    file.write_text(current)
    assert resume(tmp_path, seed=5).ledger.charge().certified[0][1] == 3


def test_a_ledger_that_was_cut_is_refused(tmp_path: Path) -> None:
    crash(tmp_path)
    ledger = tmp_path / "ledger"
    whole = ledger.read_bytes().splitlines(keepends=True)
    resume(tmp_path).ledger.close()
    ledger.write_bytes(b"".join(whole[:-1]))
    with pytest.raises(Refused, match="the ledger of the run with all of its lines, got step 6, although"):
        resume(tmp_path, seed=3)


def test_a_run_that_is_copied_and_resumed_twice_repeats_no_noise(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    crash(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    drawn = []
    for seed, name in enumerate(("one", "two"), 5):
        run = resume(tmp_path / name, seed=seed)
        go(run, 1)
        drawn.append(noise_of(run))
    assert not torch.equal(drawn[0][0], drawn[1][0])  # the step after the copy
    assert torch.equal(drawn[0][1], drawn[1][1])  # the step before it


def test_the_keys_are_private_and_end_with_the_run(tmp_path: Path) -> None:
    run = begin(BINS, tmp_path / "ledger", seed=1)
    file = NoiseKeys.path_of(tmp_path / "ledger")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    go(run, 1)
    run.save(tmp_path / "state.pt")
    secrets = json.loads(file.read_text())
    for published in (tmp_path / "ledger", tmp_path / "state.pt"):
        content = published.read_bytes()
        for key in (secrets["sampling"], secrets["noise"][0][1]):
            assert key.encode() not in content
            assert bytes.fromhex(key) not in content
    loop.train(run)
    run.close()
    assert not file.exists()


def test_the_digests_of_a_fixed_order_survive_a_crash(tmp_path: Path) -> None:
    run = begin(FIXED, tmp_path / "ledger", seed=1)
    walk(run, loader(), most=2)
    run.save(tmp_path / "state.pt")
    run.ledger.close()
    run = begin(FIXED, tmp_path / "ledger", resume=tmp_path / "state.pt", seed=2)
    with pytest.raises(Refused, match="batch 0 of the first pass again"):
        walk(run, loader(shuffle=True))
    run.ledger.close()
    run = begin(FIXED, tmp_path / "ledger", resume=tmp_path / "state.pt", seed=3)
    at = run.progress.step
    used = walk(run, loader())
    assert torch.equal(torch.cat(used), loop.data().tensors[0][at * loop.BATCH :])


def test_a_resumed_reshuffled_run_leaves_out_the_rest_of_the_epoch(tmp_path: Path) -> None:
    run = begin(SHUFFLED, tmp_path / "ledger", seed=1)
    walk(run, loader(shuffle=True), most=2)
    run.save(tmp_path / "state.pt")
    run.ledger.close()
    run = begin(SHUFFLED, tmp_path / "ledger", resume=tmp_path / "state.pt", seed=2)
    assert len(torch.cat(walk(run, loader(shuffle=True)))) == loop.RECORDS
    assert run.progress.step == 2 * EPOCH
    run.ledger.close()  # a resume after steps were left out does not return to them
    run = begin(SHUFFLED, tmp_path / "ledger", resume=tmp_path / "state.pt", seed=3)
    assert run.progress.step == 2 * EPOCH


def test_ledgers_of_two_runs_compose(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run = begin(BINS, tmp_path / name)
        go(run, 1)
        run.close()
    both = merge([tmp_path / "one", tmp_path / "two"])
    assert both.certified == (run.plan.charge() * 2).certified  # each counts as a whole run, after one step


def test_without_a_ledger_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop.train(begin(BINS))
    assert not list(tmp_path.iterdir())


def test_noise_is_replayed_in_one_place_only() -> None:
    """The audit of replays: keys of streams are read and used again in one module."""
    source = Path(discreet.__file__).parent
    users = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "secret_key" in path.read_text() or "Stream(bytes" in path.read_text()
    }
    assert users == {"core/streams.py", "training/noise_keys.py"}
    public = {path.name for path in source.rglob("*.py") if ".with_mask(" in path.read_text()}
    assert public == {"round_task.py"}  # clients draw masks from a public key
    repeated = {path.name for path in source.rglob("*.py") if ".again(" in path.read_text()}
    assert repeated == {"participation.py", "noise_keys.py", "streams.py", "correlated.py"}  # the last is an attack
    one = Stream(bytes(32), name="sampling", replayable=False)
    assert one.again(3).uniform64(4).tolist() == one.again(3).uniform64(4).tolist()
    assert one.again(3).uniform64(4).tolist() != one.at(3).uniform64(4).tolist()
