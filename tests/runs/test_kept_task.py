"""The data of a comparison is loaded once, and again when its file has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet import runs
from discreet.runs.comparison import kept_task as module
from discreet.runs.comparison.kept_task import kept_task


def config(data: str, **more: Any) -> runs.RunConfig:
    settings = {"out": "unused", "epsilon": 3.0, "delta": 1e-5, "classes": 2, "records": 4, **more}
    return runs.RunConfig(data=data, **settings)


def written(path: Path, first: float) -> str:
    x, y = np.full((4, 3), first, dtype=np.float32), np.array([0, 1, 0, 1])
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return str(path)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAST", {})


def test_rows_seeds_and_budgets_share_the_data() -> None:
    one = kept_task(config("digits", classes=None, records=None))
    other = config("digits", classes=None, records=None, method="psac", epsilon=8.0, seed=1, batch=64, epochs=2)
    assert kept_task(other) is one


def test_other_data_is_loaded(tmp_path: Path) -> None:
    for name, first in (("one.npz", 0.25), ("other.npz", 0.75)):
        file = written(tmp_path / name, first)
        assert float(kept_task(config(file)).train.tensors[0].max()) == first


def test_other_features_and_other_public_records_are_other_data() -> None:
    settings = [{}, *({"features": ("scattering",), "public_records": name} for name in ("mnist", "cifar10"))]
    keys = {module._key(config("digits", **one)) for one in settings}
    assert len(keys) == 3
    assert None not in keys


def test_data_that_other_files_decide_is_not_kept(tmp_path: Path) -> None:
    public = written(tmp_path / "public.npz", 0.25)
    assert module._key(config("digits", features=("scattering",), public_records=public)) is None
    assert module._key(config(str(tmp_path / "absent.npz"))) is None


def test_a_file_that_changed_is_loaded_again(tmp_path: Path) -> None:
    file = written(tmp_path / "own.npz", 0.25)
    before = kept_task(config(file))
    assert kept_task(config(file)) is before
    written(tmp_path / "own.npz", 0.5)
    assert float(kept_task(config(file)).train.tensors[0].max()) == 0.5
