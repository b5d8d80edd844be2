"""Public numbers that differ from record to record: a record's place in the batch depends on who else was drawn.

`losses * torch.arange(len(losses))` gives each record a weight by its place; leave one record out, and all that follow
have another weight. Random numbers are no matter, as every place gets the same kind.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

from discreet.engine.proof.call_forms import Reading
from discreet.engine.proof.lineage import PUBLIC, Origin
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
        *("_standard_gamma", "_sample_dirichlet", "geometric_", "cauchy_", "log_normal_"),
    ]
)


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
            if _differs(tensor, RecordAxis(axis, minor), records) and not _is_random(origin):
                return True
    return False


def _differs(tensor: Tensor, axis: RecordAxis, records: int) -> bool:
    by_record = axis.split(tensor.detach(), records)
    return bool((by_record != by_record[:1]).any())


def _is_random(origin: Origin) -> bool:
    ahead, seen = [origin], {id(origin)}
    while ahead:
        one = ahead.pop()
        if one.func is not None and name_of(one.func) in _RANDOM:
            return True
        for parent in one.parents:
            if id(parent) not in seen:
                seen.add(id(parent))
                ahead.append(parent)
    return False
