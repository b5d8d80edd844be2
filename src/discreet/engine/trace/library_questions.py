"""Questions that a library asks about the whole batch, with the answer that is right for every batch.

transformers skips the attention mask if no record is padded (`if padding_mask.all()`). The true answer depends on the
records, and so would the calls that follow. Inside a private step the listed functions are told "no" instead: the mask
is built and applied, which gives the same values for a batch without padding. torch.distributions asks whether all
arguments are valid, and raises an error if not: it is told "yes".

A question about public tensors, such as positions that the model counts itself, gets its true answer.

Guarantee: an answer about records is a constant of this table. It applies to the listed functions of the installed
library only, recognised by their code; the same question in any other function is refused as before.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch import Tensor

_PASSED_BY: Final = (os.path.dirname(torch.__file__) + os.sep, str(Path(__file__).parents[2]) + os.sep)


@dataclass(frozen=True)
class LibraryQuestion:
    """A function of a library that reads values of the whole batch.

    module, function  where it is, for example "transformers.masking_utils" and "PreTrainedModel.warn"
    why               why `answer` is right for every batch
    """

    module: str
    function: str
    why: str
    answer: bool = False

    def is_asked_by(self, code: CodeType) -> bool:
        found: Any = sys.modules.get(self.module)
        for name in self.function.split("."):
            found = getattr(found, name, None)
        return getattr(found, "__code__", None) is code


_MASKING = "transformers.masking_utils"
QUESTIONS: Final = (
    LibraryQuestion(_MASKING, "_ignore_causal_mask_sdpa", "a mask of ones changes no value"),
    LibraryQuestion(_MASKING, "_ignore_bidirectional_mask_sdpa", "a mask of ones changes no value"),
    LibraryQuestion(_MASKING, "_can_skip_bidirectional_mask_xpu", "a mask of ones changes no value"),
    LibraryQuestion(_MASKING, "create_recurrent_attention_mask", "a mask of ones changes no value"),
    LibraryQuestion(_MASKING, "find_packed_sequence_indices", "one sequence in each row has the indices 0, 0, 0, ..."),
    LibraryQuestion(
        "transformers.modeling_utils",
        "PreTrainedModel.warn_if_padding_and_no_attention_mask",
        "the answer decides about a warning only",
    ),
    *(
        LibraryQuestion(
            "torch.distributions.distribution",
            f"Distribution.{method}",
            "validation of arguments raises an error or changes nothing",
            answer=True,
        )
        for method in ("__init__", "_validate_sample")
    ),
)
_ASKING: Final = frozenset([Tensor.__bool__, Tensor.__contains__])


def public_answer(func: Callable[..., Any]) -> bool | None:
    """The answer to the call under way if a listed function makes it, else None."""
    if func not in _ASKING:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for one in QUESTIONS:
            if one.is_asked_by(frame.f_code):
                return one.answer
        if not frame.f_code.co_filename.startswith(_PASSED_BY):
            return None
        frame = frame.f_back
    return None
