"""scikit-learn estimators with differential privacy, for tables with a public description of their columns.

    model = PrivateClassifier(
        epsilon=1.0,
        records=30_000,
        schema={"age": {"bounds": [17, 90]}, "city": {"categories": ["Delft", "Leiden"]}},
        target={"categories": ["no", "yes"]},
    )
    model.fit(table, labels)
    print(model.epsilon_, model.score(other_table, other_labels))

Scales, categories and classes come from the description, never from the records.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import discreet
from discreet.integrations.refusal import require

CLIP: Final = 0.5
STEPS: Final = 100
BATCHES: Final = 8  # in an epoch: a large batch drowns the noise
_MICRO: Final = 8192
_RESULTS: Final = frozenset({"model_", "certificate_", "epsilon_", "statement_", "n_iter_"})


def _cells(X: Any) -> Any:
    """Rows with each cell as it is: in an array of one type, one text would turn all numbers into texts, and one
    fraction all whole numbers into fractions, which large ones do not survive."""
    if isinstance(X, (list, tuple)):
        return np.asarray(X, object)
    if not any(kind.__name__ == "DataFrame" and kind.__module__.startswith("pandas") for kind in type(X).__mro__):
        return X
    kinds = set(X.dtypes)
    is_one = len(kinds) == 1 and all(isinstance(kind, np.dtype) for kind in kinds)  # categories have types of their own
    return X if is_one else X.astype(object)


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share.

    epsilon        the privacy budget of `fit`
    delta          default: 1 / (10 * records)
    records        a public number close to the number of rows; the exact number is private
    schema         public description of the columns; those of an array are called x0, x1, …
    target         public description of the label, in the same form
    hidden         widths of hidden layers; (): a linear model
    recipe         the method; default: methods.dp_sgd
    batch, steps   default: an eighth of the records, 100 steps
    learning_rate  of SGD; it falls to zero
    ledger         file for the charges; default: in memory
    streams        random streams for tests; default: seeded by the operating system

    After `fit`: `epsilon_`, `certificate_`, `statement_` (a page of Markdown), `model_`.
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        records: int | None = None,
        schema: Mapping[str, Any] | None = None,
        target: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (),
        recipe: discreet.Recipe | None = None,
        batch: int | None = None,
        steps: int = STEPS,
        learning_rate: float | None = None,
        ledger: str | Path | None = None,
        streams: discreet.Streams | None = None,
    ) -> None:
        self.epsilon, self.delta, self.records = epsilon, delta, records
        self.schema, self.target, self.hidden, self.recipe = schema, target, hidden, recipe
        self.batch, self.steps, self.learning_rate = batch, steps, learning_rate
        self.ledger, self.streams = ledger, streams

    # -- what the estimators differ in -----------------------------------------------------------------

    def _labels(self, y: Any) -> Tensor:
        """The labels as the loss takes them, by the public description of the target."""
        raise NotImplementedError

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """One loss for each record."""
        raise NotImplementedError

    def _outputs(self) -> int:
        """The width of the last layer."""
        raise NotImplementedError

    def _rate(self) -> float:
        """The default learning rate."""
        raise NotImplementedError

    # -- fit and predict -------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, unit: Any = None) -> Self:
        """Train on the rows of X, with the whole budget.

        unit  if `recipe` protects users (`recipe.using(unit=...)`): the owner of each row
        """
        self._forget()
        X, y = validate_data(self, _cells(X), y, dtype=None, ensure_all_finite=True, y_numeric=False, reset=True)
        remedy = "pass records=, a public number close to the number of rows"
        require(self.records is not None, "a public number of records", "none", remedy)
        assert self.records is not None
        self.schema_ = discreet.Schema.of(self.schema, self._names())
        labels = self._labels(y)
        plan = self._plan(self.records)
        model = self._network(self.schema_.width)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate or self._rate())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / plan.horizon.steps)
        data = TensorDataset(self._features(X), labels)
        private = discreet.Private(
            model, optimizer, plan, data, micro_batch=_MICRO, ledger=self.ledger, streams=self.streams, unit=unit
        )
        with closing(private):
            for rows, answers in private:
                if private.step(self._losses(model(rows), answers)):
                    schedule.step()
            self.certificate_ = private.spent().certified
            self.epsilon_ = self.certificate_.epsilon
            self.statement_ = discreet.statement(private, data="the rows given to fit")
        self.n_iter_, self.model_ = plan.horizon.steps, model  # a model always comes with what it has cost
        return self

    def _forget(self) -> None:
        """Drop the results of an earlier fit: they say nothing about this one, which may be interrupted."""
        for name in _RESULTS & vars(self).keys():
            delattr(self, name)

    def _plan(self, records: int) -> discreet.Plan:
        recipe = discreet.methods.dp_sgd(clip=CLIP) if self.recipe is None else self.recipe
        batch = max(1, math.ceil(records / BATCHES)) if self.batch is None else self.batch
        delta = 1 / (10 * records) if self.delta is None else self.delta
        return recipe.for_budget(epsilon=self.epsilon, delta=delta, records=records, batch=batch, steps=self.steps)

    def _network(self, width: int) -> nn.Module:
        """A linear model that starts at zero, or a perceptron with initial values from its own generator."""
        if not self.hidden:
            linear = nn.Linear(width, self._outputs())
            for parameter in linear.parameters():
                nn.init.zeros_(parameter)
            return linear
        widths = (width, *self.hidden)
        layers: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # initial values are public: the same in every fit
            for before, after in itertools.pairwise(widths):
                layers += [nn.Linear(before, after), nn.Tanh()]
            return nn.Sequential(*layers, nn.Linear(widths[-1], self._outputs()))

    def _names(self) -> list[str]:
        named = getattr(self, "feature_names_in_", None)
        return [f"x{place}" for place in range(self.n_features_in_)] if named is None else list(named)

    def _features(self, X: Any) -> Tensor:
        """The features of each row, scaled to length 1, so that no row has a larger gradient than its error allows."""
        table = {name: X[:, place] for place, name in enumerate(self._names())}
        return F.normalize(torch.from_numpy(self.schema_.encode(table)), dim=1)

    def _predicted(self, X: Any) -> Tensor:
        check_is_fitted(self, "model_")
        X = validate_data(self, _cells(X), dtype=None, ensure_all_finite=True, reset=False)
        with torch.no_grad():
            outputs: Tensor = self.model_(self._features(X))
        return outputs


class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]
    """A classifier with differential privacy: linear, or a perceptron with `hidden=(64,)`.

    Guarantee: `model_`, and so every prediction, has the certificate `certificate_` for the rows given to `fit`.

    target  the classes: {"categories": ["no", "yes"]}

    The other parameters are `epsilon`, `delta`, `records`, `schema`, `hidden`, `recipe`, `batch`, `steps`,
    `learning_rate`, `ledger` and `streams`.
    """

    def _labels(self, y: Any) -> Tensor:
        check_classification_targets(y)
        self.classes_ = self._classes(y)
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        found = [places.get(label) for label in np.asarray(y).tolist()]
        require(None not in found, "labels among the public classes", "another label", "list every class in target=")
        return torch.tensor(found)

    def _classes(self, y: Any) -> Any:
        remedy = 'pass target={"categories": ["no", "yes"]}: which classes occur in the records is private'
        given = self.target is not None and set(self.target) == {"categories"}
        require(given, "the public classes", f"target={self.target!r}", remedy)
        assert self.target is not None
        classes = np.unique(np.asarray(list(self.target["categories"])))
        require(len(classes) > 1, "more than one class", f"{len(classes)} class", "list every class in target=")
        return classes

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, reduction="none")

    def _outputs(self) -> int:
        return len(self.classes_)

    def _rate(self) -> float:
        return 20.0 if self.hidden else 80.0

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class."""
        return self._predicted(X).double().softmax(1).numpy()

    def predict(self, X: Any) -> Any:
        """The likeliest class."""
        likeliest = self._predicted(X).argmax(1).numpy()
        return self.classes_[likeliest]


