"""Public features: a fixed map of each record, computed once, on which a small private head learns fast.

    from discreet import data, features

    task = features.extract(data.load("fashion-mnist"), ["scattering", "patches"], public=data.load("cifar10"))

A map uses public weights and statistics of public records alone, so it costs no privacy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from discreet.core.check import refuse, require
from discreet.data.datasets import Task
from discreet.data.features.backbones import Backbone, efficientnet
from discreet.data.features.bins import Bins
from discreet.data.features.extractor import Extractor, PublicRecords, images_like, raw_records
from discreet.data.features.patches import Patches
from discreet.data.features.scattering import Scattering, ScatteringMaps
from discreet.data.features.sentences import MiniLM, SentenceEncoder
from discreet.data.features.store import Progress, stored

__all__ = ["FEATURES", "Backbone", "Bins", "Extractor", "Kind", "MiniLM", "Patches", "PublicRecords", "Scattering"]
__all__ += ["ScatteringMaps", "extract", "extractor", "images_like", "needs_public"]

PUBLIC_IMAGES = 4000  # how many of the public images the statistics use

Folder = str | Path | None


@final
@dataclass(frozen=True, kw_only=True)
class Kind:
    """Features by name: what they are, and how their extractor is built.

    public  whether their statistics come from public records
    """

    about: str
    build: Callable[[Task, PublicRecords | None, Folder], Extractor]
    public: bool = False


def _scattering(task: Task, public: PublicRecords | None, folder: Folder) -> Extractor:
    assert public is not None
    return Scattering(public, task.shape)


def _scattering_maps(task: Task, public: PublicRecords | None, folder: Folder) -> Extractor:
    assert public is not None
    return ScatteringMaps(public, task.shape)


def _patches(task: Task, public: PublicRecords | None, folder: Folder) -> Extractor:
    assert public is not None
    return Patches(public, task.shape)


def _efficientnet(task: Task, public: PublicRecords | None, folder: Folder) -> Extractor:
    name = "efficientnet-lite2"
    return Backbone(name, efficientnet(name, data_dir=folder))


def _minilm(task: Task, public: PublicRecords | None, folder: Folder) -> Extractor:
    return MiniLM(SentenceEncoder.minilm(length=MiniLM.length, data_dir=folder))


def _bins(task: Task, public: PublicRecords | None, folder: Folder) -> Extractor:
    return Bins.of(task)


FEATURES: Mapping[str, Kind] = MappingProxyType(
    {
        "scattering": Kind(
            about="images: 2000 scattering coefficients in axes of public images", build=_scattering, public=True
        ),
        "scattering-maps": Kind(
            about="images: 81 scattering coefficients of each colour at each place, for cnn-scatter",
            build=_scattering_maps,
            public=True,
        ),
        "patches": Kind(
            about="images: 5120 responses to whitened patches of public images", build=_patches, public=True
        ),
        "efficientnet-lite2": Kind(about="images: 1280 features of a network trained on ImageNet", build=_efficientnet),
        "minilm": Kind(about="texts: 384 features of the sentence encoder all-MiniLM-L6-v2", build=_minilm),
        "bins": Kind(about="adult: numbers in public bins, one-hot, beside the categories", build=_bins),
    }
)
"""The features that `extract` and `--features` know."""


def needs_public(names: Sequence[str]) -> bool:
    """Whether any of these features takes statistics from public records."""
    for name in names:
        require(name in FEATURES, f"features of {', '.join(FEATURES)}", repr(name), "choose some of these")
    return any(FEATURES[name].public for name in names)


def extractor(name: str, task: Task, *, public: Task | None = None, data_dir: Folder = None) -> Extractor:
    """The extractor of this name for records like those of `task`; it sees none of them.

    public  a public task, where the features take statistics
    """
    if not needs_public([name]):
        return FEATURES[name].build(task, None, data_dir)
    if public is None:
        refuse(f"public records for the statistics of {name}", "none", "name a dataset: public=, --public-records")
    return FEATURES[name].build(task, PublicRecords.of(public, records=PUBLIC_IMAGES), data_dir)


def extract(
    task: Task,
    names: Sequence[str | Extractor],
    *,
    public: Task | None = None,
    data_dir: Folder = None,
    progress: Progress | None = None,
) -> Task:
    """The task with features in place of its records, in half precision; several features are joined.

    Features are computed once and kept on disk. Models take them as they are: `head` converts them.

    Guarantee: the features of a record depend on that record and on public values alone. Public records that are, or
    contain, records of the task are refused.
    """
    require(len(names) > 0, f"some of {', '.join(FEATURES)}", "no features", "name at least one")
    splits = [(raw_records(task, split.tensors[0]), split.tensors[1]) for split in (task.train, task.test)]
    parts: list[list[Tensor]] = [[], []]
    for one in names:
        chosen = extractor(one, task, public=public, data_dir=data_dir) if isinstance(one, str) else one
        if chosen.public is not None:
            chosen.public.check_apart(task, splits[0][0])
        for found, (records, _) in zip(parts, splits, strict=True):
            found.append(stored(chosen, records, progress))
    shapes = {tuple(found.shape[1:]) for found in parts[0]}
    is_flat = all(len(shape) == 1 for shape in shapes)
    require(len(names) == 1 or is_flat, "features that can be joined", f"maps among {len(names)}", "use maps alone")
    train, test = (
        TensorDataset(found[0] if len(found) == 1 else torch.cat(found, 1), labels)
        for found, (_, labels) in zip(parts, splits, strict=True)
    )
    told = " + ".join(one if isinstance(one, str) else one.name for one in names)
    statistics = "" if public is None else f", statistics of {public.name}"
    return dataclasses.replace(
        task,
        train=train,
        test=test,
        shape=tuple(train.tensors[0].shape[1:]),
        constants=f"{task.constants}; features {told}{statistics}",
        scale=None,
    )
