"""What fetching records costs in a step of batch 8192: `python -m research.data_path [OUT]`.

Made-up records of the sizes of Fashion-MNIST: 60,000 records of 2000 features, and of 28 x 28 pixels. The command
interleaves what it compares, takes medians, and writes results/data-path.json.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

import discreet
from discreet import methods
from discreet.core.command import package_versions
from discreet.core.files import write_json
from discreet.data import build

RECORDS: Final = 60_000
BATCH: Final = 8192
REPEATS: Final = 9


@final
class OneByOne(Dataset[tuple[Tensor, Tensor]]):
    """The same records through `__getitem__`, as a dataset of the user's own gives them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._x[index], self._y[index]


def fetching(x: Tensor, y: Tensor) -> dict[str, float]:
    """Milliseconds to fetch a batch in each of several ways."""
    buffer, single, each = torch.empty(BATCH, *x.shape[1:], dtype=x.dtype), x.float(), OneByOne(x, y)

    def one_by_one(rows: Tensor) -> Any:
        return default_collate([each[index] for index in rows.tolist()])

    ways: dict[str, Callable[[Tensor], Any]] = {
        "index_select, half precision": lambda rows: x.index_select(0, rows),
        "index_select into one buffer": lambda rows: torch.index_select(x, 0, rows, out=buffer),
        "index_select, single precision": lambda rows: single.index_select(0, rows),
        "half to single precision": lambda rows: buffer.float(),
        "one record at a time": one_by_one,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        rows = torch.randperm(RECORDS)[:BATCH].sort().values
        for name, fetch in ways.items():
            started = time.perf_counter()
            fetch(rows)
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


def step(data: Dataset[Any], model: nn.Module, micro_batch: int) -> float:
    """Milliseconds of a private step, fetching included; the first steps, which prove the model, are left out."""
    plan = methods.dp_sgd(clip=0.1).for_budget(epsilon=3.0, delta=1e-5, records=RECORDS, batch=BATCH, steps=REPEATS + 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    moments = []
    with closing(discreet.Private(model, optimizer, plan, data, micro_batch=micro_batch)) as private:
        for x, y in private:
            if private.step(F.cross_entropy(model(x), y, reduction="none")):
                moments.append(time.perf_counter())
    pairs = itertools.pairwise(moments[2:])
    return round(1000 * statistics.median(after - before for before, after in pairs), 1)


def main() -> None:
    torch.manual_seed(0)
    y = torch.randint(0, 10, (RECORDS,))
    found: dict[str, Any] = {}
    shapes = {"2000 features, head": ((2000,), "head", 1024), "28 x 28 pixels, softmax": ((1, 28, 28), "softmax", 1024)}
    for name, (shape, kind, micro) in shapes.items():
        x = torch.rand(RECORDS, *shape).half()
        held = x if kind == "head" else x.float()
        times = fetching(x, y)
        rows = {"rows of a tensor": TensorDataset(held, y), "one record at a time": OneByOne(held, y)}
        steps = {way: step(data, build(kind, shape=shape, classes=10, seed=0), micro) for way, data in rows.items()}
        found[name] = {"fetch_milliseconds": times, "step_milliseconds": steps}
        print(name, found[name], flush=True)
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "results/data-path.json")
    facts = {"format": "discreet.data-path/1", "command": "python -m research.data_path", "records": RECORDS}
    facts |= {"batch": BATCH, "threads": torch.get_num_threads()}
    write_json(out, {**facts, "versions": package_versions("discreet", "torch"), "rows": found})


if __name__ == "__main__":
    main()