class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]
    """A regressor with differential privacy: linear, or a perceptron with `hidden=(64,)`.

    Guarantee: `model_`, and so every prediction, has the certificate `certificate_` for the rows given to `fit`.

    target  the bounds of the label: {"bounds": [0, 500]}; labels outside are clamped to them

    The other parameters are those of `PrivateClassifier`.
    """

    def _labels(self, y: Any) -> Tensor:
        low, high = self._bounds(y)
        self.target_bounds_ = low, high
        try:
            values = np.asarray(y).astype(np.float64)
        except (TypeError, ValueError):  # the message has no label, which is private
            values = np.empty(0)
        require(len(values) > 0, "numbers as labels", "Unknown label type", "convert them")
        return torch.from_numpy(2 * (np.clip(values, low, high) - low) / (high - low) - 1).float()

    def _bounds(self, y: Any) -> tuple[float, float]:
        remedy = 'pass target={"bounds": [0, 500]}: the smallest and the largest label are private'
        given = self.target is not None and set(self.target) == {"bounds"} and len(self.target["bounds"]) == 2
        require(given, "public bounds of the label", f"target={self.target!r}", remedy)
        assert self.target is not None
        low, high = map(float, self.target["bounds"])
        require(low < high, "bounds low < high", f"{low} and {high}", remedy)
        return low, high

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(outputs.squeeze(1), labels, reduction="none")

    def _outputs(self) -> int:
        return 1

    def _rate(self) -> float:
        return 1.0

    def predict(self, X: Any) -> Any:
        """The expected label."""
        outputs = self._predicted(X).squeeze(1).double().numpy()
        low, high = self.target_bounds_
        return low + (high - low) * (outputs + 1) / 2
