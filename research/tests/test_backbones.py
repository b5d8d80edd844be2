"""Features of a public backbone: each image alone, each of length 1; what is missing is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from discreet.data import load
from research.tasks import backbones
from research.tasks.files import write_npz

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)


def backbone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_an_image_has_the_same_features_whatever_comes_with_it() -> None:
    net = backbone()
    together = backbones.features(net, IMAGES, side=40, at_once=5)
    alone = torch.cat([backbones.features(net, IMAGES[i : i + 1], side=40) for i in range(len(IMAGES))])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(together.norm(dim=1), torch.ones(len(IMAGES)))


def test_progress_is_told() -> None:
    told: list[str] = []
    many = np.zeros((5100, 2, 2, 3), dtype=np.uint8)
    backbones.features(backbone(), many, side=4, note=told.append)
    assert told == ["features of 5000 of 5100 images"]


def test_a_file_that_is_there_is_taken(tmp_path: Path) -> None:
    held = {f"{axis}_{part}": np.zeros((2, 3) if axis == "x" else 2) for axis in "xy" for part in ("train", "test")}
    held = {name: value.astype(np.float16 if name[0] == "x" else np.int64) for name, value in held.items()}
    place = write_npz(tmp_path / backbones.FEATURES, held)
    assert [file.name for file in tmp_path.iterdir()] == [backbones.FEATURES]
    assert backbones.cifar10_features(data_dir=tmp_path) == place
    task = load(place, classes=10, records=2, public=True)
    assert task.train.tensors[0].dtype == torch.float32
