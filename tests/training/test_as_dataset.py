"""What `Private` takes for a dataset, and what it says about itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from discreet import Private, SampledUsers, methods
from discreet.core.check import Refused
from discreet.stages.sampling import FullBatch, Horizon
from discreet.training.binding import as_dataset
from discreet.training.loader import _Rows


def test_a_pair_of_tensors_has_a_record_in_each_row() -> None:
    x, y = torch.randn(60, 4), torch.randint(0, 2, (60,))
    seen: list[torch.Tensor] = []
    model = nn.Linear(4, 2)
    horizon = Horizon.of(records=60, batch=60, steps=1)
    plan = methods.dp_sgd().using(sampling=FullBatch()).bind(noise=1.0, horizon=horizon, delta=1e-3)
    private = Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, (x, y))  # type: ignore[arg-type]
    for inputs, labels in private:
        if not private.is_rehearsal:
            seen.append(inputs)
        private.step(F.cross_entropy(model(inputs), labels, reduction="none"))
    assert torch.equal(torch.cat(seen).sort(0)[0], x.sort(0)[0])
    assert len(private) == 1
    assert repr(private).startswith("Private(dp-sgd, 1 of 1 steps, batch 60 of 60 records, noise multiplier 1, ")
    private.close()


class DataFrame:
    """Stands for a table of pandas."""

    __module__ = "pandas.core.frame"


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ((torch.zeros(6, 4), torch.zeros(5)), "a row for each record, got other numbers of rows"),
        ((torch.zeros(6, 4), np.zeros(6)), "tensors, got a ndarray.*torch.as_tensor"),
        (DataFrame(), "a dataset of tensors, got a DataFrame of pandas.*public bounds"),
        ((DataFrame(), torch.zeros(6)), "got a DataFrame of pandas"),
    ],
)
def test_tables_and_arrays_are_refused_by_name(data: Any, match: str) -> None:
    model = nn.Linear(4, 2)
    plan = methods.dp_sgd().bind(noise=1.0, horizon=Horizon.of(records=60, batch=6, steps=1), delta=1e-3)
    with pytest.raises(Refused, match=match):
        Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, data)


def test_a_tuple_of_records_is_still_a_dataset() -> None:
    records = tuple((torch.zeros(4), torch.tensor(0)) for _ in range(6))
    assert as_dataset(records) is records
    many = tuple(torch.zeros(4) for _ in range(20))  # twenty records without labels, not twenty columns
    assert as_dataset(many) is many


RECORDS = TensorDataset(torch.randn(6, 4), torch.zeros(6, dtype=torch.int64))
TWICE: dict[str, Any] = {
    "indices": Subset(RECORDS, [0, 1, 0]),
    "from the end": Subset(RECORDS, [5, -1]),
    "array": Subset(RECORDS, np.array([2, 2])),  # type: ignore[arg-type]
    "joined": ConcatDataset([RECORDS, RECORDS]),
    "overlap": ConcatDataset([Subset(RECORDS, range(4)), Subset(Subset(RECORDS, [5, 3]), [1])]),
}
ONCE: dict[str, Any] = {
    "halves": ConcatDataset([Subset(RECORDS, range(3)), Subset(RECORDS, [-1, -2, 3])]),
    "subset of a subset": Subset(Subset(RECORDS, torch.tensor([4, 2, 0])), [2, 0]),  # type: ignore[arg-type]
    "subset of two": Subset(ConcatDataset([RECORDS, TensorDataset(*RECORDS.tensors)]), [0, 7, -1]),
}


def made(data: Any, **options: Any) -> Private:
    model, unit = nn.Linear(4, 2), {"unit": SampledUsers(per_user=3)} if options else {}
    horizon = Horizon.of(records=60, batch=6, steps=1)
    plan = methods.dp_sgd().using(**unit).bind(noise=1.0, horizon=horizon, delta=1e-3)
    return Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, data, **options)


@pytest.mark.parametrize("name", TWICE)
def test_a_record_that_is_there_several_times_is_refused(name: str) -> None:
    """Leaving it out moved the sum by as many clips."""
    with pytest.raises(Refused, match="every record once in the data"):
        made(TWICE[name])
    made(TWICE[name], unit=[0] * len(TWICE[name])).close()  # its owner is protected, whatever it has


ODD: dict[str, Any] = {"beyond": [0, 1, 7], "before": [0, 1, -7], "fractions": [1.0, 1], "words": ["a", "a"]}


@pytest.mark.parametrize("name", ODD)
def test_indices_that_are_no_places_are_refused(name: str) -> None:
    """Places beyond the data were taken from its beginning, and words were not compared."""
    with pytest.raises(Refused, match="the indices of a Subset to be whole numbers"):
        made(Subset(RECORDS, ODD[name]))
    rows = _Rows.of(Subset(RECORDS, ODD[name])) if name != "words" else None
    assert rows is None  # then the dataset itself is asked


@pytest.mark.parametrize("name", ONCE)
def test_parts_of_datasets_are_accepted(name: str) -> None:
    made(ONCE[name]).close()
