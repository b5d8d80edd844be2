"""Digests of the states of generators, which are looked at before and after each draw."""

from __future__ import annotations

from typing import Final, final

import torch

_WORDS: Final = slice(24, 5016)  # of torch's generator on the CPU, as bytes: 624 words, new after as many draws


@final
class StateDigests:
    """Digests of whole states: equal for equal states, and else different but for chance.

    To hash the words takes longer than many draws, to compare them does not. So the digest of the last ones is kept.
    States of other devices are short, and have no words.
    """

    def __init__(self) -> None:
        self._words, self._digest = b"", 0

    def of(self, state: torch.Tensor) -> int:
        """The digest of one state, as `get_state` gave it."""
        memory = state.numpy().tobytes()
        words = memory[_WORDS]
        if not words:
            return hash(memory)
        if words != self._words:
            self._words, self._digest = words, hash(words)
        return hash((memory[: _WORDS.start], self._digest, memory[_WORDS.stop :]))
