"""The part of a tensor that this process holds."""

from typing import Any

import torch
from torch import Tensor, nn

from discreet.core.world import World

_FSDP = "torch.distributed.fsdp"


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor. Asking by name saves the import of torch.distributed.tensor."""
    kind = type(tensor)
    return kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed.")


def to_shards(model: nn.Module) -> None:
    """Free the parameters that FSDP2 has left gathered: after a pass it keeps those of the model as a whole."""
    for module in model.modules():
        if any(kind.__name__ == "FSDPModule" and kind.__module__.startswith(_FSDP) for kind in type(module).__mro__):
            module.reshard()  # type: ignore[operator]


def local_of(tensor: Any) -> Tensor:
    """What this process holds of a tensor: its shard, or all of it. The same object every time."""
    held: Tensor = tensor._local_tensor if is_sharded(tensor) else tensor  # `to_local` makes a new one of parameters
    return held


def gradient_like(parameter: Any, local: Tensor) -> Tensor:
    """The gradient of a parameter from the part that this process holds."""
    if not is_sharded(parameter):
        return local
    from torch.distributed.tensor import DTensor

    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    made: Tensor = DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)
    return made


def share(model: nn.Module, world: World, holders: World) -> None:
    """Give all processes the parameters and buffers of the first; shards go to those that hold the same ones.

    Buffers that are not saved (`persistent=False`) are among them: the state of a model does not hold these.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        held = local_of(tensor).detach()
        held = held[tuple(slice(1) if step == 0 else slice(None) for step in held.stride())]  # one of repeated entries
        (holders if is_sharded(tensor) else world).broadcast_(torch.view_as_real(held) if held.is_complex() else held)
