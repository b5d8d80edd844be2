"""Checkpoints of sharded models: every process writes and reads its own shards (torch.distributed.checkpoint).

    run.pt                  the checkpoint without its large tensors; it names a folder, with the digest of every file
    run.pt.shards-12-9f…    the tensors of model, optimizer and average

The folder is written first, and the file replaced last, so that a crash leaves the old checkpoint or the new one. The
number of processes may be another when it is read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from discreet.core import check
from discreet.core.world import World
from discreet.engine.shards.local import is_sharded
from discreet.engine.shards.sharding import Sharding
from discreet.training.checkpoint import Checkpoint
from discreet.training.step import Parameters

_MODEL, _OPTIMIZER, _AVERAGE = "model", "optimizer", "average"
_WHOLE: Final = "restore the folder from a backup, or use an earlier checkpoint of the same run"


def save(state: Checkpoint, path: str | os.PathLike[str], world: World, sharding: Sharding | None) -> None:
    """Write a checkpoint. The first process does, and if the model is sharded all of them do."""
    if sharding is None or state.model is None:
        if world.is_first:
            state.write(path)
        return
    file, (tensors, rest) = Path(path), _taken_apart(state)
    name = world.from_first(lambda: f"{file.name}.shards-{state.charges}-{os.urandom(4).hex()}")
    folder = file.with_name(name)
    from torch.distributed.checkpoint.state_dict_saver import save as save_shards  # takes a while; few runs need it

    _together(world, lambda: save_shards(tensors, checkpoint_id=folder))
    world.from_first(lambda: _point_to(folder, rest, file))


def _point_to(folder: Path, rest: Checkpoint, path: Path) -> None:
    """Let the file name a folder that is complete, and remove those that it does not name any more."""
    files = {file.name: _digest(file) for file in sorted(folder.iterdir())}
    replace(rest, shards={"folder": folder.name, "files": files}).write(path)
    for other in path.parent.glob(f"{path.name}.shards-*"):
        if other != folder:
            shutil.rmtree(other)


def load(path: str | os.PathLike[str], parameters: Parameters, world: World, sharding: Sharding | None) -> Checkpoint:
    """Read a checkpoint; of a sharded model, each process gets the shards that it holds now."""
    saved = Checkpoint.read(path)
    held, kinds = world.from_first(lambda: saved.shards), ("a whole model", "a sharded model")
    if saved.model is not None:
        expected, got = kinds[sharding is not None], kinds[held is not None]
        remedy = "resume with a model of the same kind: sharded by fully_shard, or whole"
        check.require(expected == got, f"a checkpoint of {expected}", f"{path}, of {got}", remedy)
    if held is None:
        return saved
    folder = Path(path).with_name(held["folder"])
    world.from_first(lambda: _check_files(folder, held["files"]))  # before anything of it is read
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_shards

    fits = _digest(folder / ".metadata") == held["files"][".metadata"]  # a pickle: each process looks before it reads
    check.require(fits, "the shards of one checkpoint in all processes", folder, _WHOLE)
    reader = FileSystemReader(folder)
    tensors = _room(reader.read_metadata().state_dict_metadata, parameters)
    _together(world, lambda: load_shards(tensors, storage_reader=reader))
    return _put_together(saved, tensors)


def _together(world: World, act: Callable[[], object]) -> None:
    """An operation of all processes; torch collects their errors in an exception of its own."""
    from torch.distributed.checkpoint.api import CheckpointException

    def told() -> None:
        try:
            act()
        except CheckpointException as error:
            raise RuntimeError(str(error)) from error

    world.talk("checkpoint", told)


def _check_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, digest in files.items():
        is_there = (folder / name).is_file()
        if not is_there or _digest(folder / name) != digest:
            check.damaged(f"{folder / name} as it was written", "other bytes" if is_there else "no file", _WHOLE)


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _taken_apart(state: Checkpoint) -> tuple[dict[str, Tensor], Checkpoint]:
    """The tensors of model, optimizer and average by name, and the checkpoint without them."""
    assert state.model is not None
    assert state.optimizer is not None
    tensors = {f"{_MODEL}/{name}": value for name, value in state.model.items()}
    plain: dict[int, dict[str, Any]] = {}
    for number, own in state.optimizer["state"].items():
        tensors |= {f"{_OPTIMIZER}/{number}/{n}": value for n, value in own.items() if isinstance(value, Tensor)}
        plain[number] = {n: value for n, value in own.items() if not isinstance(value, Tensor)}
    average = state.average
    if average is not None:
        tensors |= {f"{_AVERAGE}/{name}": value for name, value in average["sums"].items()}
        average = {**average, "sums": {}}
    optimizer = {"state": plain, "param_groups": state.optimizer["param_groups"]}
    return tensors, replace(state, model={}, optimizer=optimizer, average=average)


def _room(held: Mapping[str, Any], parameters: Parameters) -> dict[str, Tensor]:
    """Tensors like the saved ones, each with the shards that this process holds now."""
    model = parameters.model.state_dict()
    groups = parameters.optimizer.param_groups
    by_number = [parameter for group in groups for parameter in group["params"]]
    named = dict(parameters.model.named_parameters())
    room: dict[str, Tensor] = {}
    for key, saved in held.items():
        kind, _, name = key.partition("/")
        if kind == _OPTIMIZER:
            like = by_number[int(name.partition("/")[0])]
        else:
            like = model.get(name) if kind == _MODEL else named.get(name)
        fits = like is not None and is_sharded(like) and like.shape == saved.size
        dtype = saved.properties.dtype
        room[key] = torch.empty_like(like, dtype=dtype) if fits else torch.empty(saved.size, dtype=dtype)
    return room


def _put_together(saved: Checkpoint, tensors: Mapping[str, Tensor]) -> Checkpoint:
    assert saved.optimizer is not None
    state = {number: dict(own) for number, own in saved.optimizer["state"].items()}
    model: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if kind == _OPTIMIZER:
            number, _, field = name.partition("/")
            state.setdefault(int(number), {})[field] = value
        else:
            (model if kind == _MODEL else sums)[name] = value
    average = None if saved.average is None else {**saved.average, "sums": sums}
    optimizer = {"state": state, "param_groups": saved.optimizer["param_groups"]}
    return replace(saved, model=model, optimizer=optimizer, average=average)
