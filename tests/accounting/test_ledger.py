"""The ledger: on the disk before the release, every change seen, every torn line charged."""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discreet.accounting import ledger as module
from discreet.accounting.charges import Charge
from discreet.accounting.events import Event, Free, Gaussian, NonPrivate, PoissonSampled, Queries
from discreet.accounting.ledger import FIXED_PLANS, Ledger, merge, read
from discreet.core.check import Damaged, Refused
from discreet.core.randomness import SEEDED
from discreet.core.relation import Neighbouring
from timing import times_as_long

HEADER = {"relation": Neighbouring.ADD_REMOVE, "delta": 1e-5, "plan": "ab" * 32, "method": "dp-sgd"}
STEP = PoissonSampled(rate=0.01, event=Gaussian(noise=1.1))
EVENTS: list[Event] = [
    STEP,
    PoissonSampled(rate=0.01, event=Gaussian(noise=1.0)),
    Queries((Gaussian(1.2), Gaussian(4.0))),
    Gaussian(noise=3),
    Free(),
    NonPrivate(),
]
FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace fsync: tests of many lines need no disk, and one test counts the calls."""
    calls: list[int] = []
    monkeypatch.setattr(module.os, "fsync", calls.append)
    return calls


def resume(path: Path, planned: Event = STEP) -> Ledger:
    return Ledger.resume(path, planned=lambda record: planned)


def write(path: Path, events: list[Event], header: dict[str, Any] = HEADER) -> Path:
    path.unlink(missing_ok=True)
    with Ledger.create(path, header) as ledger:
        for step, event in enumerate(events):
            ledger.append(event, step=step)
    return path


# Writing --------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, HEADER) as ledger:
        ledger.append(STEP, step=0, note={"epoch": 1, "factors": (1.0, 0.5)})
        ledger.append(STEP, step=1)
        ledger.append(Gaussian(noise=2.0), step=1)
        assert ledger.charge() == Charge(((STEP, 2), (Gaussian(noise=2.0), 1)))
        written = (ledger.entries, ledger.digest, ledger.length, ledger.charge(), ledger.header)
    record = read(path)
    assert written == (record.entries, record.digest, record.length, record.charge(), record.header)
    assert record.length == 3
    assert record.relation is Neighbouring.ADD_REMOVE
    assert record.header["method"] == "dp-sgd"
    assert [entry.step for entry in record.entries] == [0, 1, 1]
    assert record.entries[0].note == {"epoch": 1, "factors": [1.0, 0.5]}
    assert [json.loads(line).keys() for line in path.read_bytes().splitlines()] == [{"body", "digest"}] * 4


def test_free_events_are_kept_and_cost_nothing(tmp_path: Path) -> None:
    record = read(write(tmp_path / "a", [Free(), Free()]))
    assert record.length == 2
    assert record.charge() == Charge()


def test_assumptions_of_the_header_go_into_the_charge(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [STEP], {**HEADER, "assumptions": ["the size of the data is public"]})
    assert read(path).charge().assumptions == ("the size of the data is public",)
    assert merge([path]).assumptions == ("the size of the data is public",)


def test_a_line_is_on_the_disk_before_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_disk: list[int]
) -> None:
    path = tmp_path / "a"
    ledger = Ledger.create(path, HEADER)
    assert len(no_disk) == 2  # the header, and the directory that names the file
    seen: list[tuple[str, int]] = []
    real = os.write

    def watched(descriptor: int, line: bytes) -> int:
        seen.append(("write", len(path.read_bytes())))
        return real(descriptor, line)

    monkeypatch.setattr(module.os, "write", watched)
    monkeypatch.setattr(module.os, "fsync", lambda _: seen.append(("sync", len(path.read_bytes()))))
    before = len(path.read_bytes())
    ledger.append(STEP, step=0)
    assert seen == [("write", before), ("sync", len(path.read_bytes()))]
    assert read(path).length == 1  # while the ledger is still open: nothing waits in a buffer


@pytest.mark.parametrize("fault", ["sync", "write", "short"])
def test_a_failed_write_breaks_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    ledger = Ledger.create(tmp_path / "a", HEADER)
    real = os.write

    def fail(*_: object) -> int:
        raise OSError("no space")

    if fault == "short":
        monkeypatch.setattr(module.os, "write", lambda fd, line: real(fd, line[:10]))
    else:
        monkeypatch.setattr(module.os, "fsync" if fault == "sync" else "write", fail)
    with pytest.raises(OSError, match=r"no space|only 10 of"):
        ledger.append(STEP, step=0)
    monkeypatch.undo()
    with pytest.raises(Refused, match="closed or broken"):
        ledger.append(STEP, step=0)
    assert ledger.length == 0
    ledger.close()
    assert resume(tmp_path / "a").length == (0 if fault == "write" else 1)


def test_a_long_ledger_is_as_fast_as_a_short_one(tmp_path: Path) -> None:
    """Both appending and the total: neither reads the earlier lines again."""
    with Ledger.create(tmp_path / "long", HEADER) as long, Ledger.create(tmp_path / "short", HEADER) as short:
        for step in range(2000):
            long.append(STEP, step=step)
        short.append(STEP, step=0)

        def append(ledger: Ledger) -> None:
            for _ in range(20):
                ledger.append(STEP, step=2000, note={"epoch": 3})

        def total(ledger: Ledger) -> None:
            for _ in range(20):
                assert ledger.charge().certified == ((STEP, ledger.length),)

        assert times_as_long(lambda _: append(long), lambda _: append(short), repeats=5) < 10
        assert times_as_long(lambda _: total(long), lambda _: total(short), repeats=5) < 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relation": "add"}, "relation to be add/remove or replace-one"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"plan": 5}, "plan to be a digest"),
        ({"extra": float("nan")}, "plain JSON"),
        ({"extra": object()}, "plain JSON"),
        ({"assumptions": "text"}, "list of sentences"),
    ],
)
def test_bad_headers_leave_no_file(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        Ledger.create(tmp_path / "a", {**HEADER, **change})
    for name in ("relation", "delta", "plan"):
        with pytest.raises(Refused, match=f"no {name}"):
            Ledger.create(tmp_path / "a", {key: value for key, value in HEADER.items() if key != name})
    assert not (tmp_path / "a").exists()


def test_bad_charges_are_refused_and_write_nothing(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a", HEADER)
    ledger.append(STEP, step=4)
    before = (tmp_path / "a").read_bytes()
    for bad in ({"step": 3}, {"step": -1}, {"step": 1.5}, {"step": 5, "note": {"loss": float("inf")}}):
        with pytest.raises(Refused):
            ledger.append(STEP, **bad)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="an event"):
        ledger.append("gaussian", step=5)  # type: ignore[arg-type]
    assert (tmp_path / "a").read_bytes() == before
    ledger.append(STEP, step=4)
    ledger.close()
    ledger.close()
    with pytest.raises(Refused, match="closed"):
        ledger.append(STEP, step=5)


def test_a_ledger_in_memory_counts_like_a_file(tmp_path: Path) -> None:
    before = list(tmp_path.iterdir())
    with Ledger.in_memory(HEADER) as ledger, Ledger.create(tmp_path / "a", HEADER) as kept:
        for step, event in enumerate(EVENTS):
            ledger.append(event, step=step)
            kept.append(event, step=step)
        assert ledger.charge() == kept.charge()
        assert ledger.length == kept.length
        assert ledger.digest != kept.digest  # two ledgers, not one
        with pytest.raises(Refused, match="step >="):
            ledger.append(STEP, step=0)
    assert [path.name for path in tmp_path.iterdir() if path not in before] == ["a"]
    with pytest.raises(Refused, match="closed"):
        ledger.append(STEP, step=9)
    with pytest.raises(Refused, match="delta"):
        Ledger.in_memory({**HEADER, "delta": 2})


# One writer -----------------------------------------------------------------------------------------------


def test_a_ledger_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "a"
    ledger = Ledger.create(path, HEADER)
    with pytest.raises(Refused, match="one writer"):
        resume(path)
    with pytest.raises(Refused, match="which exists"):
        Ledger.create(path, HEADER)
    ledger.close()
    with resume(path) as again:
        again.append(STEP, step=0)
    assert read(path).length == 1


def _other(path: Path, answer: Any) -> None:
    try:
        resume(path)
        answer.put("opened")
    except Refused as error:
        answer.put(str(error))


def test_another_process_cannot_open_a_held_ledger(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    with Ledger.create(tmp_path / "a", HEADER):
        process = context.Process(target=_other, args=(tmp_path / "a", answer))
        process.start()
        assert "one writer" in answer.get(timeout=60)
        process.join()


def test_a_forked_process_cannot_append(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a", HEADER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            ledger.append(STEP, step=0)
            os._exit(1)
        except Refused:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ledger.append(STEP, step=0)
    assert read(tmp_path / "a").length == 1


# Reading what was changed -----------------------------------------------------------------------------------


@FAST
@given(data=st.data())
def test_any_single_byte_edit_is_seen(tmp_path: Path, data: st.DataObject) -> None:
    events = data.draw(st.lists(st.sampled_from(EVENTS), max_size=4))
    path = write(tmp_path / "a", events)
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != content[place]))
    for changed in (
        content[:place] + bytes([byte]) + content[place + 1 :],
        content[:place] + content[place + 1 :],
        content[:place] + bytes([byte]) + content[place:],
    ):
        path.write_bytes(changed)
        with pytest.raises(Refused, match=r"Expected line [0-9]+ of .*Remedy"):
            read(path)
    path.write_bytes(content)
    assert read(path).length == len(events)


def test_every_byte_of_a_small_ledger_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [STEP, Gaussian(noise=3.0)])
    content = path.read_bytes()
    for place, old in enumerate(content):
        line = 1 + content[:place].count(b"\n")
        path.write_bytes(content[:place] + bytes([old ^ 1]) + content[place + 1 :])
        with pytest.raises(Refused, match=r"Expected line [0-9]+ of") as caught:
            read(path)
        assert f"line {line} of" in str(caught.value)


def test_another_text_of_the_same_values_is_seen(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [STEP])
    content = path.read_bytes()
    texts = [content[:place] + b" " + content[place:] for place in range(len(content) + 1)]
    texts += [content.replace(b"1e-05", other) for other in (b"1E-05", b"1e-5", b"0.00001")]
    texts += [content.replace(b'{"body"', b'{"body":0,"body"'), content.replace(b'"step":0', b'"step":-0')]
    texts += [content.replace(b"\n", b"\r\n"), content + b"\n", b"\n" + content, b"\xef\xbb\xbf" + content]
    for text in texts:
        assert text != content
        path.write_bytes(text)
        with pytest.raises(Refused, match=r"Expected line [0-9]+ of"):
            read(path)


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ([0, 2, 1, 3], 2),  # reordered
        ([0, 1, 1, 2, 3], 3),  # duplicated
        ([0, 2, 3], 2),  # a line lost
        ([1, 2, 3], 1),  # the header lost
        ([0, 0, 1, 2, 3], 2),  # the header twice
    ],
)
def test_lines_that_moved_are_named(tmp_path: Path, order: list[int], line: int) -> None:
    path = write(tmp_path / "a", [STEP, Gaussian(noise=1.0), Gaussian(noise=2.0)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[i] for i in order))
    with pytest.raises(Refused, match=f"line {line} of .*whole plan"):
        read(path)


def test_lines_of_another_ledger_do_not_fit(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a", [STEP, STEP]), write(tmp_path / "b", [STEP, STEP])
    mixed = one.read_bytes().splitlines(keepends=True)[:2] + other.read_bytes().splitlines(keepends=True)[2:]
    one.write_bytes(b"".join(mixed))
    with pytest.raises(Refused, match="line 3 of"):
        read(one)


def test_a_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    for act in (read, resume):
        with pytest.raises(Refused, match="an existing ledger"):
            act(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(Refused, match=r"line 1 of .* whole header"):
        read(tmp_path / "empty")


def test_an_unknown_event_or_format_is_refused_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [STEP])
    head, _ = path.read_bytes().splitlines(keepends=True)
    body, digest = json.loads(head)["body"], json.loads(head)["digest"]
    for event in ({"kind": "magic"}, {"kind": "gaussian"}, {"kind": "gaussian", "noise": -1.0}, 5):
        path.write_bytes(head + module.chain.seal(digest, {"step": 0, "event": event, "note": {}})[1])
        with pytest.raises(Refused, match=r"line 2 of .* known event"):
            read(path)
    for extra in ({"step": -1}, {"step": "0"}):
        path.write_bytes(head + module.chain.seal(digest, {"step": 0, "event": STEP.to_json(), "note": {}, **extra})[1])
        with pytest.raises(Refused, match="line 2 of"):
            read(path)
    path.write_bytes(module.chain.seal("0" * 64, {**body, "format": 2})[1])
    with pytest.raises(Refused, match=r"format 1.*version"):
        read(path)


# Cut at the end ---------------------------------------------------------------------------------------------


@FAST
@given(cut=st.integers(1, 10_000), count=st.integers(0, 3))
def test_a_torn_line_is_refused_by_readers_and_charged_by_resume(tmp_path: Path, cut: int, count: int) -> None:
    path = write(tmp_path / "a", [STEP] * (count + 1))
    content = path.read_bytes()
    start = content[:-1].rindex(b"\n") + 1
    path.write_bytes(content[: start + 1 + cut % (len(content) - start - 1)])
    with pytest.raises(Refused, match=f"line {count + 2} of .* to end, got a torn line.*Ledger.resume"):
        read(path)
    torn = path.read_bytes()
    planned = Gaussian(noise=0.5)
    with resume(path, planned) as ledger:
        assert ledger.length == count + 1
        charged = ledger.entries[-1].event
        ledger.append(STEP, step=count + 5)
        expected = (ledger.entries, ledger.digest, ledger.charge())
    assert path.read_bytes().startswith(torn)  # nothing is erased
    record = read(path)
    assert (record.entries, record.digest, record.charge()) == expected
    whole = torn == content[:-1]  # only the end of the line is missing: it counts as what it says
    assert charged == (STEP if whole else planned)
    assert (record.entries[count].torn is None) == whole
    with resume(path, planned) as again:
        assert again.length == count + 2  # a sound ledger is charged nothing more


def test_torn_twice_is_charged_twice_and_still_guarded(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [STEP])
    for times in (1, 2):
        with path.open("ab") as file:
            file.write(b'{"body":{"event":')
        with pytest.raises(Refused, match=f"line {2 * times + 1} of .* to end"):
            read(path)
        resume(path, NonPrivate()).close()
        assert read(path).charge() == Charge(((STEP, 1), (NonPrivate(), times)))
    content = path.read_bytes()
    for place, old in enumerate(content):
        path.write_bytes(content[:place] + bytes([old ^ 1]) + content[place + 1 :])
        with pytest.raises(Refused, match=r"Expected line [0-9]+ of"):
            read(path)
    lines = content.splitlines(keepends=True)
    for gone in range(2, len(lines) - 1):
        path.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
        with pytest.raises(Refused, match=r"Expected line [0-9]+ of"):
            read(path)


def test_a_torn_header_cannot_be_resumed(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(Refused, match=r"line 1 of .*took no step"):
        resume(path)
    path.write_bytes(b"")
    write(path, [])  # and the refused writers hold no lock


def test_resume_refuses_a_changed_ledger(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [STEP, STEP])
    path.write_bytes(path.read_bytes().replace(b'"step":0', b'"step":9'))
    with pytest.raises(Refused, match="line 2 of"):
        resume(path)


# Merging ----------------------------------------------------------------------------------------------------


@FAST
@given(events=st.lists(st.sampled_from(EVENTS), max_size=8), split=st.integers(0, 8))
def test_a_run_in_two_ledgers_costs_the_same(tmp_path: Path, events: list[Event], split: int) -> None:
    whole = write(tmp_path / "whole", events)
    parts = [write(tmp_path / "one", events[:split]), write(tmp_path / "two", events[split:])]
    assert merge(parts) == merge(parts[::-1])
    assert merge([whole]) == read(whole).charge() == Charge(tuple((event, 1) for event in events))
    assert merge(parts).certified == merge([whole]).certified
    assert merge(parts).assumptions == (FIXED_PLANS,)  # two runs compose if neither chose the other's plan
    if any(not isinstance(event, Free) for event in events):
        assert merge([*parts, whole]).certified != merge([whole]).certified


def test_merge_refuses_two_relations_and_the_same_ledger_twice(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [STEP])
    other = write(tmp_path / "other", [STEP], {**HEADER, "relation": "replace-one"})
    twin = write(tmp_path / "twin", [STEP])
    assert merge([one, twin]).certified == ((STEP, 2),)  # equal runs are still two runs
    with pytest.raises(Refused, match="relation add/remove, got replace-one"):
        merge([one, other])
    copied = tmp_path / "copied"
    copied.write_bytes(one.read_bytes())
    for same in ([one, copied], [one, one], [one, twin, copied]):
        with pytest.raises(Refused, match="a copy of"):
            merge(same)
    with resume(copied) as ledger:
        ledger.append(STEP, step=5)
    with pytest.raises(Refused, match="a copy of"):  # a copy that went on shares its past
        merge([one, copied])
    with pytest.raises(Refused, match="at least one ledger"):
        merge([])


# The file under a running run ------------------------------------------------------------------------------


def _removed(path: Path) -> None:
    path.unlink()


def _moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def _replaced(path: Path) -> None:
    content = path.read_bytes()
    path.rename(path.with_name("elsewhere"))
    path.write_bytes(content)


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _extended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


@pytest.mark.parametrize("act", [_removed, _moved, _replaced, _emptied, _cut, _extended])
def test_a_file_that_changed_under_its_writer_takes_no_charge(tmp_path: Path, act: Any) -> None:
    ledger = Ledger.create(tmp_path / "a", HEADER)
    ledger.append(STEP, step=0)
    act(tmp_path / "a")
    for _ in range(2):
        with pytest.raises(Damaged, match="as it was last written, got"):
            ledger.append(STEP, step=1)
    assert ledger.length == 1
    ledger.close()


def test_a_relative_path_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with Ledger.create("a", HEADER) as ledger:
        monkeypatch.chdir(tmp_path / "other")
        ledger.append(STEP, step=0)
    with resume(tmp_path / "a") as again:
        again.append(STEP, step=1)
    assert read(tmp_path / "a").length == 2


# How the run is keyed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0.0, 0.5, 0.97])
def test_a_damaged_first_charge_keeps_the_seed_of_the_header(tmp_path: Path, left: float) -> None:
    path = tmp_path / "a"
    write(path, [], {**HEADER, "seeded": True})
    whole = path.stat().st_size
    with resume(path) as ledger:
        ledger.append(STEP, step=0, note={"noise": "aa", "sampling": "bb", "seeded": True})
    os.truncate(path, whole + int(left * (path.stat().st_size - whole)))
    with resume(path) as ledger:
        assert ledger.charge().seeded
        ledger.append(STEP, step=1, note={"noise": "cc", "sampling": "dd", "seeded": False})
    assert read(path).charge().seeded
    assert merge([path, write(tmp_path / "b", [STEP])]).assumptions.count(SEEDED) == 1


def test_a_torn_charge_that_names_a_seed_keeps_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [STEP], {**HEADER, "seeded": False})
    with resume(path) as ledger:
        assert not ledger.charge().seeded
        ledger.append(STEP, step=1, note={"noise": "aa", "sampling": "bb", "seeded": True})
    os.truncate(path, path.stat().st_size - 20)
    with resume(path) as ledger:
        assert ledger.charge().seeded
    assert merge([path]).seeded


def test_how_a_run_is_keyed_is_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="seeded to be true or false"):
        Ledger.create(tmp_path / "a", {**HEADER, "seeded": "no"})
    assert not write(tmp_path / "b", [STEP]).read_bytes().count(b"seeded")  # as older versions wrote it
    assert not read(tmp_path / "b").charge().seeded
