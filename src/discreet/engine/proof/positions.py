"""Public numbers that depend on the batch: on a record's place in it, or on its size.

`losses * torch.arange(len(losses))` gives each record a weight by its place; leave one record out, and all that follow
have another weight. Random numbers are no matter, as every place gets the same kind. `losses / len(losses)` gives each
record a weight by the number of records, which one record more changes for all of them.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from discreet.engine.proof.call_forms import Reading, counts
from discreet.engine.proof.lineage import PUBLIC, Origin
from discreet.engine.proof.watched_functions import INDEXING
from discreet.engine.trace.capture import RecordAxis, name_of

_RANDOM: Final = frozenset(
    [
        *("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_", "normal"),
        *(
            "normal_",
            "uniform_",
            "exponential_",
            "random_",
            "poisson",
            "multinomial",
            "dropout",
            "randperm",
            "binomial",
        ),
        *("binomial", "_standard_gamma", "_sample_dirichlet", "geometric_", "cauchy_", "log_normal_"),
    ]
)
_NORMALISING: Final = frozenset(["softmax", "log_softmax", "normalize", "_sample_dirichlet"])
_COUNTING: Final = frozenset(
    [
        *("arange", "range", "linspace", "logspace", "eye", "tril", "triu", "tril_indices", "triu_indices", "diag"),
        *("cumsum", "cumprod", "sort", "argsort", "randperm", "multinomial", "nonzero", "cartesian_prod"),
        *("__setitem__", "logcumsumexp", "cummax", "cummin", *_NORMALISING),
    ]
)
"""Functions that give places different numbers, or numbers that depend on how many there are."""
_EXACT: Final = 1e-6
_LARGEST_SAMPLE: Final = 1 << 14


def places_matter(reading: Reading, records: int) -> bool:
    """Whether an element-wise call combines records with public numbers that differ along the record axis."""
    if not any(one.lineage is PUBLIC and tensor.dim() for tensor, one in zip(reading.tensors, reading.origins)):  # noqa: B905
        return False  # nearly always
    ends = {
        (tensor.dim() - origin.lineage.axis, origin.lineage.minor)
        for tensor, origin in zip(reading.tensors, reading.origins, strict=True)
        if isinstance(origin.lineage, RecordAxis)
    }
    for tensor, origin in zip(reading.tensors, reading.origins, strict=True):
        if origin.lineage is not PUBLIC or tensor.dim() == 0:
            continue
        for end, minor in ends:
            axis = tensor.dim() - end
            if axis < 0 or tensor.shape[axis] < records or tensor.shape[axis] % records:
                continue
            if _varies(tensor, RecordAxis(axis, minor), records) and not is_random_by_place(origin):
                return True
    return False


def _varies(tensor: Tensor, axis: RecordAxis, records: int) -> bool:
    by_record = axis.split(tensor.detach(), records)
    return bool((by_record != by_record[:1]).any())


def is_random(origin: Origin) -> bool:
    """Whether a public tensor has other values in every batch because it depends on random numbers alone."""
    calls = _calls_to(origin)
    return any(name in _RANDOM for name in calls) and not calls.keys() & _NORMALISING


def is_random_by_place(origin: Origin) -> bool:
    """Whether places have different numbers because each has a random one of its own."""
    calls = _calls_to(origin)
    return any(name in _RANDOM and grows for name, grows in calls.items()) and not calls.keys() & _COUNTING


def _calls_to(origin: Origin) -> dict[str, bool]:
    """The names of the calls that a tensor comes from, and whether one of them gave an entry for each record."""
    found: dict[str, bool] = {}
    ahead, seen = [origin], {id(origin)}
    while ahead:
        one = ahead.pop()
        if one.func is not None:
            name = name_of(one.func)
            found[name] = found.get(name, False) or one.form is None or grows(one.form)
        for parent in one.parents:
            if id(parent) not in seen:
                seen.add(id(parent))
                ahead.append(parent)
    return found


def grows(form: Any) -> bool:
    """Whether a tensor of this form has an axis that follows the number of records."""
    return form is not None and any(isinstance(size, tuple) for size in form[1])


def differs(one: Tensor | None, other: Tensor | None, sizes: tuple[int, int]) -> bool:
    """Whether two samples of a public tensor, for batches of two sizes, have different values for a record."""
    first, second = (_of_one_record(one, other, sizes[0]), _of_one_record(other, one, sizes[1]))
    if first is None or second is None or first.shape != second.shape:
        return False
    return not torch.allclose(first, second, rtol=_EXACT, atol=0.0, equal_nan=True)


def differs_by_place(one: Tensor | None, other: Tensor | None, sizes: tuple[int, int]) -> bool:
    """Whether a public tensor that grows with the batch gives different values to different records."""
    if one is None or other is None or one.dim() != other.dim() or one.shape == other.shape:
        return False
    return any(_of_one_record(*pair) is None for pair in ((one, other, sizes[0]), (other, one, sizes[1])))


def _of_one_record(tensor: Tensor | None, other: Tensor | None, records: int) -> Tensor | None:
    """The entries of one record, along the axis in which two samples differ; None if records have different ones."""
    if tensor is None or other is None or tensor.dim() != other.dim():
        return None
    growing = [axis for axis in range(tensor.dim()) if tensor.shape[axis] != other.shape[axis]]
    if not growing:
        return tensor
    if len(growing) > 1 or tensor.shape[growing[0]] % records:
        return None
    for axis in (RecordAxis(growing[0]), RecordAxis(growing[0], minor=True)):
        by_record = axis.split(tensor, records)
        if bool(((by_record == by_record[:1]) | by_record.isnan()).all()):
            return by_record[0]
    return None


def sample_of(tensor: Tensor) -> Tensor | None:
    """The values of a public tensor, for a comparison; the extremes of a large one."""
    if tensor.is_complex() or tensor.is_quantized or tensor.is_meta or tensor.numel() == 0:
        return None
    values = tensor.detach().to("cpu", torch.float64)
    if values.numel() > _LARGEST_SAMPLE:
        return torch.stack([values.amin(), values.amax()])
    return values.clone()


def keep_samples(func: Any, reading: Reading) -> None:
    """Keep the values of public tensors that meet records, to compare them for batches of two sizes."""
    for tensor, origin in zip(reading.tensors, reading.origins, strict=True):
        is_place = func in INDEXING and counts(origin)
        if origin.lineage is PUBLIC and origin.is_made and origin.sample is None and not is_place:
            origin.sample = sample_of(tensor)
