"""torchvision beside a PyTorch for processors only.

The torchvision of the package registry is built for CUDA: its library of operators does not load beside a PyTorch for
processors, and `import torchvision` fails because `torchvision::nms` does not exist. transformers and timm import it.
They need no operator of it, only that the operators have a schema.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import torch

_SCHEMA: Final = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a schema lasts as long as its library


def declare_vision_operators() -> None:
    """Declare the operators that `import torchvision` needs, if torchvision is installed and cannot load its own."""
    found = importlib.util.find_spec("torchvision")
    if _declared or found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(str(Path(found.origin).with_name("_C.so")))
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(name + _SCHEMA)
        _declared.append(library)
