"""Torch functions that the watch treats in a way of their own."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.engine.proof.blame import GRADIENTS, UNKNOWN

_GETTERS: Final = (
    *("shape", "dtype", "device", "requires_grad", "ndim", "layout", "is_leaf", "is_cuda", "is_sparse", "names"),
    *(
        "is_quantized",
        "is_nested",
        "is_meta",
        "is_mps",
        "itemsize",
        "nbytes",
        "is_mkldnn",
        "is_cpu",
        "output_nr",
        "_version",
    ),
)
_METHODS: Final = (
    *("dim", "size", "numel", "nelement", "ndimension", "__len__", "stride", "storage_offset", "is_floating_point"),
    *("is_complex", "is_contiguous", "element_size", "get_device", "is_signed", "is_inference", "__hash__"),
)
QUIET: Final = frozenset(
    [getattr(Tensor, name).__get__ for name in _GETTERS if name in dir(Tensor)]  # releases of torch have others
    + [getattr(Tensor, name) for name in _METHODS]
    + [torch.is_floating_point, torch.is_complex, torch.is_tensor, torch.numel, torch._C._set_grad_enabled]
)
"""Calls that tell sizes and types, and no values."""

HOOKS_SET: Final = Tensor._backward_hooks.__set__  # type: ignore[union-attr]
HOOKS: Final = {
    Tensor.register_hook: "a hook changes gradients out of sight",
    Tensor.register_post_accumulate_grad_hook: "a hook changes gradients out of sight",
    getattr(Tensor, "grad_fn").__get__: "a hook on the graph changes gradients out of sight",  # noqa: B009
    Tensor.retain_grad: "",
    HOOKS_SET: "a hook changes gradients out of sight",
    Tensor._backward_hooks.__get__: "its own hooks bound them",  # type: ignore[union-attr]
}


DATA_SET: Final = Tensor.data.__set__  # type: ignore[attr-defined]
TO_MEMORY: Final = frozenset(
    [
        *(Tensor.numpy, Tensor.__array__, Tensor.untyped_storage, Tensor.data_ptr, Tensor.set_),
        *(Tensor.__dlpack__, Tensor.storage, Tensor.share_memory_),
    ]
)


_HIDDEN: Final[dict[Any, Any]] = {
    getattr(Tensor, "grad").__get__: GRADIENTS,  # noqa: B009
    getattr(Tensor, "_base").__get__: UNKNOWN,  # noqa: B009, other parts of the memory
}


def hidden_by(func: Any) -> Any:
    """Why the results of a function hold what its arguments do not show: who is to blame; None if they do not."""
    is_file = str(getattr(func, "__name__", "")).startswith("from_file")  # also of torch.ops
    return UNKNOWN if is_file else _HIDDEN.get(func)


NEW_MEMORY: Final = frozenset(
    [
        *(torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted),
        *(Tensor.new_empty, Tensor.new_empty_strided, Tensor.new),
    ]
)
"""Functions whose results share their memory with no other tensor, and are known once every entry is written."""


def is_given_values(func: Any, args: Any) -> bool:
    """Whether `tensor.new` is called with a list of numbers; other sequences and numbers are sizes."""
    return func is Tensor.new and len(args) == 2 and type(args[1]) in (list, tuple)


def is_constant(func: Any, args: Any) -> bool:
    """Whether a method takes the type and device of its tensor alone: `x.new_ones(3)` is torch.ones(3)."""
    return func in _CONSTANTS or is_given_values(func, args)


_CONSTANTS: Final = frozenset([Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_tensor])


def is_given_sizes(args: Any) -> bool:
    """Whether `tensor.new` is called with sizes, and not with memory of another tensor."""
    return all(type(arg) is int for arg in args[1:]) or [type(arg) for arg in args[1:]] == [torch.Size]


@cache
def leaves_memory(func: Any) -> bool:
    """Whether a function gives memory as it finds it: `empty`, `new_empty`, `resize_`, also of torch.ops."""
    parts = str(getattr(func, "__name__", "")).split(".")
    return any(part.strip("_").removeprefix("new_").startswith(("empty", "resize")) or part == "new" for part in parts)


FILLS: Final = frozenset(
    [
        *(Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.random_, Tensor.fill_, Tensor.zero_),
        *(Tensor.bernoulli_, Tensor.log_normal_, Tensor.cauchy_, Tensor.geometric_, Tensor.copy_),
    ]
)
INDEXING: Final = frozenset(
    getattr(room, name)
    for name in (
        *("__getitem__", "__setitem__", "index_select", "gather", "take_along_dim", "index_put", "index_put_"),
        *("index_add", "index_add_", "index_copy", "index_copy_", "scatter", "scatter_", "scatter_add", "scatter_add_"),
    )
    for room in (torch, Tensor)
    if getattr(room, name, None) is not None
)
"""Functions that take whole numbers as places."""
_HARMLESS: Final = frozenset([Tensor.share_memory_])
UNCHECKED: Final = frozenset([F.ctc_loss, torch.ctc_loss, F.grid_sample, torch.grid_sampler, torch.linalg.eigvals])
"""Functions that read memory by values which torch does not check, or end the process with some."""
RECURRENT: Final = frozenset([torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu])
"""Functions that are proven as one call, although the engine takes them apart: they make thousands."""
SPECIAL: Final = frozenset(HOOKS) | TO_MEMORY | FILLS | {DATA_SET}
saved_tensors_hooks: Final = torch._C._autograd._top_saved_tensors_default_hooks


def is_quiet(func: Any, args: Any) -> bool:
    """Whether a call tells and changes no values. Torch removes hooks itself while it changes a graph: to look at the
    graph at that moment would never end."""
    return func in QUIET or (func == HOOKS_SET and args[1] is None)


def changes_graph(func: Any, *, of_model: bool = False) -> bool:
    """Whether a function that gives its argument back may have changed it without a write, as `detach_` does.

    of_model  whether the model holds the argument: there is an origin for it with a gradient and without
    """
    name, is_known = getattr(func, "__name__", ""), of_model and func is Tensor.requires_grad_
    return name.endswith("_") and not name.endswith("__") and func not in _HARMLESS and not is_known


_AUGMENTED: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_IN_PLACE: Final = frozenset([Tensor.__setitem__, *(getattr(Tensor, f"__i{name}__", None) for name in _AUGMENTED)])


def writes_in_place(func: Any) -> bool:
    """Whether a function writes to its first argument, and to no other."""
    name = getattr(func, "__name__", "")
    return func in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def is_slice(index: Any) -> bool:
    """Whether an index gives a view: whole numbers and slices alone."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is ... or type(part) in (int, slice) for part in parts)
