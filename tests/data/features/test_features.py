"""Public features: records stay apart, private records never enter statistics, files are made once."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet import features
from discreet.core.check import Refused
from discreet.data import Task, build, load
from discreet.data.features import store
from discreet.data.features.backbones import Backbone
from discreet.data.features.extractor import Extractor, PublicRecords, images_like, raw_records
from discreet.data.features.sentences import as_text


def images(count: int, shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


def task_of(x: Tensor, name: str = "own", *, public: bool = False, checksum: str = "none") -> Task:
    labels = torch.arange(len(x)) % 2
    split = TensorDataset(x, labels)
    return Task(name, split, split, 2, tuple(x.shape[1:]), checksum, public, len(x), "none")


PUBLIC = task_of(images(60, (3, 20, 20), 1), "other", public=True, checksum="1")
OWN = task_of(images(9, (1, 16, 16), 2))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def backbone() -> Backbone:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Backbone("efficientnet-lite2", nn.Sequential(*layers), side=24)


EXTRACTORS: dict[str, Callable[[], Extractor]] = {
    "scattering": lambda: features.Scattering(PublicRecords.of(PUBLIC), OWN.shape, width=90),
    "patches": lambda: features.Patches(PublicRecords.of(PUBLIC), OWN.shape, patches=7),
    "backbone": backbone,
}


@pytest.mark.parametrize("name", EXTRACTORS)
def test_the_features_of_a_record_do_not_depend_on_the_others(name: str) -> None:
    extract, records = EXTRACTORS[name](), OWN.train.tensors[0]
    together = extract(records)
    alone = torch.cat([extract(record[None]) for record in records])
    assert torch.allclose(together, alone, atol=2e-5)
    assert torch.allclose(together.norm(dim=1), torch.ones(len(records)), atol=1e-5)
    assert (together[0] - together[1]).norm() > 1e-2  # control: records differ


def test_statistics_of_scattering_are_those_of_the_public_images() -> None:
    """The kept axes have, on the public images, the variances that the scale divides by."""
    public = PublicRecords.of(PUBLIC)
    extract = features.Scattering(public, OWN.shape, width=40, unit_length=False)
    found = extract(images_like(public.records, OWN.shape))
    assert found.shape == (60, 40)
    assert found.mean(0).abs().max() < 1e-3
    variance = found.square().mean(0)
    assert bool((variance[:-1] >= variance[1:] - 1e-4).all())  # the scale falls more slowly than the variance
    other = features.Scattering(PublicRecords.of(task_of(images(60, (3, 20, 20), 3), public=True)), OWN.shape, width=40)
    assert other.identity != extract.identity


def test_maps_have_the_statistics_of_public_images_and_keep_records_apart() -> None:
    public, records = PublicRecords.of(PUBLIC), OWN.train.tensors[0]
    for shape in (OWN.shape, (3, 16, 16)):
        extract = features.ScatteringMaps(public, shape)
        found = extract(images_like(public.records, shape))
        assert found.shape == (60, 81 * shape[0], 4, 4)
        assert found.mean((0, 2, 3)).abs().max() < 1e-3
        assert torch.allclose(found.std((0, 2, 3)), torch.ones(81 * shape[0]), atol=1e-3)
    extract = features.ScatteringMaps(public, OWN.shape)
    together = extract(records)
    assert torch.allclose(together, torch.cat([extract(record[None]) for record in records]), atol=1e-4)
    assert (together[0] - together[1]).norm() > 1  # control: records differ
    assert (
        extract(records.roll(4, dims=3))[:, :, :, 2:3].sub(together[:, :, :, 1:2]).abs().mean() < 0.5
    )  # places are kept
    assert extract.identity != features.ScatteringMaps(public, (3, 16, 16)).identity


def test_public_images_without_variation_are_refused_for_maps() -> None:
    for empty in (torch.zeros(5, 1, 16, 16), torch.full((5, 1, 16, 16), torch.nan)):
        with pytest.raises(Refused, match="public images that vary"):
            features.ScatteringMaps(PublicRecords.of(task_of(empty, public=True)), OWN.shape)


def test_maps_are_stored_as_they_are_and_not_joined() -> None:
    task = features.extract(OWN, ["scattering-maps"], public=PUBLIC)
    assert (task.shape, task.train.tensors[0].dtype) == ((81, 4, 4), torch.float16)
    assert build("cnn-scatter", shape=task.shape, classes=2)(task.train.tensors[0]).shape == (9, 2)
    with pytest.raises(Refused, match="features that can be joined"):
        features.extract(OWN, ["scattering-maps", "scattering"], public=PUBLIC)


def test_private_records_are_refused_as_public_ones() -> None:
    with pytest.raises(Refused, match="which is private"):
        features.extract(OWN, ["scattering"], public=dataclasses.replace(PUBLIC, public=False))
    with pytest.raises(Refused, match="own for both"):
        features.extract(OWN, ["scattering"], public=dataclasses.replace(OWN, public=True))
    mixed = torch.cat([images(30, (1, 16, 16), 5), OWN.train.tensors[0][4:5]])
    with pytest.raises(Refused, match="protected records among them"):
        features.extract(OWN, ["patches"], public=task_of(mixed, "renamed", public=True, checksum="2"))
    with pytest.raises(Refused, match="public records for the statistics of scattering"):
        features.extract(OWN, ["scattering"])


def test_a_published_dataset_is_refused_as_its_own_stand_in() -> None:
    digits = load("digits")
    with pytest.raises(Refused, match="digits for both"):
        features.extract(digits, ["scattering"], public=digits)


def test_features_are_computed_once_and_kept_in_half_precision(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    first = features.extract(OWN, ["scattering", "patches"], public=PUBLIC, progress=lambda *news: told.append(news))
    assert first.train.tensors[0].dtype == torch.float16
    assert first.shape == (first.train.tensors[0].shape[1],)
    assert ("patches", 9, 9) in told
    assert "statistics of other" in first.constants
    told.clear()
    again = features.extract(OWN, ["scattering", "patches"], public=PUBLIC, progress=lambda *news: told.append(news))
    assert told == []
    assert torch.equal(first.train.tensors[0], again.train.tensors[0])
    moved = task_of(OWN.train.tensors[0].flip(0))
    features.extract(moved, ["scattering"], public=PUBLIC, progress=lambda *news: told.append(news))
    assert told != []  # other records have another file
    assert (tmp_path / "discreet" / "features").stat().st_mode & 0o077 == 0


def test_an_interrupted_extraction_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PIECE", 2)
    calls: list[int] = []

    class Stopping:
        name, identity, public, at_once = "stopping", "1", None, 2

        def __call__(self, records: Tensor) -> Tensor:
            calls.append(len(records))
            if len(calls) == 4:
                raise KeyboardInterrupt
            return records.flatten(1)

    with pytest.raises(KeyboardInterrupt):
        store.stored(Stopping(), OWN.train.tensors[0])
    found = store.stored(Stopping(), OWN.train.tensors[0])
    assert calls == [1, 2, 2, 2, 1, 2, 2, 1]  # the first record shows the width, then the last five records
    assert torch.equal(found, OWN.train.tensors[0].flatten(1).half())


def test_a_damaged_file_is_refused() -> None:
    features.extract(OWN, ["scattering"], public=PUBLIC)
    file = next(store.folder().glob("scattering-*.npy"))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(Refused, match="delete the file"):
        features.extract(OWN, ["scattering"], public=PUBLIC)


def test_pixels_are_restored_from_the_scaling_of_a_task() -> None:
    scaled = dataclasses.replace(OWN, scale=((0.25,), (0.5,)))
    pixels = images(3, (1, 4, 4), 0)
    assert torch.allclose(raw_records(scaled, (pixels - 0.25) / 0.5), pixels, atol=1e-6)
    assert raw_records(OWN, pixels) is pixels


def test_numbers_of_a_table_become_public_bins() -> None:
    extract = features.Bins((4, 2))
    found = extract(torch.tensor([[0.26, 1.0, 1.0, 0.0], [0.0, 0.49, 0.0, 1.0]]))
    expected = torch.tensor([[0, 1, 0, 0, 0, 1, 1, 0], [1, 0, 0, 0, 1, 0, 0, 1.0]])
    assert torch.allclose(found, expected / expected.norm(dim=1, keepdim=True))
    with pytest.raises(Refused, match="the columns of adult"):
        features.Bins.of(OWN)


def test_other_kinds_of_records_are_refused() -> None:
    with pytest.raises(Refused, match="texts, as bytes"):
        features.MiniLM(None)(torch.zeros(2, 5))  # type: ignore[arg-type]
    with pytest.raises(Refused, match="images"):
        features.extractor("scattering", task_of(torch.zeros(2, 5)), public=PUBLIC)
    with pytest.raises(Refused, match="features of scattering"):
        features.extract(OWN, ["no such features"])
    with pytest.raises(Refused, match="no features"):
        features.extract(OWN, [])


def test_a_text_is_read_from_its_bytes() -> None:
    row = np.zeros(12, np.uint8)
    row[:5] = np.frombuffer("né à".encode()[:5], np.uint8)
    assert as_text(row) == "né \N{REPLACEMENT CHARACTER}"  # a record may end within a letter
