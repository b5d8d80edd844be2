"""Serialise a release: the values on active coordinates, and the key of the mask instead of indices.

Format: one line of JSON (format, layout, count, dtype, mask) | a bitmap if the mask has no key | little-endian values
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import torch

from discreet.core import check
from discreet.core.plain import digest
from discreet.engine.active import Active, from_indices
from discreet.engine.layout import Layout, Mask
from discreet.methods.random_freeze.masks import regenerate
from discreet.methods.random_freeze.selection import Granularity, MaskKey
from discreet.stages.values import Released

FORMAT: Final = "discreet release 1"
_TYPES: Final = {"float32": (torch.float32, "<f4"), "float64": (torch.float64, "<f8")}


def to_bytes(released: Released) -> bytes:
    """Serialise a release for a receiver that knows the layout.

    Guarantee: post-processing of a release. The key of a mask is public and independent of every other key.
    """
    mask, values = released.mask, released.active.detach().cpu()
    named = None if mask is None else _name(mask)
    dtype = str(values.dtype).removeprefix("torch.")
    header = {
        "format": FORMAT,
        "layout": _layout_digest(released.layout),
        "count": len(values),
        "dtype": dtype,
        "mask": named,
    }
    line = json.dumps(header, separators=(",", ":")).encode() + b"\n"
    bitmap = b"" if mask is None or named != "bitmap" else _bitmap(mask, released)
    return line + bitmap + values.numpy().astype(_TYPES[dtype][1]).tobytes()


def from_bytes(data: bytes, layout: Layout) -> Released:
    """Read a release; its mask is regenerated from the key or read from the bitmap."""
    head, _, body = data.partition(b"\n")
    header = _read_header(head)
    check.require(
        header["layout"] == _layout_digest(layout),
        "a release for this layout",
        "a release for other parameters",
        "pass the layout of the model that was trained",
    )
    dtype, code = _TYPES[header["dtype"]]
    bits = -(-layout.size // 8) if header["mask"] == "bitmap" else 0
    mask = _read_mask(header["mask"], body[:bits], layout)
    count = layout.size if mask is None else len(Active.of(mask, layout, torch.device("cpu")).whole)
    check.require(
        count == header["count"] and len(body) == bits + count * np.dtype(code).itemsize,
        f"{header['count']} values for {count} active coordinates",
        f"{len(body) - bits} bytes",
        "send the complete release",
    )
    values = torch.from_numpy(np.frombuffer(body, code, offset=bits).copy())
    return Released(values.to(dtype), layout, mask)


def _name(mask: Mask) -> dict[str, Any] | str:
    if not isinstance(mask.key, MaskKey):
        return "bitmap"
    key = mask.key
    return {"stream": key.stream.hex(), "kind": key.granularity.value, "active": key.active}


def _bitmap(mask: Mask, released: Released) -> bytes:
    active = np.zeros(released.layout.size, dtype=np.bool_)
    active[Active.of(mask, released.layout, released.active.device).whole.cpu().numpy()] = True
    return np.packbits(active).tobytes()


def _read_mask(name: Any, bitmap: bytes, layout: Layout) -> Mask | None:
    if name is None:
        return None
    if name == "bitmap":
        active = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=layout.size)
        return from_indices(torch.from_numpy(np.flatnonzero(active)), layout)
    key = MaskKey(
        stream=bytes.fromhex(name["stream"]), granularity=Granularity(name["kind"]), active=int(name["active"])
    )
    return regenerate(key, layout)


def _read_header(line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT or header.get("dtype") not in _TYPES:
        check.refuse(f"a {FORMAT}", "other bytes", "pass the output of `to_bytes`")
    return header


def _layout_digest(layout: Layout) -> str:
    return digest(layout)[:16]
