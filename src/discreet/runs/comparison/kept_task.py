"""The data of a comparison's runs, loaded once in a process: all rows, seeds and budgets train on the same records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.core.own_files import is_own
from discreet.core.plain import digest
from discreet.data.features import needs_public
from discreet.runs.defaults import features_of, load_task, public_of

if TYPE_CHECKING:
    from discreet.data import Task
    from discreet.data.features.store import Progress
    from discreet.runs.comparison.compare import CompareSettings
    from discreet.runs.config import RunConfig

_NAMED = ("data", "data_dir", "download", "classes", "records", "public_data", "task")
_LAST: dict[str, Task] = {}


def kept_task(settings: RunConfig | CompareSettings, progress: Progress | None = None) -> Task:
    """As `load_task`; the last one is kept, if it is a published dataset or an npz file that has not changed since."""
    key = _key(settings)
    if key is None:
        return load_task(settings, progress)
    if key not in _LAST:
        _LAST.clear()
        _LAST[key] = load_task(settings, progress)
    return _LAST[key]


def _key(settings: RunConfig | CompareSettings) -> str | None:
    """What decides the records and their features; None where other files do, too."""
    features = features_of(settings)
    public = public_of(settings) if needs_public(features) else None
    if settings.label is not None or is_own(public):
        return None
    stamp: list[Any] = []
    if is_own(settings.data):
        file = Path(settings.data)
        if file.suffix != ".npz" or not file.is_file():
            return None
        stamp = [file.stat().st_mtime_ns, file.stat().st_size]
    return digest([[getattr(settings, name) for name in _NAMED], features, public, stamp])
