"""Adult (UCI census income) through scikit-learn: who earns more than 50,000 dollars, at epsilon 1.

    python examples/adult_sklearn.py

Needs the files that docs/datasets.md names. The description of the columns is that of the documentation published with
the data. No parameter is set; the defaults of the estimator were chosen on this table, which is public.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import discreet
from discreet.data import adult
from discreet.integrations.sklearn import PrivateClassifier

RECORDS = 32_561  # public: the published size of the training set
BOUNDS = {
    "age": [17, 90],
    "educational-num": [1, 16],
    "capital-gain": [0, 99_999],
    "capital-loss": [0, 5_000],
    "hours-per-week": [1, 99],
}
SCHEMA: dict[str, Any] = {
    **{name: {"bounds": bounds} for name, bounds in BOUNDS.items()},
    **{name: {"categories": list(known)} for name, known in adult.CATEGORIES.items()},
}
TARGET = {"categories": ["<=50K", ">50K"]}


def table(raw: bytes) -> tuple[Any, Any]:
    """The described columns of a UCI file, in the order of the schema, and the labels."""
    lines = raw.decode().splitlines()
    rows = [line.rstrip(".").split(", ") for line in lines if line and not line.startswith("|")]
    held = dict(zip((*adult.COLUMNS, "income"), zip(*rows, strict=True), strict=True))
    kinds = {name: float if name in BOUNDS else object for name in SCHEMA}
    columns = [np.array(held[name], kind).astype(object) for name, kind in kinds.items()]
    return np.stack(columns, axis=1), np.array(held["income"])


def named(schema: dict[str, Any]) -> dict[str, Any]:
    """Columns of an array are called x0, x1, …"""
    return {f"x{place}": description for place, description in enumerate(schema.values())}


def main(parts: dict[str, bytes], *, epsilon: float = 1.0, repeats: int = 5, **options: Any) -> dict[str, Any]:
    """Fit with defaults, several times; and without privacy."""
    (X, y), (X_test, y_test) = (table(parts[name]) for name in adult.PARTS)
    found, seconds = [], 0.0
    for _ in range(repeats):
        begun = time.perf_counter()
        model = PrivateClassifier(epsilon=epsilon, records=RECORDS, schema=named(SCHEMA), target=TARGET, **options)
        model.fit(X, y)
        seconds += time.perf_counter() - begun
        found.append((model.score(X_test, y_test), roc_auc_score(y_test, model.predict_proba(X_test)[:, 1])))
    accuracy, auc = np.mean(found, axis=0).tolist()
    schema = discreet.Schema.of(named(SCHEMA))
    encode = lambda rows: schema.encode({name: rows[:, place] for place, name in enumerate(schema.columns)})  # noqa: E731
    open_model = LogisticRegression(max_iter=300, tol=1e-3).fit(encode(X), y)
    return {
        "epsilon": model.epsilon_,
        "delta": model.certificate_.delta,
        "runs": repeats,
        "accuracy": accuracy,
        "auc": auc,
        "accuracies": [one for one, _ in found],
        "seconds": seconds / repeats,
        "logistic_regression": {
            "accuracy": open_model.score(encode(X_test), y_test),
            "auc": roc_auc_score(y_test, open_model.predict_proba(encode(X_test))[:, 1]),
        },
        "diffprivlib": _diffprivlib(encode(X), y, encode(X_test), y_test, epsilon),
    }


def _diffprivlib(X: Any, y: Any, X_test: Any, y_test: Any, epsilon: float) -> dict[str, float] | None:
    """The private logistic regression of diffprivlib on the same features; None if it is not installed.

    diffprivlib 0.6.6 cannot be imported beside scikit-learn 1.9: `sklearn.tree._tree` has no DOUBLE any more.
    """
    try:
        from diffprivlib.models.logistic_regression import LogisticRegression as Theirs
    except ImportError:
        return None
    longest = float(np.sqrt(len(SCHEMA) + len(BOUNDS)))  # each block has one 1, each number one value up to 1
    model = Theirs(epsilon=epsilon, data_norm=longest).fit(X, y)
    scores = model.predict_proba(X_test)[:, 1]
    return {"accuracy": model.score(X_test, y_test), "auc": roc_auc_score(y_test, scores)}


def parts() -> dict[str, bytes]:
    """The UCI files, in any of the forms that discreet knows."""
    from discreet.data.sources import roots

    for folder in roots(None):
        for read in (adult.text_files, adult.npz_file, adult.parquet_file):
            found = read(folder)
            if found is not None:
                return found
    raise SystemExit("Adult is not there. docs/datasets.md says how to get it.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result = main(parts(), epsilon=given.epsilon)
    print(json.dumps(result, indent=1))
    if given.out is not None:
        command = f"python examples/adult_sklearn.py --epsilon {given.epsilon:g}"
        versions = {"scikit-learn": sklearn.__version__}
        if result["diffprivlib"] is not None:
            versions["diffprivlib"] = metadata.version("diffprivlib")
        given.out.write_text(json.dumps({"command": command, "versions": versions, **result}, indent=1) + "\n")
