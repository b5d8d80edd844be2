"""Features on disk: computed once, in half precision, in pieces that survive an interruption.

The files are in `features` below the download cache. They are as private as the records, so only their owner may read
them.
"""

import fcntl
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from discreet.core.check import damaged
from discreet.core.files import write_text
from discreet.data.features.extractor import Extractor, digest_of
from discreet.data.sources import cache

Progress = Callable[[str, int, int], None]
"""Takes the name of the features, how many records are done, and of how many."""

PIECE: Final = 2000  # records between two writes


def stored(extractor: Extractor, records: Tensor, progress: Progress | None = None) -> Tensor:
    """The features [n, ...] of these records in half precision; computed where there is no file yet."""
    key = hashlib.sha256(f"{extractor.identity} {digest_of(records)}".encode()).hexdigest()[:32]
    file = folder() / f"{extractor.name}-{key}.npy"
    if not file.is_file():
        with _held(file.with_suffix(".lock")):
            if not file.is_file():  # another process may have made it meanwhile
                _compute(extractor, records, file, progress or (lambda name, done, total: None))
    try:
        found = torch.from_numpy(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        damaged(f"features in {file}", error, "delete the file: it is made again")
    if found.shape[0] != len(records) or found.dtype != torch.float16:
        damaged(f"half-precision features of {len(records)} records in {file}", found.shape, "delete the file")
    return found


def folder() -> Path:
    """Where features are kept."""
    place = cache() / "features"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return place


@torch.inference_mode()
def _compute(extractor: Extractor, records: Tensor, file: Path, progress: Progress) -> None:
    """Fill a file beside the final one; a second file says how many rows are in it."""
    part, count = file.with_suffix(".part"), file.with_suffix(".rows")
    shape = (len(records), *extractor(records[:1]).shape[1:])
    done = int(count.read_text()) if count.is_file() and part.is_file() else 0
    rows = np.lib.format.open_memmap(part, "r+" if done else "w+", np.float16, shape)
    progress(extractor.name, done, len(records))
    while done < len(records):
        end = min(done + PIECE, len(records))
        for start in range(done, end, extractor.at_once):
            some = slice(start, min(start + extractor.at_once, end))
            rows[some] = extractor(records[some]).half().numpy()
        done = end
        rows.flush()
        write_text(count, str(done))
        progress(extractor.name, done, len(records))
    del rows
    part.replace(file)
    count.unlink(missing_ok=True)


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """One process computes a file, others wait for it."""
    with open(lock, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    lock.unlink(missing_ok=True)
