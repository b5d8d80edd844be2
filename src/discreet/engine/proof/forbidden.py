"""Calls that no private training may make, refused wherever they come from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._C._functorch import TransformType, peek_interpreter_stack

from discreet.core.check import refuse
from discreet.engine.proof.blame import VALUES, user_line
from discreet.engine.proof.watched_functions import DATA_SET, HOOKS, UNCHECKED
from discreet.engine.trace.capture import name_of

compiler_at_work: Final = get_eval_frame_callback
transform_at_work: Final = peek_interpreter_stack


HasRecords = Callable[[Tensor], bool]
"""Whether a tensor carries records; parameters and public tensors do not."""


def _no_training_batch_norm(
    has_records: HasRecords,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    *_: Any,
    **__: Any,
) -> None:
    """Accepted without running statistics on what is computed from parameters, as to standardise weights."""
    if training and (running_mean is not None or running_var is not None or has_records(input)):
        refuse(
            "no BatchNorm in training mode: its statistics mix the records of a batch",
            "F.batch_norm with training=True",
            "call discreet.fix(model) to swap it for GroupNorm, or put the layer in eval mode",
        )


def _no_batch_norm_of_torch(
    has_records: HasRecords,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    *_: Any,
    **__: Any,
) -> None:
    """The same with the arguments of torch.batch_norm."""
    _no_training_batch_norm(has_records, input, running_mean, running_var, weight, bias, training)


def _no_tracking_instance_norm(
    _: HasRecords,
    input: Tensor,
    running_mean: Tensor | None = None,
    *args: Any,
    use_input_stats: bool = True,
    **kwargs: Any,
) -> None:
    if running_mean is not None and use_input_stats:
        refuse(
            "no running statistics of the records",
            "InstanceNorm with track_running_stats=True",
            "build the layer with track_running_stats=False",
        )


def _no_rewriting_embedding(
    _: HasRecords,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> None:
    if max_norm is not None:
        refuse(
            "an embedding that leaves its weights alone in the forward pass",
            "Embedding(max_norm=...)",
            "drop max_norm, or project the weights after the update",
        )
    if scale_grad_by_freq:
        refuse(
            "an embedding whose gradient is a sum over records",
            "Embedding(scale_grad_by_freq=True)",
            "drop scale_grad_by_freq: it counts tokens over the whole batch",
        )
    if sparse:
        refuse(
            "an embedding with dense gradients: noise goes to every row",
            "Embedding(sparse=True)",
            "drop sparse, and use an optimizer for dense gradients",
        )


def _no_random_slopes(
    _: HasRecords, input: Tensor, lower: float = 0.0, upper: float = 0.0, training: bool = False, inplace: bool = False
) -> None:
    if training:
        refuse(
            "random numbers of which a record uses as many, whatever it holds",
            "F.rrelu with training=True, which draws for negative entries alone: one record moves the draws of others",
            "use LeakyReLU, or torch.where(x < 0, x * slopes, x) with a slope for every entry",
        )


def _no_grouped_experts(*_: Any, **__: Any) -> None:
    refuse(
        "each token's experts to be computed for that token alone",
        "a mixture of experts that sorts the tokens of all records by expert (grouped_mm)",
        'call model.set_experts_implementation("batched_mm"), for models of transformers',
    )


FORBIDDEN: dict[Callable[..., Any], Callable[..., None]] = {
    F.batch_norm: _no_training_batch_norm,
    torch.batch_norm: _no_batch_norm_of_torch,
    F.instance_norm: _no_tracking_instance_norm,
    F.embedding: _no_rewriting_embedding,
    F.rrelu: _no_random_slopes,
    torch._grouped_mm: _no_grouped_experts,
}


def refuse_unchecked(func: Callable[..., Any], args: Any, kwargs: Any, has_records: HasRecords) -> None:
    """Refuse a call that writes to an argument without a count, or reads memory of others.

    The watch knows a write by the version of a tensor. Statistics of the records would lie in one that counts as
    public.
    """
    name = _name_in_aten(func)
    if func in UNCHECKED:
        check: Any = {"ctc_loss": _check_targets, "linalg_eigvals": _check_matrices}.get(name, _check_grid)
        check(*args, **kwargs)
    elif name == "batch_norm":
        check = _no_training_batch_norm if func is F.batch_norm else _no_batch_norm_of_torch
        check(has_records, *args, **kwargs)
    elif func is F.instance_norm:
        _no_tracking_instance_norm(has_records, *args, **kwargs)
    elif _writes_uncounted(name):
        refuse(
            "calls whose writes torch counts",
            f"{name_of(func)} at {user_line()}, which may change an argument without a trace",
            "leave it out of the training loop, or use the layers of torch.nn and torch.nn.functional",
        )


@cache
def _name_in_aten(func: Any) -> str:
    return str(getattr(func, "__name__", "")).split(".")[0]


@cache
def _writes_uncounted(name: str) -> bool:
    """Whether a function of this name writes to another argument than the first and `out`, where torch counts.

    Its list of functions does not mention what normalisation with running statistics writes to.
    """
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}") if name.isidentifier() else []
    others = [argument for schema in schemas for argument in schema.arguments[1:] if not argument.kwarg_only]
    written = [one for one in others if one.alias_info is not None and one.alias_info.is_write]
    is_unlisted = "batch_norm" in name or name in ("instance_norm", "set_data")
    return is_unlisted or any("Tensor" in str(argument.type) for argument in written)


def _check_targets(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *_: Any, **__: Any
) -> None:
    """Refuse targets of `ctc_loss` that are no classes: torch would read whatever lies there, such as other records."""
    with torch._C.DisableTorchFunction():
        classes, used = log_probs.shape[-1], targets.detach()
        if used.dim() == 2:  # padding is not read
            lengths = torch.as_tensor(target_lengths, device=used.device).view(-1, 1)
            used = used.masked_fill(torch.arange(used.shape[1], device=used.device) >= lengths, 0)
        are_classes = not bool(((used < 0) | (used >= classes)).any())
    if not are_classes:
        refuse(
            f"targets of F.ctc_loss from 0 to {classes - 1}, the last of the classes",
            f"others at {user_line()}, for which torch reads memory beside a record's own",
            "check targets before training",
        )


def _check_grid(input: Tensor, grid: Tensor, *_: Any, **__: Any) -> None:
    """Refuse coordinates of `grid_sample` that are not finite, in pixels: torch makes places in memory of them."""
    with torch._C.DisableTorchFunction():
        is_finite = bool((grid.detach() * (4 * max(input.shape[2:], default=1))).isfinite().all())
    if not is_finite:
        refuse(
            "finite coordinates for F.grid_sample, also in pixels",
            f"others at {user_line()}, for which torch reads memory beside a record's own",
            "check values before training, or bound the coordinates: torch.nan_to_num(grid).clamp(-2, 2)",
        )


def _check_matrices(A: Tensor, **_: Any) -> None:
    """Refuse matrices for `eigvals` that are not finite: torch gives them to a library that ends the process."""
    with torch._C.DisableTorchFunction():
        is_finite = bool(A.detach().isfinite().all())
    if not is_finite:
        refuse(
            "finite matrices for torch.linalg.eigvals",
            f"others at {user_line()}, with which torch ends the process",
            "check values before training, or replace what is not finite: torch.nan_to_num(matrices)",
        )


def refuse_reading(func: Callable[..., Any]) -> None:
    """Refuse a call that turns a value of the records into a number that control flow can depend on."""
    if name_of(func) in VALUES:
        _refuse_reading(f"a call of {name_of(func)} on them")


def refuse_bounds(func: Callable[..., Any], args: Any, on_records: Callable[[list[Tensor]], bool]) -> None:
    """Refuse a slice up to a value of the records."""
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        for index in args[1] if isinstance(args[1], tuple) else args[1:2]:
            bounds = (index.start, index.stop, index.step) if isinstance(index, slice) else ()
            if on_records([bound for bound in bounds if isinstance(bound, Tensor)]):
                _refuse_reading("a slice with one of them as its bound")


def _refuse_reading(came: str) -> None:
    refuse(
        "a forward pass that does not read values of the records",
        f"{came} at {user_line()}",
        "decide for each record by itself, with torch.where on that record's own values (never on a statistic of the "
        "batch such as x.max()), pad to a public length and mask, and check values before training: a branch or an "
        "error tells something about the records; for a mixture of experts of transformers, call model."
        'set_experts_implementation("batched_mm")',
    )


def refuse_out_of_sight(func: Callable[..., Any], tensors: list[Tensor]) -> None:
    """Refuse hooks on tensors that need a gradient, and tensors that get new memory."""
    if HOOKS.get(func) and tensors[0].requires_grad:
        if is_building():
            refuse(
                "layers that are built before the first batch",
                f"one that is built at {user_line()}",
                "build it in __init__() of the model, where its parameters are trained, or call torch.nn.functional",
            )
        refuse(
            f"a step whose gradients autograd computes: {HOOKS[func]}",
            f"{name_of(func)} at {user_line()}",
            "remove the hook; private.step bounds every record's gradient",
        )
    if func == DATA_SET:
        refuse(
            "tensors whose memory stays theirs until the losses are taken",
            f"`tensor.data = ...` at {user_line()}",
            "compute a new tensor",
        )


def is_building() -> bool:
    """Whether a module takes a parameter at this moment: torch looks at its graph then."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code is not nn.Module.register_parameter.__code__:
        frame = frame.f_back
    return frame.f_code is nn.Module.register_parameter.__code__


def refuse_transformed() -> None:
    """Refuse a call inside torch.func.grad and the like, or inside a compiled function."""
    transform = transform_at_work()
    if transform is not None and transform.key() in (TransformType.Grad, TransformType.Jvp):
        refuse(
            "losses whose gradients autograd computes, call by call",
            f"a call inside torch.func.grad, or a function that uses it, at {user_line()}",
            "take differences, (model(x + h * v) - model(x)) / h: gradients inside a private step are not supported",
        )
    if callable(compiler_at_work()):
        refuse(
            "losses in which each record stands alone, call by call",
            f"a call inside a compiled function, at {user_line()}",
            "call the Python function: leave torch.compile out of the loss, augment and the loop",
        )


def refuse_scripted() -> None:
    """Refuse a scripted function on records."""
    refuse(
        "losses in which each record stands alone, call by call",
        f"a scripted function at {user_line()}, inside which no call is watched",
        "call the Python function: leave torch.jit.script and torch.jit.trace out",
    )
