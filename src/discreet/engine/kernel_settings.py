"""Settings of torch by which it chooses kernels: they change how results are rounded.

    if x.max() > 5:
        torch.set_float32_matmul_precision("medium")

is a choice that no call shows. Another rounding is no small thing where a program takes the difference of two results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

_NAMES: Final = "mkldnn_enabled mkldnn_deterministic nnpack_enabled float32_matmul_precision deterministic_algorithms"
_OF_ATTENTION: Final = (
    "flash_sdp_enabled math_sdp_enabled cpu_allow_fp16_reduced_precision_reduction math_sdp_allow_fp16_bf16_reduction"
)
_OF_GPUS: Final = (
    "cudnn_enabled cudnn_benchmark cudnn_deterministic mem_efficient_sdp_enabled cudnn_sdp_enabled "
    "cublas_allow_fp16_reduced_precision_reduction cublas_allow_bf16_reduced_precision_reduction"
)


def _questions() -> tuple[Callable[[], Any], ...]:
    names = f"{_NAMES} {_OF_ATTENTION} {_OF_GPUS if torch.cuda.is_available() else ''}".split()
    known = [getattr(torch._C, f"_get_{name}") for name in names if f"_get_{name}" in dir(torch._C)]
    return torch.get_num_threads, *known  # releases of torch have others


QUESTIONS: Final = _questions()


def kernel_settings() -> tuple[Any, ...]:
    """The answers, in order."""
    return tuple([ask() for ask in QUESTIONS])
