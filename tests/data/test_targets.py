"""What is predicted: a loss for each record alone, scores that agree with scikit-learn, labels by public bounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

from discreet.core.check import Refused
from discreet.data import load_npz
from discreet.data.features.texts import encoded
from discreet.data.schema import ENCODERS, Numbers, Schema
from discreet.data.tables import TableReader, load_table
from discreet.data.targets import Classes, Labels, Number, Target

N = 40


def drawn(target: Target, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(N, target.outputs, generator=generator)
    if isinstance(target, Classes):
        return outputs, torch.randint(target.number, (N,), generator=generator)
    if isinstance(target, Number):
        return outputs, 2 * torch.rand(N, generator=generator) - 1
    return outputs, torch.randint(2, (N, target.outputs), generator=generator).float()


TARGETS = (Classes(3), Number.within(-5.0, 20.0), Labels(("a", "b", "c")))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
def test_one_loss_for_each_record_which_no_other_moves(target: Target) -> None:
    outputs, labels = drawn(target)
    losses = target.losses(outputs, labels)
    assert losses.shape == (N,)
    for place in range(N):
        assert torch.equal(target.losses(outputs[place : place + 1], labels[place : place + 1])[0], losses[place])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
def test_scores_of_nothing_and_of_numbers_that_are_none(target: Target) -> None:
    outputs, labels = drawn(target)
    for found in (target.measures(outputs[:0], labels[:0]), target.measures(outputs * math.nan, labels)):
        assert next(iter(found)) == target.measure
        assert all(map(math.isfinite, found.values()))
    assert math.isfinite(target.best_constant(labels[:0]))


def test_errors_of_a_regression_are_in_the_units_of_the_column() -> None:
    target = Number.within(-5.0, 20.0)
    outputs, labels = drawn(target)
    truth, given = target.predictions(labels[:, None]).numpy(), target.predictions(outputs).numpy()
    assert truth.min() >= -5 <= given.min()
    assert given.max() <= 20
    assert target.measures(outputs, labels) == pytest.approx(
        {
            "R²": metrics.r2_score(truth, given),
            "MAE": metrics.mean_absolute_error(truth, given),
            "RMSE": metrics.root_mean_squared_error(truth, given),
        }
    )
    mean = torch.full((N, 1), float(labels.mean()))
    assert target.measures(mean, labels)["R²"] == pytest.approx(target.best_constant(labels), abs=1e-6)


def test_scores_of_several_labels() -> None:
    target = Labels(("a", "b", "c"))
    outputs, labels = drawn(target)
    given, truth = (outputs > 0).numpy(), labels.numpy() > 0.5
    assert target.measures(outputs, labels) == pytest.approx(
        {
            "label accuracy": (given == truth).mean(),
            "all labels right": metrics.accuracy_score(truth, given),
            "F1": metrics.f1_score(truth, given, average="macro"),
        }
    )
    shares = truth.mean(0)
    assert target.best_constant(labels) == pytest.approx(np.maximum(shares, 1 - shares).mean())


@pytest.mark.parametrize("log", [False, True])
def test_labels_are_scaled_by_public_bounds_and_back(log: bool) -> None:
    target = Number(Numbers.of(10.0, 5000.0, 4, log))
    values = np.array([-3.0, 10.0, 77.0, 5000.0, 1e9])
    labels = target.scaled(values)
    assert labels.min() == -1
    assert labels.max() == 1
    np.testing.assert_allclose(target.predictions(labels[:, None]), np.clip(values, 10, 5000), rtol=1e-5)


def test_a_logarithmic_column_has_bins_by_order_of_magnitude() -> None:
    plain, log = (Schema.of({"a": {"bounds": [0, 999], "bins": 3, "log": one}}) for one in (False, True))
    assert plain.columns["a"].edges == pytest.approx((333, 666))  # type: ignore[union-attr]
    assert log.columns["a"].edges == pytest.approx((9, 99))  # type: ignore[union-attr]
    assert log.encode({"a": [9.0]})[0].tolist() == pytest.approx([1 / 3, 0, 1, 0])


def test_text_is_encoded_by_public_constants_alone() -> None:
    texts = ["good shoes, good fit", "", "it broke"]
    schema = Schema.of({"review": {"text": "words"}})
    features = schema.encode({"review": texts})
    assert features.shape == (3, ENCODERS["words"]) == (3, schema.width)
    assert np.linalg.norm(features, axis=1).tolist() == pytest.approx([1, 0, 1])
    for place in range(3):
        np.testing.assert_array_equal(encoded("words", texts[place : place + 1])[0], features[place])


TABLE = "age,note,income,sick,poor\n" + "\n".join(
    f"{20 + i},fine {i},{100 * i},{i % 2},{i % 3 == 0}" for i in range(30)
)
SCHEMA: dict[str, Any] = {
    "age": {"bounds": [0, 100], "bins": 2},
    "note": {"text": "words"},
    "income": {"bounds": [0, 1000]},
    "sick": {"categories": [0, 1]},
    "poor": {"categories": ["False", "True"]},
}


def table(folder: Path, text: str = TABLE) -> Path:
    file = folder / "t.csv"
    file.write_text(text + "\n")
    return file


def test_a_table_with_a_number_or_several_labels_to_predict(tmp_path: Path) -> None:
    file = table(tmp_path)
    task = load_table(file, label="income", schema=SCHEMA, task="regression", hold_out=0.2)
    assert task.predicts == Number(Numbers.of(0, 1000))
    assert (task.classes, task.train.tensors[1].dtype) == (1, torch.float32)
    assert float(task.train.tensors[1].max()) == 1  # clamped to the bounds
    several = load_table(file, label="sick, poor", schema=SCHEMA, task="multilabel", hold_out=0.2)
    assert several.predicts == Labels(("sick", "poor"))
    assert several.shape == (3 + ENCODERS["words"] + 17,)
    assert set(several.train.tensors[1].unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("label", "task", "match"),
    [
        ("sick", "regression", "bounds of the label 'sick'"),
        ("age", "classification", "categories of the label 'age'"),
        ("sick,age", "multilabel", "categories of the label 'age'"),
        ("sick,pulse", "multilabel", "the label 'pulse' in the schema"),
        ("note", "classification", "categories of the label 'note'"),
        ("sick", "ranking", "a task of classification, regression, multilabel"),
    ],
)
def test_a_label_that_does_not_fit_its_task_is_refused(label: str, task: str, match: str) -> None:
    with pytest.raises(Refused, match=match):
        TableReader(SCHEMA, label, task)


def test_labels_of_three_categories_are_no_yes_or_no() -> None:
    with pytest.raises(Refused, match="two categories of the label 'a'"):
        TableReader({"a": {"categories": [1, 2, 3]}, "b": {"bounds": [0, 1]}}, "a", "multilabel")


def test_a_record_without_a_number_to_predict_is_refused_without_saying_which(tmp_path: Path) -> None:
    file = table(tmp_path, TABLE.replace(",700,", ",secret,"))
    with pytest.raises(Refused, match="a number as 'income'") as refusal:
        load_table(file, label="income", schema=SCHEMA, task="regression", hold_out=0.2)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("description", "match"),
    [
        ({"text": "greek"}, "text of words, minilm"),
        ({"bounds": [0, 1], "log": 2}, "log true or false"),
        ({"text": "words", "bins": 3}, "a description of column 'a'"),
    ],
)
def test_a_description_that_means_nothing_is_refused(description: dict[str, Any], match: str) -> None:
    with pytest.raises(Refused, match=match):
        Schema.of({"a": description})


def arrays(folder: Path, y: np.ndarray) -> Path:
    x = np.zeros((len(y), 4), np.float32)
    np.savez(folder / "a.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    return folder / "a.npz"


def test_arrays_of_numbers_and_of_several_labels(tmp_path: Path) -> None:
    task = load_npz(arrays(tmp_path, np.array([0.0, 0.5, 1.0, 7.0])), task="regression")
    assert task.train.tensors[1].tolist() == [-1, 0, 1, 1]
    task = load_npz(arrays(tmp_path, np.array([[0, 1], [1, 1]])), classes=2, task="multilabel")
    assert task.predicts == Labels(("0", "1"))
    assert task.train.tensors[1].tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("y", "task", "classes", "match"),
    [
        (np.array([0.0, math.nan]), "regression", None, "one finite number"),
        (np.array([[0.0], [1.0]]), "regression", None, "one finite number"),
        (np.array([0.0, 1.0]), "regression", 2, "no classes with regression"),
        (np.array([0, 1]), "multilabel", 2, "2 labels of 0 or 1"),
        (np.array([[0, 2], [1, 1]]), "multilabel", 2, "labels 0 to 1, got another label"),
        (np.array([[0, 1], [1, 1]]), "multilabel", None, "classes with an npz file"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, y: np.ndarray, task: str, classes: int | None, match: str
) -> None:
    with pytest.raises(Refused, match=match):
        load_npz(arrays(tmp_path, y), task=task, classes=classes)
