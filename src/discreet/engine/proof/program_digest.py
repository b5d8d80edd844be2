"""A number for the way in which losses are made, which is equal in all processes that make them alike.

Leaving one record out moves others to another process. So their losses may not depend on the process: on a constant, a
public tensor or a choice that differs between processes. Digests of origins cannot be compared, because Python salts
its hashes, and a tensor that existed is known by its address.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import torch

from discreet.engine.proof.lineage import Origin
from discreet.engine.trace.capture import RecordAxis, name_of

_BYTES: Final = 7  # so that the number, and its negative, fit into 64 bits
_DEVICE: Final = re.compile(r"(?<=cuda)[:\d]+|, index=\d+")  # each process has its own
_TO_DEVICE: Final = ("to", "cuda")  # whose whole numbers are devices
_DECLARED: Final = "declared public at"  # a declared value is the user's word; its line may lie elsewhere


def digest_of(losses: Origin) -> int:
    """The same calls on the same parameters and batch, with the same numbers and public values, have one number."""
    text = hashlib.blake2b(digest_size=_BYTES)
    numbers: dict[int, int] = {}
    known: dict[str, int] = {}  # equal calls may be one object in one process and two in another
    ahead = [losses]
    while ahead:  # parents first
        origin = ahead[-1]
        unknown = [] if id(origin) in numbers else [one for one in origin.parents if id(one) not in numbers]
        if unknown:
            ahead += unknown
            continue
        ahead.pop()
        if id(origin) in numbers:
            continue
        line = f"{_line(origin)} {[numbers[id(parent)] for parent in origin.parents]}\n"
        if line not in known:
            text.update(line.encode())
        numbers[id(origin)] = known.setdefault(line, len(known))
    return int.from_bytes(text.digest(), "big")


def _line(origin: Origin) -> str:
    place = "records" if isinstance(origin.lineage, RecordAxis) else str(origin.lineage)
    if origin.func is None:
        return f"{place} {_text(origin.settings)}"
    name = name_of(origin.func)
    return f"{place} {name} {origin.output} {_text(origin.settings, with_numbers=name not in _TO_DEVICE)}"


def _text(part: Any, *, with_numbers: bool = True) -> str:
    """The settings of a call, without the sizes of tensors, which follow from the calls that made them."""
    if isinstance(part, tuple):
        is_form = len(part) > 1 and isinstance(part[0], torch.dtype)
        shown = part[:1] if is_form else part
        return f"({', '.join(_text(one, with_numbers=with_numbers) for one in shown)})"
    if isinstance(part, str):
        return _DECLARED if _DECLARED in part else _DEVICE.sub("", repr(part))
    if isinstance(part, int) and not with_numbers:
        return "number"
    is_plain = part is None or isinstance(part, (bool, int, float, torch.dtype))
    return repr(part) if is_plain else type(part).__qualname__
