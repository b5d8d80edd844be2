"""Use a finished run: predict the records of a file, or measure the predictions where the labels are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from discreet.core import check
from discreet.core.own_files import CLASSIFICATION, is_own, is_table
from discreet.core.plain import plain
from discreet.data import build, tables
from discreet.data.datasets import array_target, own_labels
from discreet.data.labels import LabelColumns
from discreet.data.targets import Labels, Number, Target
from discreet.methods import METHODS
from discreet.methods.dpsgd_dc.guard import fitting
from discreet.runs.folder import RunFolder
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

    @property
    def rows(self) -> list[Row]:
        return [
            ("accuracy", f"{self.accuracy:.2%}", f"the most frequent class: {self.majority:.2%}"),
            ("AUC", _auc(self.auc), "area under the ROC curve"),
            ("F1", f"{self.f1:.3f}", "mean over the classes"),
            ("log loss", f"{self.log_loss:.3f}", "smaller is better"),
            ("calibration error", f"{self.calibration:.3f}", "confidence against accuracy, ten bins"),
        ]


@final
@dataclass(frozen=True, kw_only=True)
class NumberEvaluation:
    """The errors of predicted numbers on records that no epsilon protects, in the units of the label.

    constant  the RMSE of always answering the mean of these labels
    """

    records: int
    mae: float
    rmse: float
    r2: float
    constant: float

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if name != "is"}

    @property
    def rows(self) -> list[Row]:
        return [
            ("MAE", f"{self.mae:.4g}", "mean absolute error, in the units of the label"),
            ("RMSE", f"{self.rmse:.4g}", f"root of the mean squared error; always the mean: {self.constant:.4g}"),
            ("R²", f"{self.r2:.3f}", "share of the variance that is explained; always the mean: 0"),
        ]


@final
@dataclass(frozen=True, kw_only=True)
class LabelEvaluation:
    """How good predictions of several labels are on records that no epsilon protects.

    accuracy  over all labels; `exact` is the share of records whose labels are all right
    auc, f1   means over the labels; a label that no record or every record has is left out of auc
    """

    records: int
    accuracy: float
    majority: float
    exact: float
    auc: float | None
    f1: float
    log_loss: float
    calibration: float

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if name != "is"}

    @property
    def rows(self) -> list[Row]:
        return [
            ("label accuracy", f"{self.accuracy:.2%}", f"always the most frequent value: {self.majority:.2%}"),
            ("all labels right", f"{self.exact:.2%}", "share of the records"),
            ("AUC", _auc(self.auc), "mean over the labels"),
            ("F1", f"{self.f1:.3f}", "mean over the labels"),
            ("log loss", f"{self.log_loss:.3f}", "of one label; smaller is better"),
            ("calibration error", f"{self.calibration:.3f}", "confidence against accuracy, ten bins"),
        ]


def _auc(value: float | None) -> str:
    return "not defined: a class is missing" if value is None else f"{value:.3f}"


AnyPredictions = Predictions | NumberPredictions | LabelPredictions
AnyEvaluation = Evaluation | NumberEvaluation | LabelEvaluation


def predict(run: str | Path, data: str | Path) -> AnyPredictions:
    """The predictions of a finished run for the records of a file, which need no label."""
    used = _FinishedRun(run)
    outputs = used.outputs(used.records(data, labelled=False)[0])
    if isinstance(used.target, Number):
        return NumberPredictions(column=used.names[0], numbers=used.target.predictions(outputs).numpy())
    if isinstance(used.target, Labels):
        return LabelPredictions(names=used.names, values=used.values, probabilities=outputs.sigmoid().numpy())
    return Predictions(classes=used.names, probabilities=outputs.softmax(1).numpy())


def evaluate(run: str | Path, data: str | Path) -> AnyEvaluation:
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


def measured_numbers(target: Number, outputs: torch.Tensor, labels: torch.Tensor) -> NumberEvaluation:
    """The errors of a regression.

    >>> found = measured_numbers(Number.within(0, 10), torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 0.6]))
    >>> round(found.mae, 3), round(found.rmse, 3), round(found.r2, 3), round(found.constant, 3)
    (1.0, 1.414, 0.111, 1.5)
    """
    scores = target.measures(outputs, labels)
    spread = target.predictions(labels.unsqueeze(1)).std(correction=0)
    values = {"mae": scores["MAE"], "rmse": scores["RMSE"], "r2": scores[target.measure], "constant": float(spread)}
    return NumberEvaluation(records=len(labels), **values)


def measured_labels(target: Labels, outputs: torch.Tensor, labels: torch.Tensor) -> LabelEvaluation:
    """The scores of several labels."""
    from sklearn.metrics import roc_auc_score

    scores, likely, truth = target.measures(outputs, labels), outputs.sigmoid().numpy(), labels.numpy() > 0.5
    mixed = [place for place in range(truth.shape[1]) if 0 < truth[:, place].sum() < len(truth)]
    areas = [roc_auc_score(truth[:, place], likely[:, place]) for place in mixed]
    return LabelEvaluation(
        records=len(labels),
        accuracy=scores[target.measure],
        majority=target.best_constant(labels),
        exact=scores["all labels right"],
        auc=float(np.mean(areas)) if areas else None,
        f1=scores["F1"],
        log_loss=float(target.losses(outputs, labels.double()).mean()) / target.outputs,
        calibration=_calibration(np.maximum(likely, 1 - likely).ravel(), ((likely > 0.5) == truth).ravel()),
    )


def _calibration(confidence: Probabilities, right: npt.NDArray[np.bool_]) -> float:
    """The expected calibration error over bins of equal width."""
    places = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [abs((right - confidence)[places == one].sum()) for one in range(_BINS)]
    return float(sum(gaps) / len(right))


def measured(probabilities: Probabilities, labels: npt.NDArray[np.int64]) -> Evaluation:
    """All measures of predictions.

    >>> found = measured(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1]))
    >>> round(found.accuracy, 3), found.auc, round(found.calibration, 3)
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
    return Evaluation(
        records=len(labels),
        accuracy=float(right.mean()),
        majority=float(counts.max() / len(labels)),
        auc=None if auc is None else float(auc),
        f1=float(f1_score(labels, chosen, average="macro", zero_division=0.0)),
        log_loss=float(-np.log(likely).mean()),
        calibration=_calibration(confidence, right),
    )


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
        got, remedy = ", ".join(config.features or ()), "train without features, or compute them for the file yourself"
        check.require(not config.features, "a run on the records themselves", f"one on features ({got})", remedy)
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
        x = torch.from_numpy(known.astype(np.float32))
        x = x / 255 if known.dtype == np.uint8 else x
        return x, None if labels is None or not labelled else own_labels(labels, len(x), self.target)

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
