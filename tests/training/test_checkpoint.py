"""Checkpoints: safe, whole, and never stronger than the ledger."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import loop
from discreet import methods
from discreet.accounting.charges import Charge
from discreet.accounting.ledger import merge, read
from discreet.core.check import Damaged, Refused
from discreet.core.randomness import SEEDED
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Recipe
from discreet.stages.sampling import BallsInBins, OwnLoader
from discreet.stages.schedule import Table
from discreet.stages.values import PrivateState
from discreet.training import checkpoint
from discreet.training.checkpoint import Checkpoint
from discreet.training.private import Private


class Place:
    """Where a run keeps its ledger and its checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.ledger, self.state = directory / "ledger.jsonl", directory / "state.pt"

    def begin(self, saved_at: int = 3, stopped_at: int = 5, **options: Any) -> Private:
        """A run that saved once, went on, and stopped."""
        run = loop.private(ledger=self.ledger, **options)
        for x, y in run:
            run.step(loop.losses(run.model, x, y))
            if run.progress.step == saved_at:
                run.save(self.state)
            if run.progress.step == stopped_at:
                break
        run.close()
        return run

    def resume(self, seed: int = 8, **options: Any) -> Private:
        return loop.private(ledger=self.ledger, resume=self.state, seed=seed, **options)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# Going on -------------------------------------------------------------------------------------------------


def test_charged_steps_are_not_run_again(place: Place) -> None:
    place.begin(saved_at=3, stopped_at=5)
    run = place.resume()
    assert (run.progress.step, run.updates) == (5, 3)
    assert loop.train(run) == loop.STEPS - 5
    assert run.ledger.charge().certified == run.plan.charge().certified
    assert [entry.step for entry in run.ledger.entries] == list(range(loop.STEPS))
    assert run.spent().certified.epsilon == run.plan.certificate().epsilon
    assert run.updates == loop.STEPS - 2  # two released steps were lost, and stay paid for


def test_everything_that_was_released_comes_back(place: Place) -> None:
    net = loop.model()
    run = loop.private(net, loop.plan(methods.adaptive_quantile()), ledger=place.ledger, average=0.7)
    loop.train(run, most=4)
    run.save(place.state)
    run.close()
    again = loop.private(
        nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)),
        run.plan,
        ledger=place.ledger,
        resume=place.state,
        average=0.7,
        seed=8,
    )
    assert torch.equal(loop.weights(again.model), loop.weights(net))
    assert again.progress == run.progress
    assert again.progress.scale != 1.0
    with run.averaged(), again.averaged():
        assert torch.equal(loop.weights(again.model), loop.weights(net))
    buffers = [state["momentum_buffer"] for state in run.optimizer.state.values()]
    restored = [state["momentum_buffer"] for state in again.optimizer.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(buffers, restored, strict=True))


def test_schedulers_come_back(place: Place) -> None:
    runs = []
    for resume in (None, place.state):
        net = loop.model()
        optimizer = loop.sgd(net.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        run = loop.private(
            net,
            optimizer=lambda _, optimizer=optimizer: optimizer,
            schedulers=[scheduler],
            ledger=place.ledger,
            resume=resume,
            seed=8 if resume else 7,
        )
        if resume is None:
            for x, y in run:
                if run.step(loop.losses(net, x, y)):
                    scheduler.step()
                if run.progress.step == 3:
                    break
            run.save(place.state)
        run.close()
        runs.append((scheduler, optimizer))
    (first, _), (second, optimizer) = runs
    assert second.state_dict() == first.state_dict()
    assert optimizer.param_groups[0]["lr"] == 0.25
    with pytest.raises(Refused, match="number of schedulers"):
        place.resume(seed=9)


def test_a_finished_run_has_nothing_left(place: Place) -> None:
    place.begin(saved_at=3, stopped_at=loop.STEPS)
    run = place.resume()
    before = loop.weights(run.model)
    assert list(run) == []
    assert torch.equal(loop.weights(run.model), before)


def test_balls_in_bins_goes_on_at_the_next_epoch(place: Place) -> None:
    recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=BallsInBins())
    which = loop.plan(recipe, epochs=3)  # of 5 steps
    place.begin(saved_at=2, stopped_at=3, which=which)
    run = place.resume(which=which)
    assert run.progress.step == 5
    loop.train(run)
    assert run.ledger.charge().certified == which.charge().certified
    assert (run.ledger.length, run.progress.step, run.updates) == (3, 15, 12)


