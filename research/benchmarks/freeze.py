"""What freezing saves: time and memory of noise and update at several freeze rates, and the size of a release.

python -m research.benchmarks.freeze            10^6 parameters, per-epoch masks
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages.aggregation import Aggregation
from discreet.stages.clipping import FlatClip, Query
from discreet.stages.noise import GaussianNoise
from discreet.stages.selection import Frozen, Order
from discreet.stages.update import unpack, update
from discreet.stages.values import Released, StepContext
from research.benchmarks import release_bytes

RATES = (0.0, 0.5, 0.9)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.001),
}


def main(repeats: int = 30) -> dict[str, Any]:
    """Noise and update: CPU milliseconds, their ratio to a dense step, and memory.

    Each step reuses its mask, as all steps of an epoch but the first do; the cost of a new mask is reported apart.
    """
    net = nn.Linear(999, 1000)  # a million parameters
    engine, streams = Engine(net), Streams.from_os()
    found: dict[str, Any] = {"parameters": engine.layout.size, "threads": torch.get_num_threads()}
    for name, make in OPTIMIZERS.items():
        steps = {rate: _Step(net, engine, streams, make, rate) for rate in RATES}
        for step in steps.values():
            step.run()
        times: dict[float, list[float]] = {rate: [] for rate in RATES}
        for _ in range(repeats):  # in turns, so that other work on the machine slows all rates equally
            for rate, step in steps.items():
                times[rate].append(step.timed())
        medians = {rate: statistics.median(own) for rate, own in times.items()}
        found[name] = {
            str(rate): {
                "ms": round(ms, 3),
                "ratio": round(ms / medians[0.0], 3),
                "MB": round(steps[rate].memory() / 1e6, 2),
            }
            for rate, ms in medians.items()
        }
        dense = steps[0.0].size
        found["bytes"] = {str(rate): round(step.size / dense, 4) for rate, step in steps.items()}
    found["new mask ms"] = round(_mask_time(engine, streams), 1)
    found["new state ms"] = round(_state_time(net, engine, streams), 1)
    engine.close()
    return found


class _Step:
    """Everything between the exact sum and the new parameters."""

    def __init__(self, net: nn.Module, engine: Engine, streams: Streams, make: Any, rate: float) -> None:
        self._parameters, self._engine = list(net.parameters()), engine
        self._optimizer = make(self._parameters)
        context = StepContext(step=0, steps_per_epoch=10, batch=100.0, layout=engine.layout, streams=streams)
        selection = RandomFreeze(final_rate=rate)
        self._context = StepContext(**{**vars(context), "mask": selection.mask(context)})
        self.size = len(release_bytes.to_bytes(self.run()))

    def run(self) -> Released:
        """One step."""
        return self._finish(self._sum())

    def timed(self) -> float:
        """CPU milliseconds of one step, without computing the sum."""
        total = self._sum()
        start = time.process_time()
        self._finish(total)
        return (time.process_time() - start) * 1000

    def memory(self) -> int:
        """Peak bytes of tensors that one step allocates."""
        total = self._sum()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            self._finish(total)
        results: Any = seen.profiler.kineto_results  # type: ignore[union-attr]
        sizes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
        return max(itertools.accumulate(sizes), default=0)

    def fresh(self) -> float:
        """CPU milliseconds of unpacking the optimizer's state and packing it again for a new mask."""
        total = self._sum()
        start = time.process_time()
        unpack(self._optimizer)
        self._finish(total)
        return (time.process_time() - start) * 1000

    def _sum(self) -> Any:
        empty = Aggregation(FlatClip(1.0), 1.0, self._engine, self._context.mask, Order.FREEZE_THEN_CLIP)
        return list(empty.sums(World.current()).vectors)

    def _finish(self, sums: Any) -> Released:
        context = self._context
        (noisy,) = GaussianNoise().release(sums, [Query(1.0)], 1.0, context)
        released = Released.on(context.mask, noisy, context.layout, context.batch)
        update(self._optimizer, self._parameters, released, Frozen.STILL)
        return released


def _mask_time(engine: Engine, streams: Streams) -> float:
    times = []
    for epoch in range(5):
        context = StepContext(step=epoch, steps_per_epoch=1, batch=1.0, layout=engine.layout, streams=streams)
        start = time.process_time()
        RandomFreeze(final_rate=0.9).mask(context)
        times.append((time.process_time() - start) * 1000)
    return statistics.median(times)


def _state_time(net: nn.Module, engine: Engine, streams: Streams) -> float:
    step = _Step(net, engine, streams, OPTIMIZERS["adam"], 0.9)
    return statistics.median(step.fresh() for _ in range(10)) - statistics.median(step.timed() for _ in range(10))


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
