"""Check that all processes have the same settings and other records, and in each step the same model and losses."""

import hashlib
import itertools
import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from discreet.core import check
from discreet.core.secret_draws import seeded_generators
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.kernel_settings import named_kernel_settings
from discreet.engine.model.content import content_of, digest_of
from discreet.engine.record_watch import RecordWatch
from discreet.engine.shards.local import is_sharded, local_of
from discreet.stages.plan import Plan

_SHOWN = 3  # the number of differences that a message lists
_MISSING = "absent"


def check_agreement(
    world: World,
    plan: Plan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedulers: Sequence[LRScheduler],
    streams: Streams,
    settings: Mapping[str, Any],
) -> None:
    """Refuse, in every process, a run whose processes differ. The message lists the differences by rank.

    Each process adds the noise of its part of the sums over all of them, so a process with a larger clipping norm or
    with less noise would void the certificate. Only public settings are compared.
    """
    if world.size == 1:
        return
    mine: dict[str, Any] = {
        "plan digest": plan.digest,
        "plan": plan.to_json(),
        "model": _model(model),
        "optimizer": _optimizer(optimizer, model),
        "schedulers": [type(scheduler).__qualname__ for scheduler in schedulers],
        "randomness": streams.statement,
        **settings,
    }
    remedy = "build plan, model and optimizer from the same settings in every process"
    _refuse_different(world, mine, f"the same run in all {world.size} processes", remedy)


def _refuse_different(world: World, mine: Mapping[str, Any], expected: str, remedy: str) -> None:
    """Refuse, in every process, settings that differ between processes."""
    everyone = [dict(_leaves("", settings)) for settings in world.gather(mine)]
    names = dict.fromkeys(itertools.chain.from_iterable(everyone))
    different = [name for name in names if len({settings.get(name, _MISSING) for settings in everyone}) > 1]
    # Name the fields of the plan that differ; the digest alone does not tell which.
    named = [name for name in different if name != "plan digest"] or different
    if named:
        shown = "; ".join(f"{name}: {_by_rank(name, everyone)}" for name in named[:_SHOWN])
        more = f"; and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        check.refuse(expected, shown + more, remedy)


def _by_rank(name: str, everyone: Sequence[Mapping[str, str]]) -> str:
    """List each value with the ranks that have it."""
    ranks: dict[str, list[str]] = {}
    for rank, settings in enumerate(everyone):
        ranks.setdefault(settings.get(name, _MISSING), []).append(str(rank))
    return ", ".join(f"{value} on rank{'s' * (len(which) > 1)} {' and '.join(which)}" for value, which in ranks.items())


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Flatten a JSON value into (path, value) pairs, such as ("plan.bounder.clip", "1.0")."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, item)
    else:
        yield name, json.dumps(value)


def _model(model: nn.Module) -> dict[str, str]:
    """Shape and dtype of each parameter and buffer by name, and whether it is frozen."""
    settings = {
        name: f"{_tensor(value)}{'' if value.requires_grad else ', frozen'}" for name, value in model.named_parameters()
    }
    return settings | {name: f"{_tensor(value)}, buffer" for name, value in model.named_buffers()}


def _optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {
        f"group {number}": {
            **{key: _setting(value) for key, value in group.items() if key != "params"},
            "params": [names.get(id(parameter), "unknown") for parameter in group["params"]],
        }
        for number, group in enumerate(optimizer.param_groups)
    }
    return {"kind": type(optimizer).__qualname__, **groups}


