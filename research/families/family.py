"""What a family of models is, and the sizes at which it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from discreet.engine.trace.capture import tensors_in

WORDS: Final = 40
Inputs = tuple[tuple[Tensor, ...], dict[str, Tensor]]


@final
@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of a model and of its inputs.

    hidden   the width of a transformer; heads have 8 numbers
    length   the tokens of a record
    image    pixels along each side, a multiple of 32
    is_wide  whether vision models have their published widths
    """

    records: int
    hidden: int
    length: int
    image: int
    is_wide: bool

    @property
    def heads(self) -> int:
        return self.hidden // 8


SMALL: Final = Scale(records=6, hidden=16, length=7, image=32, is_wide=False)
"""For tests: about a second for each family."""
MEASURED: Final = Scale(records=16, hidden=64, length=32, image=32, is_wide=True)
"""For the ratio to plain SGD: large enough that the work of the layers shows."""


@final
@dataclass(frozen=True, kw_only=True)
class Family:
    """One family.

    library      the package that defines it; "torch" for a model that is written here
    settings     what was chosen, in words
    make         builds the model
    inputs       arguments and keyword arguments of the model for all records
    is_training  whether it is run in training mode, with its random parts
    """

    name: str
    library: str
    settings: str
    make: Callable[[Scale], nn.Module]
    inputs: Callable[[Scale], Inputs]
    is_training: bool = False


def losses_of(output: Any) -> Tensor:
    """One number for each record, from the first output that carries a gradient; an output [records] is the losses."""
    first = next(tensor for tensor in tensors_in(output) if tensor.requires_grad and tensor.dim() > 0)
    return first if first.dim() == 1 else first.float().flatten(1).sin().sum(1)


def drawn(scale: Scale, *shape: int) -> Tensor:
    """Normal numbers, the same for every call."""
    return torch.randn(scale.records, *shape, generator=torch.Generator().manual_seed(1))


def tokens(scale: Scale, length: int | None = None) -> Tensor:
    """Random tokens; those below 3 are left out, because configurations take them for padding and the like."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, WORDS, (scale.records, length or scale.length), generator=generator)


def padded(scale: Scale) -> Inputs:
    """Records of different lengths; the first is not padded."""
    short = torch.arange(scale.records).unsqueeze(1) % 4
    mask = (torch.arange(scale.length) < scale.length - short).long()
    return (), {"input_ids": tokens(scale), "attention_mask": mask}


def images(scale: Scale) -> Inputs:
    return (drawn(scale, 3, scale.image, scale.image),), {}
