"""Use a finished run: predict the records of a file, or measure the predictions where the labels are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import TensorDataset

from discreet.core import check
from discreet.core.own_files import CLASSIFICATION, is_own, is_table
from discreet.data import Task, build, tables
from discreet.data.datasets import PRIVATE_CHECKSUM, array_target, constants_of, own_labels, own_values
from discreet.data.features import extract, needs_public
from discreet.data.labels import LabelColumns
from discreet.data.targets import Labels, Number, Target
from discreet.methods import METHODS
from discreet.methods.dpsgd_dc.guard import fitting
from discreet.runs.folder import RunFolder
from discreet.runs.public_records import load_named
from discreet.runs.training import load_config

_BINS = 10  # of the calibration error
Probabilities = npt.NDArray[np.float64]
Row = tuple[str, str, str]  # measure, value, remark


@final
@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The probability of each class for each record, and the names of the classes."""

    classes: tuple[str, ...]
    probabilities: Probabilities

    @property
    def labels(self) -> list[str]:
        return [self.classes[place] for place in self.probabilities.argmax(1)]

    @property
    def header(self) -> list[str]:
        return ["label", *(f"p({name})" for name in self.classes)]

    @property
    def rows(self) -> list[list[str]]:
        pairs = zip(self.labels, self.probabilities.tolist(), strict=True)
        return [[label, *(f"{value:.6f}" for value in p)] for label, p in pairs]

    def to_json(self) -> dict[str, Any]:
        pairs = zip(self.labels, self.probabilities.tolist(), strict=True)
        return {"classes": list(self.classes), "predictions": [{"label": label, "p": p} for label, p in pairs]}


@final
@dataclass(frozen=True, kw_only=True)
class NumberPredictions:
    """A number for each record, within the public bounds of the label."""

    column: str
    numbers: Probabilities

    @property
    def header(self) -> list[str]:
        return [self.column]

    @property
    def rows(self) -> list[list[str]]:
        return [[f"{value:.6g}"] for value in self.numbers.tolist()]

    def to_json(self) -> dict[str, Any]:
        return {"column": self.column, "predictions": self.numbers.tolist()}


@final
@dataclass(frozen=True, kw_only=True)
class LabelPredictions:
    """The probability of each label for each record; a label is given from one half on.

    values  how no and yes are written for each label
    """

    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    probabilities: Probabilities

    @property
    def header(self) -> list[str]:
        return [*self.names, *(f"p({name})" for name in self.names)]

    @property
    def rows(self) -> list[list[str]]:
        return [
            [*(told[p >= 0.5] for told, p in zip(self.values, row, strict=True)), *(f"{p:.6f}" for p in row)]
            for row in self.probabilities.tolist()
        ]

    def to_json(self) -> dict[str, Any]:
        found = self.probabilities.tolist()
        given = [[name for name, p in zip(self.names, row, strict=True) if p >= 0.5] for row in found]
        pairs = zip(given, found, strict=True)
        return {"labels": list(self.names), "predictions": [{"labels": labels, "p": p} for labels, p in pairs]}


