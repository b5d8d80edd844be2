"""Batches that made-up records do not fit: rehearsals of public records, batches of dataclasses and named tuples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import discreet
from discreet import Private
from discreet.core.check import Refused
from discreet.training.rehearsal import made_up, taken

RECORDS, BATCH = 40, 12


def trained(model: nn.Module, data: Any, losses: Any, steps: int = 2, **options: Any) -> Private:
    plan = discreet.methods.dp_sgd(clip=1.0).for_budget(
        epsilon=5.0, delta=1e-4, records=RECORDS, batch=BATCH, steps=steps
    )
    private = Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, data, **options)
    for batch in private:
        private.step(losses(private, model, batch))
    private.close()
    return private


def columns(classes: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(RECORDS, 6, generator=generator)
    return TensorDataset(x, torch.randint(0, classes, (RECORDS,), generator=generator))


class OneCategory(nn.Module):
    """A column with a single category beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.category, self.head = nn.Embedding(1, 4), nn.Linear(10, 3)

    def forward(self, x: Tensor, category: Tensor) -> Tensor:
        return self.head(torch.cat([x, self.category(category)], 1))


def crossed(private: Private, model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


def test_an_embedding_of_one_category() -> None:
    x, y = columns().tensors
    zeros = torch.zeros(RECORDS, dtype=torch.long)
    data, options = TensorDataset(x, zeros, y), {"inputs": lambda batch: tuple(batch[:2])}
    given = x[:5] * 0, zeros[:5], torch.tensor([0, 1, 2, 0, 1])
    assert trained(OneCategory(), data, crossed, rehearsal=given, **options).updates == 2
    with pytest.raises(IndexError) as failed:
        trained(OneCategory(), data, crossed, **options)
    assert "rehearsal=batch" in failed.value.__notes__[0]


def test_labels_that_are_shifted() -> None:
    """Labels 5, 6 and 7."""
    x, y = columns().tensors
    given = x[:4] * 0, torch.tensor([5, 6, 7, 5])
    sizes: list[tuple[int, bool]] = []

    def losses(private: Private, model: nn.Module, batch: Any) -> Tensor:
        sizes.append((len(batch[0]), private.is_rehearsal))
        return F.cross_entropy(model(batch[0]), batch[1] - 5, reduction="none")

    private = trained(nn.Linear(6, 3), TensorDataset(x, y + 5), losses, rehearsal=given)
    assert sizes[:2] == [(14, True), (9, True)]
    # Lines that other tests of the process declared outside of a step stay in the list.
    assert "the records of Private(rehearsal=...)" in private.ledger.entries[0].note["public"]


def test_a_rehearsal_of_another_form_is_refused() -> None:
    def losses(private: Private, model: nn.Module, batch: Any) -> Tensor:
        scale = 2.0 if batch[0].dtype == torch.float64 else 1.0
        return F.cross_entropy(model(batch[0].float()), batch[1], reduction="none") * scale

    given = torch.zeros(4, 6, dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    with pytest.raises(Refused, match="same calls with the same numbers"):
        trained(nn.Linear(6, 3), columns(), losses, rehearsal=given)


@pytest.mark.parametrize("given", [7, torch.ones(()), torch.ones(0, 6), []])
def test_a_rehearsal_without_records_is_refused(given: Any) -> None:
    with pytest.raises(Refused, match="rehearsal"):
        trained(nn.Linear(6, 3), columns(), crossed, rehearsal=given)


@dataclass(frozen=True)
class Pair:
    x: Tensor
    y: Tensor
    names: list[str]


@dataclass(slots=True)
class Slots:
    x: Tensor
    y: Tensor
    names: list[str]


class Named(NamedTuple):
    x: Tensor
    y: Tensor
    names: list[str]


@pytest.mark.parametrize("kind", [Pair, Slots, Named])
@pytest.mark.parametrize("views", [1, 2])
def test_batches_of_dataclasses(kind: Any, views: int) -> None:
    def collate(records: list[Any]) -> Any:
        x, y = (torch.stack(column) for column in zip(*records, strict=True))
        return kind(x, y, [str(one) for one in y.tolist()])

    def losses(private: Private, model: nn.Module, batch: Any) -> Tensor:
        assert type(batch) is kind
        assert len(batch.x) == views * len(batch.names)
        return F.cross_entropy(model(batch.x), batch.y, reduction="none")

    options = {"collate_fn": collate, "inputs": lambda batch: (batch.x,), "views": views}
    assert trained(nn.Linear(6, 3), columns(), losses, **options).updates == 2


def test_a_dataclass_that_mixes_records_is_refused() -> None:
    def collate(records: list[Any]) -> Any:
        x, y = (torch.stack(column) for column in zip(*records, strict=True))
        return Pair(x - x.mean(0), y, [])

    with pytest.raises(Refused, match="collate_fn that makes each record's entries from that record alone"):
        trained(nn.Linear(6, 3), columns(), crossed, collate_fn=collate, inputs=lambda batch: (batch.x,))


def test_a_made_up_dataclass_holds_no_value_of_a_record() -> None:
    batches = [Slots(torch.full((2, 3), value), torch.full((2,), value), [str(value)] * 2) for value in (5.0, 6.0)]
    one, other = (made_up(batch, 2, 7) for batch in batches)
    assert torch.equal(one.x, other.x)
    assert one.names == other.names == ["1"] * 7


def test_records_of_a_rehearsal_come_again_if_there_are_few() -> None:
    batch = {"x": torch.arange(6).view(3, 2), "names": ["a", "b", "c"], "width": 2}
    made = taken(batch, 3, 7)
    assert made["x"][:, 0].tolist() == [0, 2, 4, 0, 2, 4, 0]
    assert made["names"] == list("abcabca")
    assert made["width"] == 2
    assert len(batch["names"]) == 3
