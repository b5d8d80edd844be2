"""Check that processes of one run do not hold the same records."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from discreet.core import check
from discreet.core.world import World

_COMPARED: Final = 16  # records of each process
_SALT: Final = 32  # bytes


def check_shards(world: World, data: Any) -> None:
    """Refuse processes that hold the same records: each would count once for every process that has it.

    A few records at the same places are compared by digests under a random salt, which are not kept. Overlaps in
    another order, or of a part of the records, are not found.
    """
    if world.size == 1:
        return
    drawn = torch.tensor(list(os.urandom(_SALT)), dtype=torch.uint8)
    salt = bytes(world.broadcast_(drawn).tolist())
    with _same_randomness(salt):  # random augmentation in the dataset must not hide that records are the same
        mine = [_digest(data[place], salt) for place in _places(0 if data is None else len(data))]
    everyone = world.gather(mine)
    for one, other in combinations(range(world.size), 2):
        if everyone[one] == everyone[other] and len(set(everyone[one])) > 1:
            part = "torch.utils.data.Subset(data, range(rank, len(data), world_size))"
            remedy = f"give each process its own part: {part}; `records` stays the number of all of them"
            got = f"the same records on ranks {one} and {other}"
            check.refuse("different records in every process", got, remedy)


def _places(size: int) -> list[int]:
    """Indices that are spread over the data, both ends included."""
    count = min(size, _COMPARED)
    return [number * (size - 1) // max(1, count - 1) for number in range(count)]


def _digest(record: Any, salt: bytes) -> str:
    digest = hashlib.blake2b(key=salt)
    for part in _parts(record):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """The values of a record as bytes, with their types and shapes."""
    if isinstance(value, Tensor):
        bare = value.detach().cpu()
        yield f"{bare.dtype} {tuple(bare.shape)}".encode()
        dense = bare.to_dense() if bare.layout != torch.strided else bare
        yield dense.contiguous().flatten().view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key).encode()
            yield from _parts(item)
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    else:
        try:
            yield pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError):
            yield os.urandom(_SALT)  # not comparable, so it equals nothing


@contextmanager
def _same_randomness(salt: bytes) -> Iterator[None]:
    """Seed the global generators inside the block with a number that all processes share, and restore them after."""
    seed = int.from_bytes(hashlib.blake2b(salt, digest_size=4).digest(), "little")
    plain, array = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(array)
