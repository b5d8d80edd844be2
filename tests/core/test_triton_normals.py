"""The Triton kernel in Triton's interpreter: the values of the tensor operations, which have the words of the RFC."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton comes with torch for CUDA only; install it to test its kernel here")

COMPARE = """
import torch
from discreet.core.generators import on_device, triton_normals
key = bytes(range(32))
for count in (1, 1101):
    for first in (1, 2**32 - 3, 2**64 - 2):
        for dtype, close in ((torch.float32, 3e-7), (torch.float64, 1e-12)):
            one = torch.linspace(-3, 3, count, dtype=dtype)
            other, beyond = one.clone(), torch.zeros(count + 8, dtype=dtype)
            on_device.add_(key, first, one, 1 / 3)
            triton_normals.add_(key, first, other, 1 / 3)
            assert torch.allclose(one, other, rtol=close, atol=1e-14), (count, first, dtype)
            triton_normals.add_(key, first, beyond[:count], 1.0)
            assert not beyond[count:].any()
            wrong = one.clone()
            triton_normals.add_(key, first + 1, wrong, 1 / 3)
            assert not torch.allclose(one, wrong, rtol=close, atol=1e-14)
triton_normals.add_(key, 0, torch.zeros(0), 1.0)
print("same")
"""


def test_the_kernel_gives_the_values_of_the_tensor_operations() -> None:
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}  # Triton reads it at import
    done = subprocess.run([sys.executable, "-c", COMPARE], env=interpreted, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("same"), done.stderr[-2000:]
