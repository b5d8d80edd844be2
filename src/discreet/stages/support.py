"""What no per-sample engine can treat, refused by name before anything runs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from discreet.core.check import refuse

_WRAPPERS = {
    "DistributedDataParallel": "pass the inner module: discreet sums over processes itself",
    "DataParallel": "pass the inner module; one process per device",
    "FullyShardedDataParallel": "pass an unsharded module",
    "OptimizedModule": "pass the module before torch.compile",
}


def refuse_unsupported(model: nn.Module) -> None:
    """Refuse wrappers, sharded parameters, lazy parameters, and BatchNorm in training mode."""
    for kind in type(model).__mro__:
        if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
            refuse("a plain module", f"a {kind.__name__} wrapper", _WRAPPERS[kind.__name__])
    for name, parameter in model.named_parameters():
        if type(parameter.data).__name__ == "DTensor" or "DTensor" in type(parameter).__name__:
            refuse("plain tensors as parameters", f"{name} is a DTensor", "train an unsharded module")
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            refuse("parameters with a shape", f"{name} is lazy", "run the model once on public inputs")
        if parameter.requires_grad and parameter.is_complex():
            refuse("real parameters", f"{name} is complex", "train its real and imaginary part apart")
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            refuse(
                "no BatchNorm in training mode: its statistics mix the records of a batch",
                f"{type(module).__name__} at {name or 'the root'}",
                "call discreet.fix(model) to swap it for GroupNorm, or put the layer in eval mode",
            )
        if isinstance(module, nn.Embedding) and module.max_norm is not None:
            refuse(
                "an embedding that leaves its weights alone in the forward pass",
                f"Embedding(max_norm={module.max_norm}) at {name}",
                "drop max_norm, or project the weights after the update",
            )
    devices = {p.device for p in model.parameters()}
    if len(devices) > 1 or torch.device("meta") in devices:
        refuse(
            "all parameters on one device", str(sorted(map(str, devices))), "move the model with .to(device)"
        )
