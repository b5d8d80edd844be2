"""Digests of the states of generators, which are looked at before and after each draw."""

from __future__ import annotations

from typing import Final, final

import torch

_WORDS: Final = slice(24, 5016)  # of torch's generator on the CPU, as bytes: 624 words, new after as many draws


@final
class StateDigests:
    """Digests of whole states: equal for equal states, and else different but for chance.

    To hash the words takes longer than many draws, to compare them does not. So the digest of the last ones is kept,
    and that of the last state, from which the next draw starts. States of other devices are short, and have no words.
    """

    def __init__(self) -> None:
        self._words, self._digest_of_words = b"", 0
        self._last, self._digest = b"", hash(b"")

    def of(self, state: torch.Tensor) -> int:
        """The digest of one state, as `get_state` gave it."""
        memory = state.numpy().tobytes()
        if memory != self._last:
            self._last, self._digest = memory, self._of(memory)
        return self._digest

    def _of(self, memory: bytes) -> int:
        words = memory[_WORDS]
        if not words:
            return hash(memory)
        if words != self._words:
            self._words, self._digest_of_words = words, hash(words)
        return hash((memory[: _WORDS.start], self._digest_of_words, memory[_WORDS.stop :]))
