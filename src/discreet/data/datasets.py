"""Datasets by name, from their standard files, verified and scaled by public constants.

>>> task = load("digits")
>>> task.shape, task.classes, task.records
((1, 8, 8), 10, 1437)
"""

import hashlib
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from discreet.core.check import count, refuse, require
from discreet.core.own_files import CLASSIFICATION, TASKS, is_own
from discreet.data.catalogue import BENCHMARKS, DIGITS_SHA256, Scale
from discreet.data.sources import checksum, obtain, verified
from discreet.data.targets import Classes, Number, Target, labels_of

DATASETS = ("digits", *BENCHMARKS)  # the names that `load` knows; a path that ends in `.npz` is a file of the user

BYTES = "x / 255 (bytes)"
_DIGITS_RECORDS = 1437


def published_records(name: str) -> int | None:
    """The number of training records of a published dataset, without reading it; None for a file of the user.

    >>> published_records("digits"), published_records("patients.npz")
    (1437, None)
    """
    if name == "digits":
        return _DIGITS_RECORDS
    return BENCHMARKS[name].records if name in BENCHMARKS else None


PRIVATE_CHECKSUM = "not computed: a digest of private records would distinguish neighbouring datasets"


@dataclass(frozen=True)
class Task:
    """A dataset: records to protect, records to evaluate on, and public facts about them.

    records    the public number of training records; None if the number is private
    checksum   identifies the content; never computed from private data
    constants  the normalisation in words: which constants, and where they come from
    public     whether the training records are public, so that values derived from them may be shown
    classes    how many numbers a model gives for a record: the number of classes, of labels, or 1 for a number
    owners     the name of the owner of each training record, which is private; None if records are protected
    test_owners  likewise of each test record; also None if they are not known
    scale      means and deviations by channel that the values were scaled with, so that it can be undone; None: none
    target     what the labels are; None: classes

    Guarantee: shape, classes, records and constants do not depend on any private record.
    """

    name: str
    train: TensorDataset
    test: TensorDataset
    classes: int
    shape: tuple[int, ...]
    checksum: str
    public: bool
    records: int | None
    constants: str
    scale: Scale | None = None
    owners: tuple[str, ...] | None = field(default=None, repr=False)
    test_owners: tuple[str, ...] | None = field(default=None, repr=False)
    target: Target | None = None

    @property
    def predicts(self) -> Target:
        """What the labels are."""
        return Classes(self.classes) if self.target is None else self.target


def load(
    name: str | Path,
    *,
    data_dir: str | Path | None = None,
    download: bool = False,
    classes: int | None = None,
    records: int | None = None,
    public: bool = False,
    task: str = CLASSIFICATION,
) -> Task:
    """The task of this name, or of the user's own `.npz` file.

    Files are searched in `data_dir`, in the folder that the environment variable `DISCREET_DATA` names, in
    the Debian package's place and in the download cache; `download` allows the network after that.
    `classes`, `records`, `public` and `task` describe the user's own file (`load_npz`); they are refused for a
    benchmark.
    """
    if str(name).endswith(".npz"):
        return load_npz(name, classes=classes, records=records, public=public, task=task)
    if is_own(name):
        remedy = "tables are for --data of `discreet train` and `discreet compare`; store public records as .npz"
        refuse("a dataset's name or an npz file here", name, remedy)
    if Path(name).is_dir() and name not in DATASETS:
        remedy = "store its pictures in one file first: `discreet images FOLDER --classes a,b --out pictures.npz`"
        refuse("a dataset's name or a file", f"the folder {name}", remedy)
    if name not in DATASETS:
        close = get_close_matches(str(name), DATASETS, n=1)
        remedy = f"the nearest name is {close[0]}" if close else "choose one of these"
        refuse(f"a dataset of {', '.join(DATASETS)}, or a path that ends in .csv, .parquet or .npz", name, remedy)
    expected = f"no classes, records, public or task with the benchmark {name}"
    got = f"classes={classes}, records={records}, public={public}, task={task}"
    is_valid = classes is None and records is None and not public and task == CLASSIFICATION
    require(is_valid, expected, got, "these describe an npz file of your own; a benchmark's are known")
    if name == "digits":
        return _digits()
    known = BENCHMARKS[str(name)]
    train, test = known.decode(obtain(known.source, data_dir=data_dir, download=download))
    digest, records, constants = checksum(known.source.sha256), known.records, known.constants
    title, classes, shape = known.source.name, known.classes, known.shape
    scale = known.scale
    return Task(title, train, test, classes, shape, digest, True, records, constants, scale)


