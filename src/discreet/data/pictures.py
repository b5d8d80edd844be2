"""Folders of picture files as arrays of bytes, in the form of an `.npz` file of the user.

Every picture is read by itself: size, colours and classes are public choices, never learned from the pictures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from discreet.core import check

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
Arrays = dict[str, npt.NDArray[Any]]


def packed(
    folder: str | Path,
    classes: Sequence[str],
    *,
    size: int,
    grey: bool = False,
    test: str | Path | None = None,
    hold_out: float | None = None,
) -> Arrays:
    """Pictures in one folder for each class, as `x_train`, `y_train`, `x_test` and `y_test`.

    classes  the names of the folders, a public list; their order numbers the classes from 0

    Guarantee: a row depends on its own picture alone. No epsilon protects the test pictures, also those that are held
    out: a share of the pictures, by a hash of their own content.
    """
    given, remedy = "both" if test is not None else "neither", "name a folder with test=, --test, or hold out 0.2"
    check.require((test is None) != (hold_out is None), "test pictures or a share to hold out", given, remedy)
    _check_classes(classes)
    x, y = _labelled(Path(folder), classes, size, grey)
    if test is not None:
        u, v = _labelled(Path(test), classes, size, grey)
        return {"x_train": x, "y_train": y, "x_test": u, "y_test": v}
    check.inside_unit("the share of pictures that are not protected, e.g. 0.2", hold_out=hold_out)
    assert hold_out is not None
    out = np.array([int.from_bytes(hashlib.sha256(one.tobytes()).digest()[:8]) < hold_out * 2**64 for one in x])
    return {"x_train": x[~out], "y_train": y[~out], "x_test": x[out], "y_test": y[out]}


def unlabelled(folder: str | Path, *, size: int, grey: bool = False) -> Arrays:
    """All pictures of a folder as `x`, to predict, and the names of their files as `names`."""
    files = _files(Path(folder))
    return {"x": _read(files, size, grey), "names": np.array([file.name for file in files])}


def _check_classes(classes: Sequence[str]) -> None:
    remedy = "list the names of the folders once each, e.g. --classes cat,dog"
    named = all(classes) and len(set(classes)) == len(classes) >= 2
    check.require(named, "two or more different classes", ", ".join(classes) or "none", remedy)


def _labelled(folder: Path, classes: Sequence[str], size: int, grey: bool) -> tuple[npt.NDArray[Any], ...]:
    folder = folder.expanduser()
    missing = [name for name in classes if not (folder / name).is_dir()]
    remedy = f"put the pictures of each class into {folder}/CLASS, and list these names"
    check.require(not missing, "a folder for each class", f"no {folder}/{', '.join(missing)}", remedy)
    files = [_files(folder / name) for name in classes]
    labels = np.repeat(np.arange(len(classes)), [len(part) for part in files])
    return _read([file for part in files for file in part], size, grey), labels


def _files(folder: Path) -> list[Path]:
    """The pictures of a folder in the order of their names."""
    folder = folder.expanduser()
    check.require(folder.is_dir(), "a folder of pictures", f"no folder {folder}", "check the path")
    found = sorted(folder.iterdir())
    return list(compress(found, (file.suffix.lower() in SUFFIXES for file in found)))


def _read(files: Sequence[Path], size: int, grey: bool) -> npt.NDArray[np.uint8]:
    """[n, channel, row, column]: the largest square in the middle of each picture, resized."""
    check.count("the width and height of a picture in pixels, e.g. 32", size=size)
    x = np.empty((len(files), 1 if grey else 3, size, size), np.uint8)
    for place, file in enumerate(files):
        try:
            with Image.open(file) as picture:
                upright = ImageOps.exif_transpose(picture).convert("L" if grey else "RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            check.refuse(f"a picture in {file}", f"{type(error).__name__}", "repair the file or remove it")
        fitted = np.asarray(ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC))
        x[place] = fitted[None] if grey else fitted.transpose(2, 0, 1)
    return x
