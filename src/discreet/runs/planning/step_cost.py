"""The time and memory of a step on this machine, measured over two steps on random data."""

import contextlib
import time
from dataclasses import dataclass
from typing import Any, final

from discreet.core import check

BYTES = 4  # float32
_MOST = 256


@final
@dataclass(frozen=True, kw_only=True)
class StepCost:
    """A model's size and speed.

    parameters          trainable numbers
    seconds_per_record  of a private step on this machine, over two steps after a warm-up step
    bytes_per_record    estimated: the outputs of all layers, once forward and once backward
    threads             that torch used
    """

    model: str
    parameters: int
    seconds_per_record: float
    bytes_per_record: int
    threads: int

    def seconds(self, *, records: float, epochs: int) -> float:
        """The time of a whole run; an epoch draws about as many records as there are."""
        return self.seconds_per_record * records * epochs

    def memory(self, *, micro_batch: int, adam: bool = False) -> int:
        """Bytes, estimated: weights, gradient sum, noise, average and optimizer state, and one micro-batch."""
        copies = 5 + (2 if adam else 1)
        return copies * BYTES * self.parameters + micro_batch * self.bytes_per_record


def measure(name: str, *, shape: tuple[int, ...], classes: int, micro_batch: int = 512, seed: int = 0) -> StepCost:
    """Build the model and take steps of DP-SGD on random records of this shape.

    Guarantee: no data is read.
    """
    import torch
    import torch.nn.functional as F
    from torch.utils.data import TensorDataset

    from discreet import methods
    from discreet.core.streams import Streams
    from discreet.data import build, parameters
    from discreet.stages.sampling import FullBatch, Horizon
    from discreet.training.private import Private

    check.count("the most records in memory at once", micro_batch=micro_batch)
    model = build(name, shape=shape, classes=classes, seed=seed)
    count = min(micro_batch, _MOST)
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn((count, *shape), generator=chance)
    y = torch.randint(0, classes, (count,), generator=chance)
    horizon = Horizon.of(records=count, batch=count, steps=3)
    plan = methods.dp_sgd().using(sampling=FullBatch()).bind(noise=1.0, horizon=horizon, delta=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    activations = _outputs(model, x[:1])
    private = Private(model, optimizer, plan, TensorDataset(x, y), micro_batch=count, streams=Streams.seeded(seed))
    started = 0.0
    for inputs, labels in private:
        if private.step(F.cross_entropy(model(inputs), labels, reduction="none")):
            started = started or time.perf_counter()
    seconds = (time.perf_counter() - started) / (2 * count)
    private.close()
    return StepCost(
        model=name,
        parameters=parameters(model),
        seconds_per_record=seconds,
        bytes_per_record=2 * BYTES * activations,
        threads=torch.get_num_threads(),
    )


def _outputs(model: Any, record: Any) -> int:
    """The number of values that all layers output for one record."""
    import torch

    sizes: list[int] = [record.numel()]

    def note(module: Any, given: Any, out: Any) -> None:
        if isinstance(out, torch.Tensor):
            sizes.append(out.numel())

    with torch.no_grad(), contextlib.ExitStack() as hooks:
        for leaf in (module for module in model.modules() if not list(module.children())):
            hooks.enter_context(leaf.register_forward_hook(note))
        model(record)
    return sum(sizes)
