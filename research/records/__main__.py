"""Records: `python -m research.records choose|run|sweep|page [NAME ...]`.

choose  try a small grid around each preset on a split of the training records
run     measure each record: five runs, a row without privacy, the majority class; rerun to resume
sweep   one run of each preset at epsilon 1, 2, 3 and 8, for `discreet presets`
page    write docs/records.md, results/records.svg and what `discreet presets` shows from results/records.json
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from discreet.core import check
from discreet.core.command import package_versions
from discreet.core.files import write_json, write_text
from research.records.page import figure, measured_presets, page
from research.records.records import RECORDS, RUNS, Record, sweep_of

FILE: Final = Path("results/records.json")
RUN_FOLDER: Final = Path("runs/records")
MEASURED: Final = Path("src/discreet/runs/measured.json")


def main() -> None:
    actions = {"choose": _choose, "run": _measure, "sweep": _sweep}
    action, *names = sys.argv[1:] or ["none"]
    known = {record.name: record for record in RECORDS}
    check.require(action in (*actions, "page"), f"one of {', '.join((*actions, 'page'))}", action, "see the docstring")
    unknown = [name for name in names if name not in known]
    check.require(not unknown, f"records of {', '.join(known)}", ", ".join(unknown), "choose some of these")
    for record in (known[name] for name in names or known):
        if action != "page":
            actions[action](record)
    write_text(Path("docs/records.md"), page(_read(), {record.name: record.beyond for record in RECORDS}))
    write_text(FILE.with_suffix(".svg"), figure(_read()))
    write_json(MEASURED, measured_presets(_read()))


def _choose(record: Record) -> None:
    from research.records.run import tried

    told = "four fifths of the training records train, every fifth scores"
    earlier = _read()["records"].get(record.name, {}).get("choice", {})
    trials = list(earlier.get("trials", ())) if earlier.get("revision", 1) == record.revision else []
    for trial in tried(record, trials):
        trials.append(trial)
        print(record.name, trial, flush=True)
        choice = {"split": told, "before": record.before, "revision": record.revision, "trials": trials}
        _write(record, {**_read()["records"].get(record.name, {}), "choice": choice})


def _measure(record: Record) -> None:
    from research.records.run import measured

    while True:
        known = _read()["records"]
        before = known.get(record.name, {})
        held = measured(record, before, RUN_FOLDER, known.values())
        if held == before:
            return
        _write(record, held)
        print(record.name, held["runs"][-1], flush=True)


def _sweep(record: Record) -> None:
    from research.records.run import one_run

    for one in sweep_of(record):
        name, values = one.name, one_run(one, RUN_FOLDER, _read().get("sweep", {}).get(one.name, {}))
        _change(lambda held, name=name, values=values: {**held, "sweep": {**held.get("sweep", {}), name: values}})  # type: ignore[misc]
        print(one.name, values["run"], flush=True)


def _read() -> dict[str, Any]:
    held: dict[str, Any] = json.loads(FILE.read_text()) if FILE.is_file() else {}
    return {"format": "discreet.records/1", "runs": RUNS, **held, "records": held.get("records", {})}


def _write(record: Record, values: dict[str, Any]) -> None:
    def changed(held: dict[str, Any]) -> dict[str, Any]:
        records = {**held["records"], record.name: values}
        order = [known.name for known in RECORDS]
        return {**held, "records": {name: records[name] for name in sorted(records, key=order.index)}}

    _change(changed)


def _change(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite the file; other processes may measure other records meanwhile."""
    RUN_FOLDER.mkdir(parents=True, exist_ok=True)
    with open(RUN_FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        facts = {
            "command": "python -m research.records run",
            "versions": package_versions("discreet", "torch", "numpy", "scipy"),
        }
        write_json(FILE, {**change(_read()), **facts})


if __name__ == "__main__":
    main()
