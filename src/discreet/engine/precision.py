"""Products in full precision, whatever the user's step computes in."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import torch

_HIGHEST: Final = "highest"


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A block without autocast, and without `torch.set_float32_matmul_precision`, which allows TF32 or bfloat16."""
    if not torch.is_autocast_enabled(device.type) and torch.get_float32_matmul_precision() == _HIGHEST:
        return nullcontext()
    return _full_precision(device)


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(_HIGHEST)
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
