"""Who mixed records: the user's own line, the call, and what to write instead."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from discreet.core.check import refuse, require
from discreet.engine.proof.forms.provable_call import CallVerdict
from discreet.engine.proof.lineage import MIXED, PUBLIC, Blame, Origin
from discreet.engine.proof.verdicts import readable
from discreet.engine.trace.capture import RecordAxis, name_of

VALUES: Final = frozenset(
    [
        *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__array__", "__bool__", "__int__"),
        *("__float__", "__complex__", "__index__", "__contains__", "__repr__", "__format__"),
    ]
)
"""Methods that turn a tensor into numbers."""

_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_DISCREET: Final = str(Path(__file__).parents[2]) + os.sep

UNKNOWN: Final = Blame(
    "a tensor that no watched call made",
    "",
    "it comes from an earlier batch, from NumPy, from a file, from another thread or out of torch.vmap",
    "make it before the loop (a constant, a copy of the model), from the model's parameters, or from this batch; keep "
    "no values of records from one batch to the next; if it does not come from records, write "
    "discreet.public(tensor_or_module) before you use it; in place of torch.vmap call functions of the whole batch, "
    'such as F.cross_entropy(outputs, targets, reduction="none")',
)
OF_THE_DATASET: Final = Blame(
    "a tensor of the dataset",
    "",
    "the dataset holds it, or its code reads it by name, so it may hold records",
    "if it is a constant that does not come from the records (class weights, a mean and a deviation from public data), "
    "write discreet.public(tensor) where you use it; if not, give it to the loop as part of each record",
)
SCALED: Final = replace(
    UNKNOWN,
    why="it is the scale of a GradScaler, which is set by the gradients of the batch, without noise",
    remedy="leave GradScaler out, and use bfloat16 in place of float16: its gradients do not underflow",
)
UNINITIALISED: Final = Blame(
    "torch.empty",
    "",
    "its memory may still hold values of records",
    "use torch.zeros or torch.full, or write to every entry by slices first",
)
GRADIENTS: Final = Blame(
    "a gradient that backward() left",
    "",
    "it may hold a sum over the records, or gradients of earlier passes",
    "leave backward() out: private.step takes the gradients and bounds them",
)
CHANGED: Final = Blame(
    "a tensor that changed after the first batch",
    "",
    "what it holds now may come from records",
    "keep it as it was before the first batch, or make it a function of the parameters inside the loop; if it comes "
    "from released parameters alone (an averaged copy of the model, say), write discreet.public(tensor_or_module)",
)


REHEARSAL_FAILED: Final = (
    "discreet: this batch is a rehearsal, on which the loop shows how it makes its losses. Its records are made up: "
    'whole numbers are 1, fractions lie between 0 and 1, strings are "1". The loop must take it. If it cannot, pass '
    "Private(..., rehearsal=batch): a batch of public records in the form in which the loop gets them."
)
TAMPERED: Final = (
    "tensors that hold what they held when the losses were made, until private.step returns",
    "memory that was written to through NumPy or another library",
    "copy the values before you change them",
)


def user_line() -> str:
    """The innermost line outside torch and this library, quoted."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_DISCREET, _TORCH)):
            text = linecache.getline(name, frame.f_lineno).strip()
            return f"{name}:{frame.f_lineno}" + (f" `{text}`" if text else "")
        frame = frame.f_back
    return "an unknown line"


_BETWEEN: Final = (
    *("torch/_tensor.py", "torch/overrides.py", "torch/nn/functional.py", "torch/functional.py"),
    *("discreet/engine/record_watch.py", "discreet/engine/surroundings.py"),
    *("discreet/engine/proof/calls/judgement.py", "discreet/engine/proof/calls/expected.py"),
)


