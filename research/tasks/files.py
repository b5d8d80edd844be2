"""Files of the tasks: published weights below the data folder, and features that are made once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from discreet.core.check import refuse, require
from discreet.core.files import replace_file
from discreet.data.sources import roots


def published(inside: str, sha256: str, how: str) -> Path:
    """A file of a package in the folder `site` below the data, with the published content.

    how  the command that gets it
    """
    found = [root / "site" / inside for root in roots(None) if (root / "site" / inside).is_file()]
    if not found:
        refuse(f"the file site/{inside} in the data folder (DISCREET_DATA)", "none", f"{how}, in the data folder")
    verify(found[0], sha256)
    return found[0]


def verify(file: Path, sha256: str) -> None:
    """Refuse a file with other content."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    require(digest == sha256, f"{file.name} with sha256 {sha256}", digest, "install the package again")


def write_npz(place: Path, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Path:
    """Write arrays to a file that is complete or absent, also after a crash."""
    place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, lambda file: np.savez(file, allow_pickle=False, **arrays))
    return place
