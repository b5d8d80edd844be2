"""Training for experiments: seeded runs are kept on disk, so that an interrupted experiment resumes."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import discreet
from discreet import runs
from discreet.core.files import write_json
from discreet.core.plain import digest, plain
from discreet.runs import RunConfig, RunFolder, RunResult
from research.reproductions.experiment import Row, mean_and_error
from research.reproductions.plain_sgd import PlainRun, train_plain

# They do not affect the result.
_NOT_PART_OF_A_RUN = ("out", "data_dir", "download", "device", "checkpoint_every", "micro_batch")

Listener = Callable[[str], None]


@final
class Bench:
    """What an experiment trains with.

    quick    fewer epochs and settings: minutes instead of hours
    seeds    one run of every setting for each seed; seeded runs are for public data only
    folder   where runs are kept
    """

    def __init__(
        self,
        *,
        quick: bool,
        seeds: tuple[int, ...],
        folder: Path,
        data_dir: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.quick, self.seeds, self.folder = quick, seeds, folder
        self.seconds = 0.0
        self.trained = 0
        self._data_dir, self._listener = data_dir, listener
        self._inside = 0.0

    @property
    def data_dir(self) -> str | None:
        """The folder of datasets, for experiments that load one themselves."""
        return self._data_dir

    def note(self, message: str) -> None:
        """Report progress."""
        if self._listener is not None:
            self._listener(message)

    def train(self, config: RunConfig) -> RunResult:
        """Train, resume an interrupted run, or read a finished one; `out` is chosen here."""
        config = dataclasses.replace(config, data_dir=self._data_dir or config.data_dir)
        place = self.folder / "runs" / key_of(config)
        config = dataclasses.replace(config, out=str(place))
        folder = RunFolder(place)
        if folder.result.is_file():
            result = runs.load_result(place)
        else:
            self.note(f"{config.method}, {config.data}, seed {config.seed}: {place.name}")
            began = time.perf_counter()
            result = runs.train(config, resume=folder.run.is_file())
            self._inside += time.perf_counter() - began
            self.trained += 1
        self.seconds += result.seconds
        return result

    def train_seeds(self, config: RunConfig) -> tuple[RunResult, ...]:
        """One run of the config for every seed."""
        return tuple(self.train(dataclasses.replace(config, seed=seed)) for seed in self.seeds)

    def train_without_privacy(self, config: RunConfig) -> PlainRun:
        """The same run without privacy: no clipping, no noise, infinite epsilon.

        Method, sampling and budget of the config are ignored; batches are shuffled.
        """
        config = dataclasses.replace(config, data_dir=self._data_dir or config.data_dir)
        kept = self.remember({"plain": key_of(config)}, lambda: train_plain(config).to_json())
        return PlainRun.from_json(kept)

    def remember(self, key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """`compute()`, or its earlier value for this key: for work that is not a run. JSON values only."""
        place = self.folder / "values" / f"{digest({'key': key, 'version': discreet.__version__})[:20]}.json"
        if place.is_file():
            kept = json.loads(place.read_text(encoding="utf-8"))
        else:
            began = time.perf_counter()
            value = plain(compute())
            elapsed = time.perf_counter() - began
            kept = {"key": plain(key), "seconds": round(elapsed, 2), "value": value}
            place.parent.mkdir(parents=True, exist_ok=True)
            write_json(place, kept)
            self._inside += elapsed
        self.seconds += kept["seconds"]
        return dict(kept["value"])

    def total_seconds(self, elapsed: float) -> float:
        """The time of all work, including runs read from disk, for a call that took `elapsed`."""
        return round(self.seconds + max(elapsed - self._inside, 0.0), 1)


def key_of(config: RunConfig) -> str:
    """The name of a run's directory, which depends on the version and on all settings that affect the result."""
    settings = {name: value for name, value in config.to_json().items() if name not in _NOT_PART_OF_A_RUN}
    settings["parameters"] = sorted(settings["parameters"])
    short = digest({"settings": settings, "version": discreet.__version__})[:12]
    return f"{Path(config.data).stem}-{config.method}-seed-{config.seed}-{short}"


def accuracy_row(setting: str, results: tuple[RunResult, ...], *, paper: float | None = None, note: str = "") -> Row:
    """The test accuracies of one setting's runs, in per cent."""
    mean, error = mean_and_error(tuple(100 * result.test_accuracy for result in results))
    claims = [result.spent.claimed for result in results if result.spent.claimed is not None]
    return Row(
        setting=setting,
        paper=paper,
        ours=mean,
        spread=error,
        seeds=len(results),
        certified=max(result.spent.certified.epsilon for result in results),
        claimed=max(claims) if claims else None,
        note=note,
    )


def measured(result: RunResult, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Steps and one metric of a run: "test_accuracy" or "epsilon"; with `public_data` also "train_loss" or "test_loss".

    Steps at which the model had diverged are left out.
    """
    lines = {values["step"]: values for values in RunFolder(result.directory).read_metrics()}
    steps = sorted(step for step in lines if lines[step].get(name) is not None)
    return tuple(map(float, steps)), tuple(float(lines[step][name]) for step in steps)