def _tensor(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _setting(value: Any) -> Any:
    """A hyperparameter as a JSON value, or the name of its type if it has no JSON form."""
    if isinstance(value, Tensor):
        return value.detach().tolist()
    if isinstance(value, (list, tuple)):
        return [_setting(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__qualname__


@final
class Replica:
    """What a process has of the model and the optimizer, which others must have, too.

    Parameters are compared by their contents: they make the losses. The settings of the optimizer are compared before
    they move the parameters apart. Its state needs no comparison: it shows in the next parameters.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def settings(self) -> dict[str, Any]:
        """What all processes have in common. The shards of a sharded model are not part of it."""
        tensors = {name: tensor for name, tensor in self._tensors() if not is_sharded(tensor)}
        return {
            "model": _model(self._model),
            "layout": {name: _strides(tensor) for name, tensor in tensors.items()},
            "content": {name: f"{content_of(tensor):014x}" for name, tensor in tensors.items()},
            "optimizer": _optimizer(self._optimizer, self._model),
            "kernels": named_kernel_settings(),
        }

    def shards(self) -> int | None:
        """A digest of the shards, which the processes that hold the same ones have in common; None without any."""
        held = [content_of(local_of(tensor)) for _, tensor in self._tensors() if is_sharded(tensor)]
        return digest_of(repr(held).encode()) if held else None

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        return itertools.chain(self._model.named_parameters(), self._model.named_buffers())


def _strides(tensor: Tensor) -> str:
    """The layout in memory, which decides how kernels round; strides of axes with one entry say nothing."""
    if tensor.layout != torch.strided:
        return str(tensor.layout)
    return "strides " + repr([stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1])


@final
class Ways:
    """Refuses a step whose processes make their losses in different ways, before it is charged.

    Leaving one record out moves others to another process. Guarantee: a record's loss is made by the same calls, with
    the same numbers, parameters and public tensors, in every process, and these have the same contents and layouts. Not
    compared: tensors that `discreet.public` declares, sizes of a record, and calls of losses that were not rehearsed
    because a declared choice never came twice.

    holders  the processes that hold the same shards of the model, or the whole model
    replica  None without a model
    """

    def __init__(self, world: World, holders: World, replica: Replica | None) -> None:
        self._world, self._holders, self._replica = world, holders, replica
        self._ways = set[tuple[int | None, int | None]]()
        self._numbers = set[str]()  # that were declared

    def note(self, watch: RecordWatch, *, has_gradients: bool = True) -> None:
        """The losses of a micro-batch were made."""
        self._ways.add((watch.programs.way, watch.backward_programs.way if has_gradients else None))
        if self._world.size > 1:
            self._numbers.add(repr(watch.declared_numbers))

    def check(self, scale: float) -> None:
        """Compare all processes in this step; a process without records has no ways.

        scale  the bounder's state
        """
        if self._world.size > 1:
            known = sorted((way, -1 if back is None else back) for way, back in self._ways if way is not None)
            mine = {"scale": scale, **({} if self._replica is None else self._replica.settings())}
            same_ways, same_numbers, same_settings = self._world.agree(
                digest_of(repr(known).encode()) if known else None,
                digest_of(repr(sorted(self._numbers)).encode()) if self._numbers else None,
                digest_of(repr(mine).encode()),
            )
            if not same_settings:
                _refuse_different(self._world, mine, self._expected, _ALIKE)
            self._check_shards()
            expected = "losses that every process makes by the same calls, with the same numbers and public tensors"
            remedy = (
                "use the same code and constants in every process: draw what is public under one seed, not under the "
                "rank, or make it a buffer of the model; choose alike where you declare a choice with discreet.public; "
                "pass the same micro_batch"
            )
            check.require(same_ways, expected, "other losses in some processes", remedy)
            expected, got = "the same numbers in discreet.public in every process", "others in some processes"
            remedy = "do not draw or compute them from the rank or from the records: draw them under one seed"
            check.require(same_numbers, expected, got, remedy)
        self._ways.clear()
        self._numbers.clear()

    @property
    def _expected(self) -> str:
        return f"the same model and optimizer settings in all {self._world.size} processes at every step"

    def _check_shards(self) -> None:
        """Compare the shards of those that hold the same ones: of a model that is sharded and replicated (HSDP)."""
        if self._replica is None or self._holders.size == 1 or self._holders == self._world:
            return
        differs = self._world.any(not all(self._holders.agree(self._replica.shards())))
        check.require(not differs, self._expected, "replicas with other shards", _ALIKE)


_ALIKE: Final = (
    "do the same in every process: load weights before Private is built or on every rank, build tensors in one layout, "
    "and step schedulers on every rank, only where private.step returned True; use one kind of machine, one version of "
    "torch and the same number of threads, because others round differently"
)


_COMPARED: Final = 16  # records of each process
_SALT: Final = 32  # bytes


def check_shards(world: World, data: Any) -> None:
    """Refuse processes that hold the same records: each would count once for every process that has it.

    A few records at the same places are compared by digests under a random salt, which are not kept. Overlaps in
    another order, or of a part of the records, are not found.
    """
    if world.size == 1:
        return
    drawn = torch.tensor(list(os.urandom(_SALT)), dtype=torch.uint8)
    salt = bytes(world.broadcast_(drawn).tolist())
    seed = int.from_bytes(hashlib.blake2b(salt, digest_size=4).digest(), "little")
    with seeded_generators(seed):  # random augmentation in the dataset must not hide that records are the same
        mine = [keyed_digest(data[place], salt) for place in _places(0 if data is None else len(data))]
    everyone = world.gather(mine)
    for one, other in combinations(range(world.size), 2):
        if everyone[one] == everyone[other] and len(set(everyone[one])) > 1:
            remedy = "pass discreet.own_part(data), which differs by process; `records` stays the number of all of them"
            got = f"the same records on ranks {one} and {other}"
            check.refuse("different records in every process", got, remedy)


def _places(size: int) -> list[int]:
    """Indices that are spread over the data, both ends included."""
    count = min(size, _COMPARED)
    return [number * (size - 1) // max(1, count - 1) for number in range(count)]


def keyed_digest(record: Any, salt: bytes) -> str:
    """A digest of the values of a record or batch; without the salt it tells nothing about them."""
    digest = hashlib.blake2b(key=salt)
    for part in _parts(record):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """The values of a record as bytes, with their types and shapes."""
    if isinstance(value, Tensor):
        bare = value.detach().cpu()
        yield f"{bare.dtype} {tuple(bare.shape)}".encode()
        dense = bare.to_dense() if bare.layout != torch.strided else bare
        yield dense.contiguous().flatten().view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key).encode()
            yield from _parts(item)
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    else:
        try:
            yield pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError):
            yield os.urandom(_SALT)  # not comparable, so it equals nothing