@final
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good predictions are on records with known labels, which no epsilon protects.

    values  the measures by name, and what they are read against
    rows    the same in words
    """

    records: int
    values: Mapping[str, float | None]
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        return {"records": self.records, **self.values}


AnyPredictions = Predictions | NumberPredictions | LabelPredictions


def predict(run: str | Path, data: str | Path) -> AnyPredictions:
    """The predictions of a finished run for the records of a file, which need no label."""
    used = _FinishedRun(run)
    outputs = used.outputs(used.records(data, labelled=False)[0])
    if isinstance(used.target, Number):
        return NumberPredictions(column=used.names[0], numbers=used.target.predictions(outputs).numpy())
    if isinstance(used.target, Labels):
        return LabelPredictions(names=used.names, values=used.values, probabilities=outputs.sigmoid().numpy())
    return Predictions(classes=used.names, probabilities=outputs.softmax(1).numpy())


def evaluate(run: str | Path, data: str | Path) -> Evaluation:
    """How well a finished run predicts the records of a file with labels.

    Guarantee: none for the records of this file. Use records that need no protection.
    """
    used = _FinishedRun(run)
    x, y = used.records(data, labelled=True)
    assert y is not None
    check.require(len(y) > 0, "records to measure on", "none", "pass a file with records")
    outputs = used.outputs(x)
    if isinstance(used.target, Number):
        return measured_numbers(used.target, outputs, y)
    if isinstance(used.target, Labels):
        return measured_labels(used.target, outputs, y)
    return measured(outputs.softmax(1).numpy(), y.numpy())


def measured_numbers(target: Number, outputs: torch.Tensor, labels: torch.Tensor) -> Evaluation:
    """The errors of a regression, in the units of the label; `constant` is the RMSE of always answering the mean.

    >>> found = measured_numbers(Number.within(0, 10), torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 0.6]))
    >>> [round(value, 3) for value in found.values.values()]
    [1.0, 1.414, 0.111, 1.5]
    """
    scores = target.measures(outputs, labels)
    mae, rmse, r2 = scores["MAE"], scores["RMSE"], scores[target.measure]
    constant = float(target.predictions(labels.unsqueeze(1)).std(correction=0))
    return Evaluation(
        records=len(labels),
        values={"mae": mae, "rmse": rmse, "r2": r2, "constant": constant},
        rows=(
            ("MAE", f"{mae:.4g}", "mean absolute error, in the units of the label"),
            ("RMSE", f"{rmse:.4g}", f"root of the mean squared error; always the mean: {constant:.4g}"),
            ("R²", f"{r2:.3f}", "share of the variance that is explained; always the mean: 0"),
        ),
    )


def measured_labels(target: Labels, outputs: torch.Tensor, labels: torch.Tensor) -> Evaluation:
    """The scores of several labels: `accuracy` over all labels, `exact` for records whose labels are all right.

    AUC and F1 are means over the labels. A label that no record or every record has is left out of AUC.
    """
    from sklearn.metrics import roc_auc_score

    scores, likely, truth = target.measures(outputs, labels), outputs.sigmoid().numpy(), labels.numpy() > 0.5
    accuracy, majority, exact = scores[target.measure], target.best_constant(labels), scores["all labels right"]
    mixed = [place for place in range(truth.shape[1]) if 0 < truth[:, place].sum() < len(truth)]
    areas = [roc_auc_score(truth[:, place], likely[:, place]) for place in mixed]
    return _evaluation(
        records=len(labels),
        first={"accuracy": accuracy, "majority": majority, "exact": exact},
        rows=(
            ("label accuracy", f"{accuracy:.2%}", f"always the most frequent value: {majority:.2%}"),
            ("all labels right", f"{exact:.2%}", "share of the records"),
        ),
        auc=float(np.mean(areas)) if areas else None,
        f1=scores["F1"],
        over="labels",
        log_loss=float(target.losses(outputs, labels.double()).mean()) / target.outputs,
        calibration=_calibration(np.maximum(likely, 1 - likely).ravel(), ((likely > 0.5) == truth).ravel()),
    )


def measured(probabilities: Probabilities, labels: npt.NDArray[np.int64]) -> Evaluation:
    """The scores of classes. With several classes AUC is the mean of each class against the rest.

    >>> found = measured(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1])).values
    >>> round(found["accuracy"], 3), found["auc"], round(found["calibration"], 3)
    (0.667, 1.0, 0.3)
    """
    from sklearn.metrics import f1_score, roc_auc_score

    chosen, confidence = probabilities.argmax(1), probabilities.max(1)
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    auc = None
    if (counts > 0).all():  # otherwise it is not defined
        auc = (
            roc_auc_score(labels, probabilities[:, 1])
            if len(counts) == 2
            else roc_auc_score(labels, probabilities, multi_class="ovr")
        )
    right = chosen == labels
    likely = np.clip(probabilities[np.arange(len(labels)), labels], 1e-12, 1.0)
    accuracy, majority = float(right.mean()), float(counts.max() / len(labels))
    return _evaluation(
        records=len(labels),
        first={"accuracy": accuracy, "majority": majority},
        rows=(("accuracy", f"{accuracy:.2%}", f"the most frequent class: {majority:.2%}"),),
        auc=None if auc is None else float(auc),
        f1=float(f1_score(labels, chosen, average="macro", zero_division=0.0)),
        over="classes",
        log_loss=float(-np.log(likely).mean()),
        calibration=_calibration(confidence, right),
    )


def _evaluation(
    *,
    records: int,
    first: Mapping[str, float],
    rows: tuple[Row, ...],
    auc: float | None,
    f1: float,
    over: str,
    log_loss: float,
    calibration: float,
) -> Evaluation:
    """Measures of a task's own, then those that classes and labels share."""
    area = "not defined: a class is missing" if auc is None else f"{auc:.3f}"
    shared = (
        ("AUC", area, f"area under the ROC curve, mean over the {over}"),
        ("F1", f"{f1:.3f}", f"mean over the {over}"),
        ("log loss", f"{log_loss:.3f}", "smaller is better"),
        ("calibration error", f"{calibration:.3f}", "confidence against accuracy, ten bins"),
    )
    values = {**first, "auc": auc, "f1": f1, "log_loss": log_loss, "calibration": calibration}
    return Evaluation(records=records, values=values, rows=(*rows, *shared))


