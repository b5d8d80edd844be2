"""What turns records into public features, and the public records that its statistics may come from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import refuse, require
from discreet.data.datasets import BYTES

if TYPE_CHECKING:
    from discreet.data.datasets import Task


class Extractor(Protocol):
    """Records to features.

    Guarantee: the features of a record depend on that record, on public weights and on public records alone. So
    extraction costs no privacy, and the features are as private as the records.

    identity  a digest of the code's version, the settings, the weights and the public statistics
    public    the records that the statistics come from; None if there are no statistics
    at_once   records in one call, which changes only the time
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str: ...

    @property
    def public(self) -> PublicRecords | None: ...

    @property
    def at_once(self) -> int: ...

    def __call__(self, records: Tensor) -> Tensor:
        """[n, *shape] to [n, width] or maps [n, c, h, w]: from pixels of 0 to 1, encoded columns, or bytes of text."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class PublicRecords:
    """Records that need no protection: means, whitening and bases are computed from them.

    checksum  the checksum of their dataset
    """

    name: str
    checksum: str
    records: Tensor

    @property
    def identity(self) -> str:
        return digest_of(self.records)

    @classmethod
    def of(cls, task: Task, *, records: int | None = None) -> PublicRecords:
        """Training records of a public task, the first `records` of them."""
        remedy = "name a published dataset, or declare your own file public: load(path, ..., public=True)"
        require(task.public, "public records for the statistics of features", f"{task.name}, which is private", remedy)
        values = raw_records(task, task.train.tensors[0][:records])
        return cls(name=task.name, checksum=task.checksum, records=values)

    def check_apart(self, task: Task, private: Tensor) -> None:
        """Refuse the private records, or any of them, in place of public ones."""
        remedy = "name other records (--public-records): nothing is charged for the statistics of public ones"
        same = self.checksum == task.checksum
        require(not same, "public records that are not the protected ones", f"{task.name} for both", remedy)
        if self.records.shape[1:] != private.shape[1:]:
            return
        shared = not rows_of(self.records).isdisjoint(rows_of(private))
        require(not shared, "public records that are not the protected ones", "protected records among them", remedy)


def raw_records(task: Task, values: Tensor) -> Tensor:
    """Records before the task's scaling, as extractors take them: pixels from 0 to 1, and texts as bytes."""
    if task.constants == BYTES and len(task.shape) == 1:
        return (values * 255).round().to(torch.uint8)
    if task.scale is None:
        return values
    means, deviations = (torch.tensor(one).reshape(-1, 1, 1) for one in task.scale)
    return values * deviations + means


def images_like(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Public images [n, c, h, w] as images of this shape: grey if it has one channel, resized."""
    fits = images.dim() == 4 and len(shape) == 3
    require(fits, "images (channel, row, column)", tuple(images.shape[1:]), "use features for this kind of records")
    if images.shape[1] != shape[0]:
        images = images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if images.shape[2:] != shape[1:]:
        images = F.interpolate(images, size=shape[1:], mode="bilinear", align_corners=False, antialias=True)
    return images.contiguous()


def check_images(name: str, shape: tuple[int, ...], least: int = 1) -> None:
    """Refuse records of a shape that is not channel, row, column, and say how to store them.

    >>> check_images("patches", (32, 32, 3), 8)
    Traceback (most recent call last):
    ...
    discreet.core.check.Refused: Expected images (channel, row, column) of at least 8 x 8 for patches, \
got shape (32, 32, 3). Remedy: store the channel first: x.transpose(0, 3, 1, 2).
    """
    if len(shape) != 3 or min(shape[1:]) < least:
        remedy = "use features for this kind of records"
        if len(shape) == 2 and min(shape) >= least:
            remedy = "store grey images with a channel: x[:, None]"
        elif len(shape) == 3 and shape[2] in (1, 3, 4):
            remedy = "store the channel first: x.transpose(0, 3, 1, 2)"
        expected = f"images (channel, row, column) of at least {least} x {least} for {name}"
        refuse(expected, f"shape {tuple(shape)}", remedy)


def digest_of(values: Tensor) -> str:
    """A sha256 of the type, the shape and the bytes."""
    array = np.ascontiguousarray(values.numpy())
    found = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def rows_of(records: Tensor) -> set[bytes]:
    """A digest of each record."""
    rows = np.ascontiguousarray(records.flatten(1).numpy())
    return {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows}
