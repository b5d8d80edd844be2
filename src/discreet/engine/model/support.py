"""What no per-sample engine can treat, refused by name before anything runs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import _SpectralNorm

from discreet.core.check import refuse, require

_PLAIN = (bool, int, float, str)
_WRAPPERS = {
    "DistributedDataParallel": "pass the whole model inside it: discreet sums over processes itself",
    "DataParallel": "pass the inner module; one process per device",
    "FullyShardedDataParallel": "shard the model with torch.distributed.fsdp.fully_shard (docs/distributed.md)",
    "OptimizedModule": "train the module as it was before torch.compile, and compile it for evaluation only",
}


def refuse_unsupported(model: nn.Module) -> None:
    """Refuse wrappers, lazy parameters, and layers that change the model in training mode."""
    for name, module in model.named_modules():
        at = f"at {name or 'the root'}"
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
                refuse("a plain module", f"a {kind.__name__} wrapper {at}", _WRAPPERS[kind.__name__])
        if module._backward_hooks or module._backward_pre_hooks:
            refuse(
                "modules without backward hooks, which change gradients out of sight",
                f"a backward hook {at}",
                "remove it; private.step bounds every record's gradient",
            )
        if module._compiled_call_impl is not None:
            refuse("a plain module", f"a compiled module {at}", _WRAPPERS["OptimizedModule"])
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            refuse("parameters with a shape", f"{name} is lazy", "run the model once on public inputs")
        if parameter.requires_grad and parameter.is_complex():
            refuse("real parameters", f"{name} is complex", "train its real and imaginary part apart")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        check_dense(tensor, name)
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            refuse(
                "no BatchNorm in training mode: its statistics mix the records of a batch",
                f"{type(module).__name__} at {name or 'the root'}",
                "call discreet.fix(model) to swap it for GroupNorm, or put the layer in eval mode",
            )
        if isinstance(module, _SpectralNorm) and module.training:
            refuse(
                "buffers that stay as they are in the forward pass",
                f"spectral_norm at {name.partition('.parametrizations')[0]}, which changes its own in training mode",
                "call .eval() on the layer's parametrizations after each model.train(), or use weight_norm",
            )
        if isinstance(module, nn.Embedding) and module.max_norm is not None:
            refuse(
                "an embedding that leaves its weights alone in the forward pass",
                f"Embedding(max_norm={module.max_norm}) at {name}",
                "drop max_norm, or project the weights after the update",
            )
    devices = {p.device for p in model.parameters()}
    if len(devices) > 1 or torch.device("meta") in devices:
        refuse("all parameters on one device", str(sorted(map(str, devices))), "move the model with .to(device)")


def check_dense(tensor: Tensor, name: str) -> None:
    """Refuse a parameter or buffer whose content cannot be compared between batches."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        remedy = f"store it as {name}.to_dense(); in place of a nested tensor store a padded one and its lengths"
        refuse("dense parameters and buffers, whose contents are compared between batches", f"{name}, {kind}", remedy)


class Hook:
    """A hook on the model; a copy or a file of the model gets an inert one, none of the engine's state."""

    def __init__(self, action: Callable[..., None] | None) -> None:
        self._action = action

    def __call__(self, *args: Any) -> None:
        if self._action is not None:
            self._action(*args)

    def __deepcopy__(self, memo: Any) -> "Hook":
        return Hook(None)

    def __reduce__(self) -> Any:
        return Hook, (None,)


def trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that are trained, in the order of the layout."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def _modules_in(model: nn.Module) -> list[nn.Module]:
    """Every module once, in the order of `named_modules`, which spends most of its time on names."""
    found: dict[nn.Module, None] = {}
    ahead = [model]
    while ahead:
        module = ahead.pop()
        if module not in found:
            found[module] = None
            if module._modules:  # nearly all have no parts
                ahead += [part for part in reversed(module._modules.values()) if part is not None]
    return list(found)


def _tensors_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Every parameter and buffer, module by module; one that is shared comes again."""
    return [
        tensor
        for module in modules
        for held in (module._parameters, module._buffers)
        for tensor in held.values()
        if tensor is not None
    ]


def _settings_of(modules: Iterable[nn.Module]) -> tuple[Any, ...]:
    """What steers torch's own modules besides their tensors; others may count calls, and are taken as they are."""
    return tuple(
        tuple(value for value in vars(module).values() if type(value) in _PLAIN)
        if type(module).__module__.startswith("torch.nn.")
        else module.training
        for module in modules
    )


modules_in: Callable[[nn.Module], list[nn.Module]] = _modules_in
tensors_of: Callable[[Iterable[nn.Module]], list[Tensor]] = _tensors_of
settings_of: Callable[[Iterable[nn.Module]], tuple[Any, ...]] = _settings_of
with suppress(ImportError):  # no compiler
    from discreet.engine.model import _state

    modules_in, tensors_of, settings_of = _state.modules_in, _state.tensors_of, _state.settings_of


def check_trained(model: nn.Module, expected: dict[str, Tensor]) -> None:
    """Refuse a model that trains other parameters than `expected`, or hooks on them."""
    with torch._C.DisableTorchFunction():  # also inside the watch
        held = (module._parameters.values() for module in modules_in(model))
        trained = dict.fromkeys([id(p) for own in held for p in own if p is not None and p.requires_grad])  # each once
        hooked = [name for name, tensor in expected.items() if tensor._backward_hooks]
    require(
        list(trained) == list(map(id, expected.values())),
        "the same trainable parameters as at construction",
        "others: some were frozen, unfrozen, added or replaced",
        "build a new Private after changing what is trained",
    )
    require(
        not hooked,
        "gradients that autograd computes",
        f"a hook on {', '.join(hooked[:1])}, which changes them out of sight",
        "remove the hook; private.step bounds every record's gradient",
    )


@contextmanager
def fresh_graph() -> Iterator[None]:
    """Say what torch's "backward a second time" means here."""
    try:
        yield
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        refuse(
            "losses that no backward pass has used",
            "losses after a call of backward()",
            "leave backward() and clip_grad_norm_ out: private.step takes the gradients and bounds them",
        )