def test_a_run_may_be_resumed_many_times(place: Place) -> None:
    place.begin(saved_at=1, stopped_at=2)
    for seed, stop in ((8, 4), (9, 5), (10, 8)):
        run = place.resume(seed=seed)
        loop.train(run, most=stop)
        run.save(place.state)
        run.close()
    assert read(place.ledger).charge().certified == run.plan.charge().certified
    notes = [entry.note for entry in read(place.ledger).entries if "noise" in entry.note]
    assert len(notes) == len({note["noise"] for note in notes}) == len({note["sampling"] for note in notes}) == 4


def test_the_control_a_resume_that_replays_steps_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that all of this guards against: going on at the checkpoint's step instead of the ledger's."""
    place.begin(saved_at=3, stopped_at=5)
    monkeypatch.setattr(checkpoint, "next_step", lambda _, ledger: ledger.length - 2)
    run = place.resume()
    before = loop.weights(run.model)
    with pytest.raises(Refused, match="a crashed step stays charged and is not run again"):
        loop.train(run)
    assert torch.equal(loop.weights(run.model), before)
    assert run.ledger.length == 5


# Fresh keys -----------------------------------------------------------------------------------------------


def test_an_old_key_is_refused(place: Place) -> None:
    place.begin()  # seed 7
    with pytest.raises(Refused, match="fresh keys"):
        place.resume(seed=7)
    assert place.resume(seed=8).progress.step == 5


def test_by_default_a_resumed_run_is_keyed_by_the_operating_system(place: Place) -> None:
    begun = place.begin()
    net = loop.model()
    run = Private(net, loop.sgd(net.parameters()), loop.plan(), loop.data(), ledger=place.ledger, resume=place.state)
    assert run.streams.statement == "keyed by the operating system"
    assert checkpoint.keys_of(run.streams, World()) != checkpoint.keys_of(begun.streams, World())


def test_no_randomness_is_stored(place: Place) -> None:
    run = place.begin()
    stored = place.state.read_bytes() + place.ledger.read_bytes()
    for stream in (run.streams.noise, run.streams.sampling):
        assert stream._key not in stored
        assert stream._key.hex().encode() not in stored


# Released iterates only -----------------------------------------------------------------------------------


def test_an_open_batch_leaves_no_trace(place: Place) -> None:
    """The same checkpoint before a batch and in the middle of it: nothing of the records is in there."""
    run = loop.private(ledger=place.ledger, micro_batch=2)
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            run.save(place.state)
        elif place.state.exists():
            break
    before = place.state.read_bytes()
    run.save(place.state)
    assert place.state.read_bytes() == before


def test_hidden_state_cannot_be_stored(place: Place) -> None:
    run = loop.private(ledger=place.ledger)
    run.optimizer.state[next(run.model.parameters())]["error"] = PrivateState(torch.zeros(1))
    with pytest.raises(Refused, match="a PrivateState"):
        run.save(place.state)
    assert not place.state.exists()


# Refusals -------------------------------------------------------------------------------------------------


def test_another_plan_is_refused(place: Place) -> None:
    place.begin()
    with pytest.raises(Refused, match=r"Expected plan \w+, got \w+\. Remedy: resume with the settings"):
        place.resume(which=loop.plan(noise=1.4))


def test_another_relation_is_refused(place: Place) -> None:
    recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=OwnLoader())
    run = loop.private(which=loop.plan(recipe), dataset=None, ledger=place.ledger)
    run.save(place.state)
    run.close()
    other = recipe.using(relation=Neighbouring.REPLACE_ONE)
    with pytest.raises(Refused, match="Expected relation add/remove, got replace-one"):
        place.resume(which=loop.plan(other), dataset=None)


@pytest.mark.parametrize(
    ("net", "match"),
    [
        (nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 2)), r"0\.bias \[6\], got \[7\]"),
        (nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), "no such tensor"),
    ],
)
def test_another_model_is_refused(place: Place, net: nn.Module, match: str) -> None:
    place.begin()
    with pytest.raises(Refused, match=match):
        place.resume(net=net)


def test_another_optimizer_or_average_is_refused(place: Place) -> None:
    place.begin()
    with pytest.raises(Refused, match="Expected optimizer SGD, got Adam"):
        place.resume(optimizer=torch.optim.Adam)
    with pytest.raises(Refused, match="groups"):
        place.resume(optimizer=lambda p: torch.optim.SGD([{"params": [q]} for q in p], lr=0.1))
    with pytest.raises(Refused, match=r"Expected average None, got 0\.9"):
        place.resume(average=0.9)


def test_a_checkpoint_without_its_ledger_is_refused(place: Place) -> None:
    place.begin()
    with pytest.raises(Refused, match="pass ledger="):
        loop.private(resume=place.state)
    place.ledger.unlink()
    with pytest.raises(Refused, match="a checkpoint without its ledger"):
        place.resume()
    assert not place.ledger.exists()


def test_a_ledger_that_was_cut_is_refused(place: Place) -> None:
    place.begin(saved_at=3, stopped_at=5)
    place.ledger.write_text("\n".join(loop.lines(place.ledger)[:3]) + "\n", encoding="utf-8")
    with pytest.raises(Refused, match="at least 3 charges, got 2"):
        place.resume()


def test_the_ledger_of_another_run_is_refused(place: Place, tmp_path: Path) -> None:
    place.begin()
    other = tmp_path / "other"
    other.mkdir()
    Place(other).begin(seed=1)
    place.ledger.write_bytes(Place(other).ledger.read_bytes())
    with pytest.raises(Refused, match="digest after 3 charges"):
        place.resume()


def test_a_ledger_of_another_plan_is_refused(place: Place, tmp_path: Path) -> None:
    place.begin()
    other = tmp_path / "other"
    other.mkdir()
    Place(other).begin(which=loop.plan(noise=1.4))
    place.ledger.write_bytes(Place(other).ledger.read_bytes())
    with pytest.raises(Refused, match="the ledger's plan"):
        place.resume()


def test_an_edited_ledger_is_refused(place: Place) -> None:
    place.begin()
    text = place.ledger.read_text(encoding="utf-8").replace("1.5", "9.5", 1)
    place.ledger.write_text(text, encoding="utf-8")
    with pytest.raises(Refused, match="the file was changed"):
        place.resume()


def test_two_runs_do_not_share_a_ledger(place: Place) -> None:
    run = loop.private(ledger=place.ledger)
    run.save(place.state)
    with pytest.raises(Refused, match="another writer"):
        place.resume()
    with pytest.raises(Refused, match="a new file"):
        loop.private(ledger=place.ledger)


# Crashes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 0.5, -1])
def test_a_torn_last_line_is_charged(place: Place, kept: float) -> None:
    """Cut inside, in the middle of, or one byte before the end of the last line: the step is spent."""
    factors = tuple(1 + 0.1 * step for step in range(loop.STEPS))
    recipe = methods.dp_sgd(clip=0.5).using(schedule=Table(factors))
    which = loop.plan(recipe)
    place.begin(saved_at=3, stopped_at=5, which=which)
    whole = place.ledger.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    size = {1: 1, 0.5: (len(whole) - start) // 2, -1: len(whole) - start - 1}[kept]
    place.ledger.write_bytes(whole[: start + size])
    run = place.resume(which=which)
    assert run.progress.step == 5
    loop.train(run)
    # The torn step is charged with the event of its own step, not with that of another.
    assert run.ledger.charge().certified == which.charge().certified


def test_a_crash_inside_a_save_leaves_the_old_checkpoint(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run = loop.private(ledger=place.ledger)
    loop.train(run, most=2)
    run.save(place.state)
    before = place.state.read_bytes()
    loop.train(run, most=4)

    def crash(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(OSError, match="no space"):
            run.save(place.state)
    assert place.state.read_bytes() == before
    run.save(place.state)
    assert Checkpoint.read(place.state).updates == 4


def test_a_checkpoint_is_on_the_disk_before_it_takes_its_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("sync"), sync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b))[1])
    run = loop.private(ledger=place.ledger)
    done.clear()
    run.save(place.state)
    assert done == ["sync", "replace", "sync"]  # the file, its name, and the directory that holds the name


@pytest.mark.parametrize("damage", ["empty", "half", "text"])
def test_half_a_checkpoint_is_refused(place: Place, damage: str) -> None:
    place.begin()
    whole = place.state.read_bytes()
    place.state.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "text": b"hello"}[damage])
    with pytest.raises(Refused, match="a whole checkpoint"):
        place.resume()


def test_a_checkpoint_that_is_not_there_is_refused(place: Place) -> None:
    place.begin()
    place.state.unlink()
    with pytest.raises(Refused, match="no file"):
        place.resume()


# Safety ---------------------------------------------------------------------------------------------------


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("wrap", [lambda bomb: bomb, lambda bomb: {"format": checkpoint.FORMAT, "plan": bomb}])
def test_a_checkpoint_that_holds_code_is_refused_and_not_run(
    place: Place, wrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.begin()
    monkeypatch.chdir(place.state.parent)
    torch.save(wrap(Bomb()), place.state)
    with pytest.raises(Refused, match="a whole checkpoint"):
        place.resume()
    assert not Path("exploded").exists()
    # The control: an unsafe load would have run it.
    torch.load(place.state, weights_only=False)
    assert Path("exploded").exists()


def test_a_plain_pickle_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.begin()
    monkeypatch.chdir(place.state.parent)
    place.state.write_bytes(pickle.dumps(Bomb(), protocol=2))
    with pytest.raises(Refused, match="a whole checkpoint"):
        place.resume()
    assert not Path("exploded").exists()


@pytest.mark.parametrize("change", [lambda s: s.pop("charges"), lambda s: s.update(format="other 2")])
def test_another_format_is_refused(place: Place, change: Any) -> None:
    place.begin()
    state = torch.load(place.state, weights_only=True)
    change(state)
    with open(place.state, "wb") as file:
        checkpoint.save_sealed(state, file)
    with pytest.raises(Refused, match="version that wrote it"):
        place.resume()


def test_what_a_checkpoint_holds(place: Place) -> None:
    place.begin()
    state = torch.load(place.state, weights_only=True)
    assert set(state) == {
        *("format", "plan", "relation", "charges", "digest", "updates", "scale", "memory", "model"),
        *("optimizer_kind", "optimizer", "average", "schedulers", "hidden", "shards"),
    }
    assert state["relation"] == "add/remove"
    assert state["digest"] == json.loads(loop.lines(place.ledger)[3])["digest"]
    assert (Charge.of(loop.plan().event_at(0)) * 5).certified == read(place.ledger).charge().certified


def test_streams_of_two_runs_have_different_fingerprints() -> None:
    runs = [
        checkpoint.keys_of(streams, World()) for streams in (Streams.from_os(), Streams.from_os(), Streams.seeded(1))
    ]
    assert len({key for run in runs for key in run.values()}) == 6


def test_a_seeded_run_stays_seeded_if_its_only_charge_is_damaged(place: Place) -> None:
    run = loop.private(ledger=place.ledger)
    run.save(place.state)
    header = place.ledger.stat().st_size
    loop.train(run, most=1)
    run.close()
    os.truncate(place.ledger, header + 5)
    again = loop.private(ledger=place.ledger, resume=place.state, streams=Streams.from_os())
    assert again.spent().seeded
    loop.train(again, most=2)
    again.close()
    assert again.spent().statement == SEEDED
    assert merge([place.ledger]).seeded


def test_a_ledger_removed_under_a_run_stops_the_release(place: Place) -> None:
    run = loop.private(ledger=place.ledger)
    loop.train(run, most=1)
    before = loop.weights(run.model)
    place.ledger.unlink()
    with pytest.raises(Damaged, match="removed or moved while the run"):
        loop.train(run)
    assert torch.equal(loop.weights(run.model), before)


# Ctrl-C ---------------------------------------------------------------------------------------------------


def _interrupted_step(run: Private, function: str, line: int) -> bool:
    """Take the first step with Ctrl-C before the given line of a function; False if it runs fewer."""
    seen = 0

    def tracer(frame: Any, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_qualname != function:
            return None
        seen += event == "line"
        if event == "line" and seen == line:
            raise KeyboardInterrupt
        return tracer

    batches = iter(run)
    x, y = loop.last_of_step(run, batches)
    losses = loop.losses(run.model, x, y)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        run.step(losses)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        torch.set_grad_enabled(True)  # Ctrl-C in front of the end of a `with` block skips it
    return False


@pytest.mark.parametrize("function", ["Ledger._add", "Ledger._keep", "PrivateStep._release", "Parameters.update"])
def test_no_checkpoint_of_a_step_that_was_cut_off(tmp_path: Path, function: str) -> None:
    """Wherever Ctrl-C comes: a checkpoint is refused, or it fits the ledger and the update is whole or not begun."""
    refused, line = 0, 1
    while True:
        place = Place(tmp_path)
        run = loop.private(ledger=place.ledger)
        begun = loop.weights(run.model)
        is_cut = _interrupted_step(run, function, line)
        if is_cut and not run.settled:
            refused += 1
            with pytest.raises(Refused, match="between updates"):
                run.save(place.state)
        elif is_cut:
            run.save(place.state)
            assert torch.equal(loop.weights(run.model), begun)
            Checkpoint.read(place.state).check_ledger(read(place.ledger))
        run.close()
        place.ledger.unlink(missing_ok=True)
        if not is_cut:
            break
        line += 1
    assert refused