def load_npz(
    path: str | Path,
    *,
    classes: int | None = None,
    records: int | None = None,
    public: bool = False,
    task: str = CLASSIFICATION,
) -> Task:
    """The user's own `x_train`, `y_train`, `x_test`, `y_test`; only the schema is taken from the records.

    Bytes are divided by 255; floating-point numbers are used as they are, so scale them with public constants. The
    user gives the numbers of classes and records: if they were read from private data, they would leak.

    task  what y holds: class numbers, numbers scaled to [0, 1] by public bounds, or [n, labels] of 0 and 1
    """
    if records is not None:
        count("records is a public number, about the size of the training set", records=records)
    target = array_target(task, classes)
    file = Path(path).expanduser()
    require(file.is_file(), "an npz file", f"no file {file}", "check the path")
    keys = ("x_train", "y_train", "x_test", "y_test")
    try:
        with np.load(file, allow_pickle=False) as held:
            if not set(keys) <= set(held.files):
                raise KeyError(f"only {', '.join(held.files)}")
            arrays = {key: held[key] for key in keys}
    except (OSError, EOFError, ValueError, KeyError) as error:
        got = error.args[0] if isinstance(error, KeyError) else error  # a KeyError would be quoted
        remedy = "write it with numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
        refuse(f"an npz file with {', '.join(keys)}, without pickled objects", got, remedy)
    shape, kind = arrays["x_train"].shape[1:], arrays["x_train"].dtype
    alike = (shape, kind) == (arrays["x_test"].shape[1:], arrays["x_test"].dtype)
    require(alike, f"x_test like x_train, {kind} of shape {shape}", arrays["x_test"].dtype, "store both alike")
    train, test = (own_records(arrays[f"x_{part}"], arrays[f"y_{part}"], target) for part in ("train", "test"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if public else PRIVATE_CHECKSUM
    return Task(
        name=file.stem,
        train=train,
        test=test,
        classes=target.outputs,
        shape=shape,
        checksum=digest,
        public=public,
        records=records,
        constants=constants_of(arrays["x_train"]),
        target=target,
    )


def array_target(task: str, classes: int | None) -> Target:
    """What the array `y` of a file holds."""
    require(task in TASKS, f"a task of {', '.join(TASKS)}", repr(task), "choose one of these")
    if task == "regression":
        remedy = "leave it out: y holds one number for each record, scaled to [0, 1]"
        require(classes is None, "no classes with regression", f"classes={classes}", remedy)
        return Number.within(0.0, 1.0)
    if classes is None:
        refuse("classes with an npz file", "none", "give the public number of classes: classes=3, --classes 3")
    return Classes(classes) if task == CLASSIFICATION else labels_of(classes)


Array = npt.NDArray[np.generic]


def own_records(x: Array, y: Array, target: Target) -> TensorDataset:
    """The arrays of a file as records; labels that the target does not allow are refused, without saying which."""
    return TensorDataset(own_values(x), own_labels(y, len(x), target))


def own_values(x: Array) -> Tensor:
    """The records of an array: bytes divided by 255, other numbers as they are."""
    got, is_valid = f"{x.dtype} with {x.ndim} axes", x.ndim >= 2 and (x.dtype == np.uint8 or x.dtype.kind == "f")
    require(is_valid, "records of bytes or floating numbers", got, "store x as uint8 or float32, first axis the record")
    values = torch.from_numpy(x.astype(np.float32))
    return values.div_(255) if x.dtype == np.uint8 else values


def constants_of(x: Array) -> str:
    """The normalisation of `own_values` in words."""
    return BYTES if x.dtype == np.uint8 else "none: values taken as given"


def own_labels(y: Array, records: int, target: Target) -> Tensor:
    got = f"{y.dtype} with {y.ndim} axes"
    if isinstance(target, Number):
        is_valid = y.dtype.kind in "fiu" and y.shape == (records,) and bool(np.isfinite(y.astype(np.float64)).all())
        require(is_valid, "one finite number for each record", got, "store y as numbers scaled to [0, 1]")
        return target.scaled(y)
    has_classes = isinstance(target, Classes)
    expected = "one whole-number label" if has_classes else f"{target.outputs} labels of 0 or 1"
    is_valid = y.dtype.kind in "iub" and y.shape == ((records,) if has_classes else (records, target.outputs))
    require(is_valid, f"{expected} for each record", got, "store y as integers, one row for each record")
    labels, most = torch.from_numpy(y.astype(np.int64)), target.outputs if has_classes else 2
    is_valid, remedy = bool(((labels >= 0) & (labels < most)).all()), "number the classes from 0, and give"
    # Which label it is stays untold: a message may end up in a log.
    require(is_valid, f"labels 0 to {most - 1}", "another label", f"{remedy} the true number of classes")
    return labels if has_classes else labels.float()


def _digits() -> Task:
    """1797 images of 8 x 8, split 1437/360 in the order of sha256("digits:<index>"), a public permutation."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    held = {"images": bundle.images.astype(np.uint8).tobytes(), "labels": bundle.target.astype(np.uint8).tobytes()}
    verified(DIGITS_SHA256, held, "digits of scikit-learn")
    x = torch.frombuffer(bytearray(held["images"]), dtype=torch.uint8).reshape(-1, 1, 8, 8).float().div_(16)
    y = torch.frombuffer(bytearray(held["labels"]), dtype=torch.uint8).long()
    order = sorted(range(len(y)), key=lambda i: hashlib.sha256(f"digits:{i}".encode()).digest())
    train, test = (TensorDataset(x[part], y[part]) for part in (order[:1437], order[1437:]))
    digest, constants = checksum(DIGITS_SHA256), "x / 16, the format's largest value"
    return Task("digits", train, test, 10, (1, 8, 8), digest, public=True, records=1437, constants=constants)
