"""Verdicts on calls, each form proven once in a process."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.peak_memory import give_back
from discreet.engine.proof.call_proof import prove
from discreet.engine.proof.forms.call_forms import TENSORS, Opaque, Reading, provable, provable_small, without_values
from discreet.engine.proof.forms.provable_call import (
    ALL_FOLLOW,
    FEW,
    MANY,
    NONE_FOLLOW,
    CallVerdict,
    Numbers,
    ProvableCall,
    UnprovableError,
    choices_of_numbers,
    factor_of,
)
from discreet.engine.proof.forms.small_sizes import named
from discreet.engine.proof.generic_values import STAND_INS
from discreet.engine.proof.lineage import MIXED, PUBLIC, Origin, PublicRows
from discreet.engine.trace.capture import RecordAxis, bare_name, name_of
from discreet.engine.trace.settings import ELEMENTWISE

_LARGE: Final = 4 << 20  # bytes of a call whose proof takes memory that shows

SIZED: Final = named(
    *(
        "view",
        "reshape",
        "expand",
        "broadcast_to",
        "repeat",
        "repeat_interleave",
        "tile",
        "unflatten",
        "narrow",
        "select",
    ),
    *(
        "split",
        "chunk",
        "split_with_sizes",
        "tensor_split",
        "getitem",
        "setitem",
        "zeros",
        "ones",
        "full",
        "empty",
        "eye",
    ),
    *("arange", "linspace", "rand", "randn", "randint", "randperm", "normal", "bernoulli", "tril_indices"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new", "multinomial", "affine_grid"),
)
"""Functions whose whole numbers may be sizes and follow the number of records; those of others are values."""

# By name, as operators of torch.ops and torch._C._nn are other objects than the functions of torch.
_SLIDING: Final = re.compile("conv(?!ert)|pool|fold|im2col|col2im|interpolate|upsample|grid_sample")
_BY_MEMORY: Final = ("as_strided", "reshape_alias", "set_", "resize_", "resize", "resize_as", "set_source")
READS_MEMORY: Final = "it reads memory by address, whatever lies there"
_BY_NUMBERS: Final = ("ctc_loss", "grid_sampler", "segment_reduce", "convert_indices")
_DRAWS_BY_VALUES: Final = ("poisson", "binomial", "rrelu")  # none for a rate or a count of zero, or what is positive
_SHIFTS: Final = ("roll", "tril", "triu", "diag")
_FAR: Final = 60


class Form:
    """What is known of one form of call: a digest, a verdict for any number of records, verdicts for single ones."""

    __slots__ = ("at", "digest", "draws", "follows", "settings", "verdict")

    def __init__(self, digest: int, *, follows: bool = False, draws: bool | None = None) -> None:
        self.digest, self.follows = digest, follows  # whether a size or a number may follow the number of records
        self.draws = draws  # whether it draws random numbers; None: the first call tells
        self.settings: dict[Any, Any] = {}
        self.verdict: CallVerdict | None = None
        self.at: dict[Any, Any] = {}


_FORMS: Final[dict[Any, Form]] = {}
_MOST_FORMS: Final = 50_000


def form_of(func: Callable[..., Any], description: Any, declared: tuple[Any, ...] = ()) -> Form:
    """The form of a call, under the settings of torch that change what calls do."""
    key = (func, description, torch._C._is_any_autocast_enabled(), declared)
    form = _FORMS.get(key)
    if form is None:
        if len(_FORMS) > _MOST_FORMS:  # digests are hashes: nothing but time is lost
            _FORMS.clear()
        # Python's hash does not tell -1 from -2.
        digest = hashlib.blake2b(repr(key[:2]).encode(), digest_size=7).digest()
        draws = True if bare_name(func) in _DRAWS_BY_VALUES else None
        form = _FORMS[key] = Form(int.from_bytes(digest), follows=_follows(description), draws=draws)
    return form


def _follows(part: Any) -> bool:
    """Whether a description has a size or a number that may follow the number of records."""
    if isinstance(part, PublicRows):
        return True
    return type(part) is tuple and (part[:1] == ("records",) or any(map(_follows, part)))


def settings_for(form: Form, description: Any, numbers: Numbers, records: int) -> Any:
    """The description of a call in which those numbers that did not follow the number of records are as they are."""
    known = form.settings.get((numbers, records))
    if known is None:
        known = form.settings[numbers, records] = _fixed(description, numbers, records, itertools.count())
    return known


def _fixed(part: Any, numbers: Numbers, records: int, places: Iterator[int]) -> Any:
    if type(part) is not tuple or (part and isinstance(part[0], torch.dtype)):
        return part
    if len(part) == 2 and part[0] == "records":
        return part if numbers.follow(next(places)) else part[1] * records
    return tuple(_fixed(inner, numbers, records, places) for inner in part)


def verdict_on(
    form: Form, func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading, outputs: list[Tensor]
) -> CallVerdict:
    """What the call does to records; `outputs` are what it gave."""
    if form.verdict is not None and fits(form.verdict, outputs, reading.records):
        return form.verdict
    at = reading.records, contents(reading)
    known: CallVerdict | None = form.at.get(at)
    if known is not None and fits(known, outputs, reading.records):
        return known
    verdict, is_general = _proven(func, args, kwargs, reading, outputs)
    if is_general:
        form.verdict = verdict
    else:
        if len(form.at) > 1000:
            form.at.clear()
        form.at[at] = verdict
    return verdict


def fits(verdict: CallVerdict, outputs: list[Tensor], records: int) -> bool:
    """Whether what came out has the sizes that were proven."""
    if len(outputs) != len(verdict.outputs):
        return False
    for tensor, place, factor in zip(outputs, verdict.outputs, verdict.factors):  # noqa: B905, for speed
        if type(place) is RecordAxis:
            axis = place.axis
            if axis >= tensor.dim():
                return False
            size = tensor.size(axis)
            if size % records if factor is None else size != factor * records:
                return False
        elif place is PUBLIC and factor is not None and tensor.shape != factor:
            return False
    return True


def contents(reading: Reading) -> Any:
    """Public whole numbers, by value: they may say which record goes where."""
    return tuple(
        (tuple(tensor.shape), hash(tensor.cpu().numpy().tobytes()))
        for tensor, origin in zip(reading.tensors, reading.origins, strict=True)
        if origin.lineage is PUBLIC and _is_whole(tensor)
    )


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _proven(
    func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading, outputs: list[Tensor]
) -> tuple[CallVerdict, bool]:
    """The verdict, and whether it holds for every number of records."""
    reason = unprovable(func, reading)
    if reason is None and not all(map(_is_dense, outputs)):
        reason = "it makes a tensor that is not dense, or of a class of its own"
    if reason is not None:
        return mixed(outputs, reason), True
    found: CallVerdict | None = None
    is_general = False
    if not needs_the_very_size(func, args, kwargs, reading):
        choices = choices_of_numbers(reading.multiples, reading.records)
        for numbers, rows in itertools.product(choices, reading.choices_of_rows()):
            other = Reading(reading.records, numbers, values=reading.values)
            other.tensors, other.origins, other.rows = reading.tensors, reading.origins, rows
            verdict = verdict_of_reading(func, args, kwargs, other)
            if verdict.keeps_apart and fits(verdict, outputs, reading.records):
                followed = frozenset((i, axis) for i, axis in enumerate(rows) if axis is not None)
                is_general = numbers == ALL_FOLLOW and not any(origin.rows for origin in reading.origins)
                return replace(verdict, followed=followed) if followed else verdict, is_general
            if found is None or verdict.sized_by_values:
                found, is_general = verdict, numbers == ALL_FOLLOW
        is_plain = not (reading.multiples or any(other.rows) or contents(reading))
        is_mixed = found is not None and not found.keeps_apart and len(found.outputs) == len(outputs)
        if is_plain and is_mixed and found is not None and "fails" not in found.why:
            return found, is_general
    try:
        exact = provable(func, args, kwargs, _unfollowed(args, kwargs, reading), exact=True)
        verdict = _proof_of(exact, (reading.records,))
        if fits(verdict, outputs, reading.records):
            return replace(verdict, numbers=NONE_FOLLOW), False
        return mixed(outputs, verdict.why or "its sizes do not follow the number of records"), False
    except UnprovableError as error:
        return mixed(outputs, f"it cannot be run on other values: {error}"), False


def verdict_of_reading(func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading) -> CallVerdict:
    """The verdict for any number of records, which those tensors and numbers follow that the reading says."""
    origins = {id(tensor): origin for tensor, origin in zip(reading.tensors, reading.origins, strict=True)}
    again = Reading(reading.records, reading.numbers, values=reading.values)
    description = again.describe((args, kwargs), lambda tensor: origins[id(tensor)])
    form = form_of(func, ("follows", reading.rows, _stripped(func, description)))
    if form.verdict is None:
        form.verdict = _by_proof(func, args, kwargs, reading)
    verdict = form.verdict
    return replace(verdict, numbers=reading.numbers) if verdict.numbers == ALL_FOLLOW != reading.numbers else verdict


def _by_proof(func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading) -> CallVerdict:
    try:
        small = provable_small(func, args, kwargs, reading)
    except UnprovableError as error:  # at no size, with these numbers
        return _failing(error)
    if small is not None:
        form = form_of(func, ("small", small.key()))  # shared by all calls that are the same at small sizes
        if form.verdict is None:
            found = _tried(small)
            numbers = NONE_FOLLOW if small.has_fixed_numbers else ALL_FOLLOW
            factors = found.factors if small.has_rows else (None,) * len(found.outputs)
            form.verdict = replace(found, factors=factors, numbers=numbers)
        # The shape of a public output is part of a verdict, and another one here.
        is_whole = not small.has_rows or all(type(place) is RecordAxis for place in form.verdict.outputs)
        if form.verdict.keeps_apart and is_whole:
            return form.verdict
    return _tried(provable(func, args, kwargs, reading, exact=False))


def _tried(call: ProvableCall) -> CallVerdict:
    try:
        return _proof_of(call, (FEW, MANY))
    except UnprovableError as error:
        return _failing(error)


def _failing(error: UnprovableError) -> CallVerdict:
    return CallVerdict((MIXED,), (None,), why=f"it fails on generic values ({error})")


def _proof_of(call: ProvableCall, sizes: Sequence[int]) -> CallVerdict:
    """A proof beside the activations of the run: a large one takes its memory with it."""
    try:
        return prove(call, sizes)
    finally:
        if call.bytes_for(max(sizes)) >= _LARGE:
            give_back()


def _stripped(func: Callable[..., Any], description: Any) -> Any:
    return without_values(description) if func in ELEMENTWISE else description


def _unfollowed(args: Any, kwargs: Any, reading: Reading) -> Reading:
    other = Reading(reading.records, NONE_FOLLOW, values=reading.values)
    other.tensors, other.origins = reading.tensors, reading.origins
    return other


def mixed(outputs: list[Tensor], why: str) -> CallVerdict:
    return CallVerdict((MIXED,) * len(outputs), (None,) * len(outputs), why=why)


def needs_the_very_size(func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading) -> bool:
    """Numbers that are larger than the batches of a proof: a shift by 60 records is none in a batch of 60, and
    `losses[:-60] = 0` writes nothing there. A slice up to a multiple of the number of records follows it."""
    if bare_name(func).startswith(_SHIFTS) or _is_operator(func):
        return any(abs(number) >= _FAR for number in _whole_numbers((args[1:], kwargs)))
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        slices = _slices_of_records(args[1], args[0].dim(), reading.origins[0])
        if any(isinstance(bound, Tensor) for part in slices for bound in (part.start, part.stop, part.step)):
            return True
        starts = _whole_numbers([(part.start, part.step) for part in slices])
        stops = _whole_numbers([part.stop for part in slices])
        stops = [stop for stop in stops if factor_of(stop, reading.records) is None]
        return any(abs(number) >= _FAR for number in starts + stops)
    return False


def _slices_of_records(index: Any, axes: int, origin: Origin) -> list[slice]:
    """The slices of an index along axes that follow the number of records."""
    places = [origin.lineage] if isinstance(origin.lineage, RecordAxis) else origin.rows.axes if origin.rows else []
    following = [place.axis for place in places] or range(axes if origin.rows else 0)
    parts = index if isinstance(index, tuple) else (index,)
    taken = [_axes_taken(part) for part in parts]
    found, axis = [], 0
    for part, own in zip(parts, taken, strict=True):
        if isinstance(part, slice) and axis in following:
            found.append(part)
        axis += axes - sum(taken) if part is ... else own
    return found


def _axes_taken(part: Any) -> int:
    """How many axes of a tensor one part of an index stands for; the rest is for `...`."""
    if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.dim()
    return 0 if part is None or part is ... or isinstance(part, bool) else 1


def _whole_numbers(tree: Any) -> list[int]:
    if isinstance(tree, dict):
        return _whole_numbers(list(tree.values()))
    if isinstance(tree, (tuple, list)):
        return [number for part in tree for number in _whole_numbers(part)]
    return [int(tree)] if isinstance(tree, (int, np.integer)) else []


def unprovable(func: Callable[..., Any], reading: Reading) -> str | None:
    """Why generic values would prove nothing about this function; None if they do."""
    if reads_memory(func):
        return READS_MEMORY
    places = [origin.lineage for origin in reading.origins if isinstance(origin.lineage, RecordAxis)]
    if any(place.axis != 0 for place in places) and _SLIDING.search(bare_name(func)):
        return "it may slide over the records, which are not along the first axis"
    if bare_name(func).startswith("nextafter"):
        return "it tells numbers apart that are equal but for rounding"
    if _is_unchecked(func):
        return "it reads memory by numbers that torch does not check (call the function of torch.nn.functional)"
    if reading.opaque is Opaque.ARRAY:
        return "it takes values from NumPy, which are not watched"
    if reading.opaque is not None:
        return f"it takes {reading.opaque.value}, which may do anything"
    if not all(map(_is_dense, reading.tensors)):
        return "it takes a tensor that is not dense, or of a class of its own"
    if not is_of_torch(func):
        return "it is an operator of its own, which values of ours prove nothing about"
    if _module_of(func).startswith(("torch.autograd", "torch._higher_order_ops", "torch._functorch", "torch.func.")):
        return "it runs functions that are not watched"
    return None


def _is_unchecked(func: Callable[..., Any]) -> bool:
    """Whether a function may read memory of others, which values of ours, that are in range, do not show."""
    name = bare_name(func)
    is_checked = func in STAND_INS or not (name.startswith(_BY_NUMBERS) or name == "linalg_eigvals")
    return not is_checked or (_is_operator(func) and name.endswith("_backward"))


def _is_dense(tensor: Tensor) -> bool:
    return type(tensor) in TENSORS and tensor.layout == torch.strided and not tensor.is_nested


def _module_of(func: Callable[..., Any]) -> str:
    return getattr(func, "__module__", None) or "torch"


def _is_operator(func: Callable[..., Any]) -> bool:
    """Whether a function is one of torch.ops, which takes all of its settings as numbers, bounds of slices too."""
    return _module_of(func).startswith("torch._ops.")


def is_of_torch(func: Callable[..., Any]) -> bool:
    """Whether a function is torch's: one of the user's can read more than its arguments.

    These come from `handle_torch_function`, or from torch.library, as operators of a name of their own.
    """
    module = _module_of(func)
    if _is_operator(func):
        return module in ("torch._ops.aten", "torch._ops.prims")
    return module == "torch" or module.startswith("torch.")


def reads_memory(func: Callable[..., Any]) -> bool:
    """Whether a function reads the memory of a tensor by address, also beside the tensor."""
    return bare_name(func).startswith(_BY_MEMORY)


def readable(func: Callable[..., Any]) -> str:
    """How a user writes the call."""
    name = name_of(func)
    room = getattr(F, name, None)
    if room is func:
        return f"F.{name}"
    return {"__getitem__": "indexing", "__setitem__": "writing by index"}.get(name, name.strip("_"))
