"""Mixed precision by FSDP's policy: the dtypes in which a module gets its inputs and gives its output."""

from typing import Any, final

import torch
from torch import Tensor

from discreet.core.check import require
from discreet.engine.trace.capture import tensors_in


@final
class Casts:
    """The casts that the `mp_policy` of `fully_shard` asks for at one module.

    Guarantee: every cast of a watched pass is a call that the watch sees and autograd follows. FSDP itself casts in its
    hooks, where neither is true; so the casts are made here before it, and it finds nothing left to cast.
    """

    def __init__(self, module: Any) -> None:
        policy = module._get_fsdp_state()._mp_policy
        self._to_input = policy.param_dtype if policy.cast_forward_inputs else None
        self._to_output = policy.output_dtype
        self._made: list[Tensor] = []

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of the module, cast."""
        cast = _each(args, self._to_input), _each(kwargs, self._to_input)
        self._made = tensors_in(cast)
        return cast

    def output(self, output: Any) -> Any:
        """What the module gives, cast."""
        cast = _each(output, self._to_output)
        self._made = tensors_in(cast)
        return cast

    def check_kept(self, value: Any) -> None:
        """Refuse tensors that are not those of the last cast."""
        made, self._made = self._made, []
        now = tensors_in(value)
        require(
            len(now) == len(made) and all(map(_is, now, made)),
            "tensors that FSDP passes on as they are",
            "others, which it made out of sight",
            "use inputs and outputs that are tensors, or tuples, lists or dicts of them",
        )

    def forget(self) -> None:
        """Let go of the tensors of the last cast."""
        self._made = []


def _each(value: Any, dtype: torch.dtype | None) -> Any:
    """The value with its floating-point tensors in another dtype, as FSDP casts them."""
    if dtype is None:
        return value
    from torch.distributed.utils import _apply_to_tensors

    def cast(tensor: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():  # questions about a type are no calls of the model
            is_done = not tensor.is_floating_point() or tensor.dtype == dtype
        return tensor if is_done else tensor.to(dtype)

    return _apply_to_tensors(cast, value)


def _is(one: Tensor, other: Tensor) -> bool:
    return one is other
