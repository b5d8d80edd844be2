"""Torch functions that the watch treats in a way of their own."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
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
    [getattr(Tensor, name).__get__ for name in _GETTERS if hasattr(getattr(Tensor, name, None), "__get__")]
    + [getattr(Tensor, name) for name in _METHODS]
    + [torch.is_floating_point, torch.is_complex, torch.is_tensor, torch.numel, torch._C._set_grad_enabled]
)
"""Calls that tell sizes and types, and no values."""

HOOKS: Final = {
    Tensor.register_hook: "a hook changes gradients out of sight",
    Tensor.register_post_accumulate_grad_hook: "a hook changes gradients out of sight",
    getattr(Tensor, "grad_fn").__get__: "a hook on the graph changes gradients out of sight",  # noqa: B009
    Tensor.retain_grad: "",
}


DATA_GET: Final = Tensor.data.__get__  # type: ignore[attr-defined]
DATA_SET: Final = Tensor.data.__set__  # type: ignore[attr-defined]
TO_MEMORY: Final = frozenset(
    [
        *(Tensor.numpy, Tensor.__array__, Tensor.untyped_storage, Tensor.data_ptr, Tensor.set_),
        *(Tensor.__dlpack__, Tensor.storage, Tensor.share_memory_),
    ]
)


HIDDEN: Final[dict[Any, Any]] = {
    torch.from_file: UNKNOWN,
    getattr(Tensor, "grad").__get__: GRADIENTS,  # noqa: B009
}
"""Functions whose results hold what their arguments do not show."""


NEW_MEMORY: Final = frozenset(
    [
        *(torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted),
        *(Tensor.new_empty, Tensor.new_empty_strided),
    ]
)
"""Functions whose results share their memory with no other tensor, and are known once every entry is written."""


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
_HARMLESS: Final = frozenset([Tensor.requires_grad_, Tensor.share_memory_])
RECURRENT: Final = frozenset([torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu])
"""Functions that are proven as one call, although the engine takes them apart: they make thousands."""
SPECIAL: Final = frozenset(HOOKS) | TO_MEMORY | FILLS | {DATA_SET}
saved_tensors_hooks: Final = torch._C._autograd._top_saved_tensors_default_hooks


def changes_graph(func: Any) -> bool:
    """Whether a function that gives its argument back may have changed it without a write, as `detach_` does."""
    name = getattr(func, "__name__", "")
    return name.endswith("_") and not name.endswith("__") and func not in _HARMLESS


def is_slice(index: Any) -> bool:
    """Whether an index gives a view: whole numbers and slices alone."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is ... or type(part) in (int, slice) for part in parts)
