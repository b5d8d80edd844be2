"""Short digests of what a tensor holds, to compare the copies that several processes have."""

import hashlib
from typing import Final

import torch
from torch import Tensor

_WIDTH: Final = 251  # columns: an odd number, so that other signs everywhere show in the sums
_WORD: Final = 8  # bytes
_NBYTES: Final = 7  # of a digest


def digest_of(text: bytes) -> int:
    """A number of 56 bits."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=_NBYTES).digest(), "big")


def content_of(tensor: Tensor) -> int:
    """A digest of the values of a tensor in their order, bit for bit; it does not depend on the layout.

    The bits are read as whole numbers of 64 bits, which are laid into a table. Its columns and its rows are added up,
    with overflow. That is exact on every device, and about as fast as reading the memory.
    """
    if tensor.layout != torch.strided or tensor.is_meta:
        return 0
    with torch._C.DisableTorchFunction(), torch.no_grad():
        bare = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
        rows = len(bare) // (_WIDTH * _WORD)
        end = rows * _WIDTH * _WORD
        parts = [bare[end:]]
        if rows:
            head = bare[:end] if bare.storage_offset() % _WORD == 0 else bare[:end].clone()
            table = head.view(torch.int64).view(rows, _WIDTH)
            parts += [table.sum(0), table.sum(1)]
        return digest_of(b"".join(part.cpu().numpy().tobytes() for part in parts))