def _calibration(confidence: Probabilities, right: npt.NDArray[np.bool_]) -> float:
    """The expected calibration error over bins of equal width."""
    places = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [abs((right - confidence)[places == one].sum()) for one in range(_BINS)]
    return float(sum(gaps) / len(right))


@final
class _FinishedRun:
    """The model of a finished run, and how it reads records."""

    def __init__(self, run: str | Path) -> None:
        self._folder = RunFolder(run)
        self._folder.check_begun()
        remedy = f"finish it first: discreet resume {self._folder.directory}"
        expected = f"a finished run in {self._folder.directory}"
        check.require(self._folder.model.is_file(), expected, "no model.pt", remedy)
        self._config = config = load_config(run)
        self._table: tables.TableReader | None = None
        task = config.task or CLASSIFICATION
        if is_table(config.data, config.label):
            schema = tables.read_schema(str(config.schema))
            self._table = tables.TableReader(schema, str(config.label), task)
            self.target: Target = self._table.labels.target
            self.names = self._table.labels.names
        else:
            own, remedy = is_own(config.data), "its accuracy is in result.json already"
            check.require(own, "a run on a file of yours", config.data, remedy)
            self.target = array_target(task, config.classes)
            self.names = tuple(map(str, range(self.target.outputs)))

    @property
    def values(self) -> tuple[tuple[str, ...], ...]:
        """How no and yes are written for each label."""
        if self._table is not None and isinstance(self._table.labels, LabelColumns):
            return tuple(self._table.labels.values.values())
        return (("0", "1"),) * self.target.outputs

    def records(self, data: str | Path, *, labelled: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The records of a file as the model takes them, and their labels."""
        if self._table is not None:
            columns = tables.read(data)
            return self._table.features(columns), self._table.labels.read(columns) if labelled else None
        remedy = "predict and evaluate take tables for runs on tables, and an npz file with x and y for other runs"
        check.require(str(data).endswith(".npz"), "an npz file for this run", str(data), remedy)
        arrays = _arrays(Path(data))
        known, labels = (arrays.get(name, arrays.get(f"{name}_test")) for name in ("x", "y"))
        expected = "x, and y to evaluate," if labelled else "x"
        if known is None or (labels is None and labelled):
            remedy = "write it with numpy.savez(path, x=, y=)"
            check.refuse(f"an npz file with {expected}", ", ".join(arrays), remedy)
        x = own_values(known)
        y = None if labels is None or not labelled else own_labels(labels, len(x), self.target)
        return self._features(x, constants_of(known)), y

    def _features(self, x: torch.Tensor, constants: str) -> torch.Tensor:
        """The public features that the run was trained on, or the records as they are."""
        names, shape = self._config.features, tuple(x.shape[1:])
        if not names or not len(x):
            return x
        alone = TensorDataset(x, torch.zeros(len(x)))
        task = Task("records", alone, alone, self.target.outputs, shape, PRIVATE_CHECKSUM, False, None, constants)
        public = load_named(self._config.public_records, self._config, task) if needs_public(names) else None
        return extract(task, names, public=public, data_dir=self._config.data_dir).train.tensors[0]

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """What the model gives for each record, [n, outputs]."""
        config = self._config
        recipe = METHODS[config.method].recipe(**dict(config.parameters))
        shape = tuple(x.shape[1:])
        model = fitting(build(str(config.model), shape=shape, classes=self.target.outputs, seed=0), recipe).eval()
        model.load_state_dict(torch.load(self._folder.model, weights_only=True))
        parts = [model(part).double() for part in x.split(2048)]
        return torch.cat(parts) if len(x) else torch.zeros(0, self.target.outputs, dtype=torch.float64)


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    check.require(path.is_file(), "an npz file", f"no file {path}", "check the path")
    with np.load(path, allow_pickle=False) as held:
        return {name: held[name] for name in held.files}
