"""Use a finished run: predict the records of a file, or measure the predictions where the labels are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from discreet.core import check
from discreet.core.own_files import is_table
from discreet.core.plain import plain
from discreet.data import build, tables
from discreet.methods import METHODS
from discreet.methods.dpsgd_dc.guard import fitting
from discreet.runs.config import RunConfig
from discreet.runs.folder import RunFolder
from discreet.runs.training import load_config

_BINS = 10  # of the calibration error
Probabilities = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The probability of each class for each record, and the names of the classes."""

    classes: tuple[str, ...]
    probabilities: Probabilities

    @property
    def labels(self) -> list[str]:
        return [self.classes[place] for place in self.probabilities.argmax(1)]


@final
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good predictions are on records with known labels, which no epsilon protects.

    auc          area under the ROC curve; with several classes the mean of each class against the rest
    f1           the mean over the classes
    calibration  expected calibration error over ten bins of confidence
    majority     the accuracy of the most frequent class
    """

    records: int
    accuracy: float
    majority: float
    auc: float | None
    f1: float
    log_loss: float
    calibration: float

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if name != "is"}


def predict(run: str | Path, data: str | Path) -> Predictions:
    """The predictions of a finished run for the records of a file, which need no label."""
    config = _finished(run)
    x, _, classes = _records(config, data, labelled=False)
    return Predictions(classes=classes, probabilities=_probabilities(_model(config, run, x, len(classes)), x))


def evaluate(run: str | Path, data: str | Path) -> Evaluation:
    """How well a finished run predicts the records of a file with labels.

    Guarantee: none for the records of this file. Use records that need no protection.
    """
    config = _finished(run)
    x, y, classes = _records(config, data, labelled=True)
    assert y is not None
    return measured(_probabilities(_model(config, run, x, len(classes)), x), y.numpy())


def measured(probabilities: Probabilities, labels: npt.NDArray[np.int64]) -> Evaluation:
    """All measures of predictions.

    >>> found = measured(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1]))
    >>> round(found.accuracy, 3), found.auc, round(found.calibration, 3)
    (0.667, 1.0, 0.3)
    """
    from sklearn.metrics import f1_score, roc_auc_score

    check.require(len(labels) > 0, "records to measure on", "none", "pass a file with records")
    chosen, confidence = probabilities.argmax(1), probabilities.max(1)
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    auc = None
    if (counts > 0).all():  # otherwise it is not defined
        auc = (
            roc_auc_score(labels, probabilities[:, 1])
            if len(counts) == 2
            else roc_auc_score(labels, probabilities, multi_class="ovr")
        )
    right = (chosen == labels).astype(float)
    places = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [abs((right - confidence)[places == one].sum()) for one in range(_BINS)]
    likely = np.clip(probabilities[np.arange(len(labels)), labels], 1e-12, 1.0)
    return Evaluation(
        records=len(labels),
        accuracy=float(right.mean()),
        majority=float(counts.max() / len(labels)),
        auc=None if auc is None else float(auc),
        f1=float(f1_score(labels, chosen, average="macro", zero_division=0.0)),
        log_loss=float(-np.log(likely).mean()),
        calibration=float(sum(gaps) / len(labels)),
    )


def _finished(run: str | Path) -> RunConfig:
    folder = RunFolder(run)
    folder.check_begun()
    remedy = f"finish it first: discreet resume {folder.directory}"
    check.require(folder.model.is_file(), f"a finished run in {folder.directory}", "no model.pt", remedy)
    config = load_config(run)
    got, remedy = ", ".join(config.features or ()), "train without features, or compute them for the file yourself"
    check.require(not config.features, "a run on the records themselves", f"one on features ({got})", remedy)
    return config


def _records(config: RunConfig, data: str | Path, *, labelled: bool) -> tuple[torch.Tensor, Any, tuple[str, ...]]:
    """The records of a file as the run's model takes them, their labels, and the names of the classes."""
    if is_table(config.data):
        reader, columns = (
            tables.TableReader(tables.read_schema(str(config.schema)), str(config.label)),
            tables.read(data),
        )
        return reader.features(columns), reader.labels(columns) if labelled else None, reader.classes
    remedy = "predict and evaluate take tables for runs on tables, and an npz file with x and y for other runs"
    check.require(str(data).endswith(".npz"), "an npz file for this run", str(data), remedy)
    columns = _arrays(Path(data))
    known = columns.get("x", columns.get("x_test"))
    labels = columns.get("y", columns.get("y_test"))
    expected = "x, and y to evaluate," if labelled else "x"
    is_whole = known is not None and (labels is not None or not labelled)
    check.require(
        is_whole, f"an npz file with {expected}", ", ".join(columns), "write it with numpy.savez(path, x=, y=)"
    )
    assert known is not None
    x = torch.from_numpy(known.astype(np.float32))
    x = x / 255 if known.dtype == np.uint8 else x
    y = None if labels is None else torch.from_numpy(labels.astype(np.int64))
    count = config.classes
    if count is None:
        check.refuse("a run on a file of yours", config.data, "its accuracy is in result.json already")
    return x, y, tuple(map(str, range(count)))


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    check.require(path.is_file(), "an npz file", f"no file {path}", "check the path")
    with np.load(path, allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def _model(config: RunConfig, run: str | Path, x: torch.Tensor, classes: int) -> nn.Module:
    recipe = METHODS[config.method].recipe(**dict(config.parameters))
    model = fitting(build(str(config.model), shape=tuple(x.shape[1:]), classes=classes, seed=0), recipe)
    model.load_state_dict(torch.load(RunFolder(run).model, weights_only=True))
    return model.eval()


@torch.no_grad()
def _probabilities(model: nn.Module, x: torch.Tensor) -> Probabilities:
    parts = [model(part).double().softmax(1).numpy() for part in x.split(2048)]
    return np.concatenate(parts) if parts else np.zeros((0, 1))