def line_of_the_call() -> tuple[CodeType, int]:
    """The line that made the call under way: of the user's code, or of a module's forward()."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.endswith(_BETWEEN):
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


_REDUCTIONS: Final = frozenset(
    [
        *("mean", "sum", "std", "var", "amax", "amin", "max", "min", "any", "all", "median", "quantile", "nanmean"),
        *("nansum", "norm", "prod", "logsumexp", "argmax", "argmin", "count_nonzero", "mode", "nanmedian", "aminmax"),
        *("std_mean", "var_mean", "softmax", "log_softmax", "cumsum", "sort", "argsort", "topk", "kthvalue"),
    ]
)


BY_PLACE: Final = (
    "what it gives a record depends on the record's place in the batch, or on the number of records: a public tensor "
    "has other values for other rows"
)


_REMEDIES: Final = {
    "cdist": 'pass compute_mode="donot_use_mm_for_euclid_dist"',
    "prod": "multiply a record's entries one by one: functools.reduce(torch.mul, x.unbind(1))",
    "linalg_eig": "call torch.linalg.eigvals for eigenvalues alone, or torch.linalg.eigh for symmetric matrices",
    "linalg_lstsq": 'pass driver="gelsd": by default a matrix takes the order of columns from the one before it',
    "linalg_solve": "give the right side the axes of the left one: torch.linalg.solve(A, B.expand(len(A), -1, -1))",
}


def blame_for(func: Callable[..., Any], verdict: CallVerdict) -> Blame:
    """Why the outputs of a call are mixed, and what to write instead."""
    name = name_of(func).strip("_")
    if verdict.sized_by_values:
        remedy = "keep every record and every position: pad to a public length, and multiply by a mask of 0 and 1"
    elif verdict.why == BY_PLACE:
        remedy = "give every record the same value (`expand` one row), or a random number of its own (torch.rand)"
    elif name in ("setitem", "index_put", "masked_scatter"):
        remedy = (
            "write with torch.where(mask, values, x) or masked_fill, which keep every entry in its place, instead of "
            "x[mask] = values[mask]; write no record by its place in the batch"
        )
    elif name in _REMEDIES:
        remedy = _REMEDIES[name]
    elif name.endswith("_loss") or name in ("cross_entropy", "binary_cross_entropy", "kl_div"):
        remedy = 'pass reduction="none" and reduce each record by itself'
    elif name in _REDUCTIONS:
        remedy = (
            f"take {name} over each record's own entries (dim=1 and up, x.flatten(1)), or use a constant that was "
            "fixed on public data before training"
        )
    elif name in ("batch_norm", "instance_norm"):
        remedy = "call discreet.fix(model) to swap it for GroupNorm, or put the layer in eval mode"
    elif "own" in verdict.why or "NumPy" in verdict.why or "function" in verdict.why:
        remedy = "write it with torch functions on the tensors of the batch"
    else:
        remedy = "compute each record from its own values and the parameters alone"
    return Blame(readable(func), user_line(), verdict.why, remedy)


def here(blame: Blame) -> Blame:
    """The same at the user's line."""
    if blame is UNKNOWN and _is_scaling():
        blame = SCALED
    return replace(blame, where=user_line())


def _is_scaling() -> bool:
    """Whether a GradScaler makes the call under way."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.amp.GradScaler.scale.__code__:
        frame = frame.f_back
    return frame is not None


WRITTEN = Blame(
    "a tensor that was written to through a view",
    "",
    "its records can no longer be told apart",
    "compute a new tensor (torch.cat, torch.stack, torch.where on the record's own values) instead of writing into one",
)


def is_uninitialised(origin: Origin) -> bool:
    """Whether a tensor holds whatever its memory held before."""
    return origin.blame is not None and origin.blame.call == UNINITIALISED.call


def check_losses(origin: Origin) -> None:
    """Refuse losses that depend on several records, on none, or that come in another order."""
    place = origin.lineage
    if place is MIXED:
        _refuse_losses(origin.blame or UNKNOWN)
    require(
        place is not PUBLIC,
        "losses that are computed from the tensors of the batch",
        "losses that depend on none of them",
        "give the values of the records as tensors: encode strings and lists in the dataset or in collate_fn",
    )
    if isinstance(place, RecordAxis) and (place.axis != 0 or place.minor):
        refuse(
            "losses with one entry for each record, in the order of the batch",
            "losses in another order",
            "keep the record as the first axis",
        )


def check_inputs(origins: Iterable[tuple[Origin, Tensor]], records: int) -> None:
    """Refuse tensors with a row for each record, that the model is given, whose rows come in another order.

    The model is proven on inputs in which all rows of a record (its views) lie side by side.
    """
    for origin, tensor in origins:
        place = origin.lineage
        if isinstance(place, RecordAxis) and (place.axis != 0 or (place.minor and tensor.shape[0] != records)):
            refuse(
                "inputs of the model with the records along the first axis, in the order of the batch",
                f"rows in another order at {user_line()}",
                "give the model the rows as the batch has them, all views of a record side by side; to take the first "
                "view of every record, then the second, index the outputs: out[::views], out[1::views]",
            )


def _refuse_losses(blame: Blame) -> NoReturn:
    at = ", first used at " if blame.call == UNKNOWN.call else " at "
    refuse(
        "losses in which each record stands alone, call by call",
        f"{blame.call}{at + blame.where if blame.where else ''}: {blame.why}",
        blame.remedy,
    )


def refuse_trained(tensor: Tensor) -> NoReturn:
    """Refuse a tensor that needs a gradient, and is no parameter of the model."""
    refuse(
        "gradients that go to the parameters of the model alone, where they are bounded and get noise",
        f"a tensor of shape {list(tensor.shape)} that needs a gradient and is not in the model, at {user_line()}",
        "make it a part of the model that you give to Private, or call requires_grad_(False) on it",
    )


def refuse_writing(origin: Origin) -> NoReturn:
    """Refuse a parameter or buffer that takes values of records."""
    refuse(
        "parameters and buffers that hold nothing of the records",
        f"values of the records written into one at {user_line()}",
        "turn off running statistics and the like, and keep state of your own out of the model",
    )
