"""What is checked when a plan meets a model, an optimizer and data: before any private record is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from discreet.core import check
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.memory import ENOUGH, micro_batch_for
from discreet.engine.selfcheck import self_check
from discreet.engine.trace.capture import tensors_in
from discreet.stages.plan import Plan
from discreet.stages.sampling import BallsInBins, FullBatch, Poisson
from discreet.training.loader import to_device


def check_data(data: Any) -> None:
    """A dataset to draw from, not a loader that has drawn already."""
    check.require(
        not isinstance(data, DataLoader),
        "a dataset: the plan draws the batches that it is priced for",
        "a DataLoader",
        "pass loader.dataset; or plan with recipe.using(sampling=discreet.OwnLoader()), data=None, and iterate "
        "private.over(loader)",
    )
    check.require(
        not isinstance(data, IterableDataset),
        "a map-style dataset, whose records can be drawn one by one",
        type(data).__name__,
        "give it __len__ and __getitem__; or plan with recipe.using(sampling=discreet.OwnLoader()) and iterate "
        "private.over(batches)",
    )


def dry_run(
    engine: Engine,
    data: Any,
    collate_fn: Callable[[list[Any]], Any] | None,
    inputs: Callable[[Any], Any] | None,
    device: torch.device,
) -> tuple[Any, Any] | None:
    """The engine against autograd, on random inputs of the data's shape: never on private values.

    Gives the arguments of the model that have this shape, for two records; None without data.
    """
    if data is None or len(data) == 0:
        return None
    batch = to_device((collate_fn or default_collate)([data[0], data[0]]), device)
    arguments = _default_inputs(batch) if inputs is None else inputs(batch)
    args, kwargs = ((), arguments) if isinstance(arguments, dict) else (tuple(arguments), {})
    try:
        self_check(engine, args, kwargs, 2)
    except (TypeError, RuntimeError) as error:
        check.refuse(
            "a model that runs on random inputs of the data's shape",
            f"{type(error).__name__}: {str(error).splitlines()[0]}",
            "say what the model takes: inputs=lambda batch: (its arguments,), or a dict of keyword arguments",
        )
    return args, kwargs


def fitting_micro_batch(engine: Engine, example: tuple[Any, Any] | None, batch: float, views: int) -> int:
    """How many records of a plan's batches to take at once.

    It depends on the shape of the example, the public batch and the machine alone; without an example whose shape all
    records share (behind a collate_fn the first one's length is not public) it is a constant. A Poisson batch is rarely
    five deviations above its mean, so that what fits is not cut.
    """
    if example is None:
        return ENOUGH
    rows = views * math.ceil(batch + 5 * math.sqrt(batch))
    return max(1, micro_batch_for(engine, *example, records=2, batch=rows) // views)


def _default_inputs(batch: Any) -> Any:
    if isinstance(batch, dict):
        return batch
    return (batch,) if isinstance(batch, Tensor) else (batch[0],)


def records_in(batch: Any) -> int:
    """The number of records of a batch: the length of its first tensor."""
    first = next(iter(tensors_in(batch)), None)
    if first is None or first.dim() == 0:
        check.refuse(
            "a batch of tensors", type(batch).__name__, "give tensors whose first axis is the record"
        )
    return int(first.shape[0])


def device_of(model: nn.Module) -> torch.device:
    """Where the model lies."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def check_processes(plan: Plan, world: World) -> None:
    """Several processes draw from their own records, which not every sampling allows."""
    check.require(
        world.size == 1 or isinstance(plan.sampling, (Poisson, BallsInBins, FullBatch)),
        "sampling that each process can do alone, for the records it holds",
        f"{type(plan.sampling).__name__} in {world.size} processes",
        "use Poisson: the size of a fixed or capped batch is a matter of all records",
    )


def share_public_streams(streams: Streams, world: World) -> None:
    """Masks and projections of the first process for all: its noise would not cover the mask of another."""

    def of_the_first(key: bytes) -> bytes:
        return bytes(world.broadcast_(torch.tensor(list(key), dtype=torch.uint8)).tolist())

    if world.size > 1:
        streams.share(of_the_first)


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """The optimizer holds every trainable parameter of the model and nothing else."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left_out = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    check.require(
        not left_out,
        "an optimizer that holds every trainable parameter",
        f"none for {', '.join(left_out[:3])}",
        "add it to the optimizer, or freeze it with requires_grad_(False)",
    )
    check.require(
        held <= {id(p) for p in model.parameters()},
        "an optimizer of this model's parameters",
        "parameters of something else",
        "give each model its own optimizer and its own Private",
    )
    check.require(
        not isinstance(optimizer, torch.optim.LBFGS),
        "an optimizer that takes one gradient a step",
        "LBFGS, which evaluates the loss again",
        "use SGD, Adam or another first-order optimizer",
    )
