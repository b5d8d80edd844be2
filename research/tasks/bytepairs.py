"""Byte-pair tokens as SmolLM2 cuts text: digits alone, words with the space before them, frequent pairs joined."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, final

from discreet.core.check import require

# GPT-2's pattern; Python's \w stands for letters and numerals, so numerals such as superscripts count as letters.
_PIECES: Final = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+",
)
_DIGITS: Final = re.compile(r"\d|\D+")


def _byte_names() -> tuple[str, ...]:
    """The printable character that stands for each byte in the vocabulary, as GPT-2 has them."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    names = {byte: chr(byte) for byte in shown}
    names |= {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    return tuple(names[byte] for byte in range(256))


_NAMES: Final = _byte_names()
_BYTES: Final = {name: byte for byte, name in enumerate(_NAMES)}


@final
class BytePairs:
    """Text to token numbers and back.

    tokens   the vocabulary, in the order of its numbers
    merges   pairs "left right", the most frequent first
    size     take only joins whose token is among the first `size`: no number reaches it
    """

    def __init__(self, tokens: Sequence[str], merges: Sequence[str], *, size: int | None = None) -> None:
        self.size = len(tokens) if size is None else size
        self._tokens = tokens
        self._number = {token: number for number, token in enumerate(tokens[: self.size])}
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        self._rank = {pair: rank for rank, pair in enumerate(pairs) if pair[0] + pair[1] in self._number}
        self._word = lru_cache(maxsize=65_536)(self._joined)

    def encode(self, text: str) -> list[int]:
        """The token numbers of a text; names of special tokens in it are plain text."""
        pieces = [piece for part in _DIGITS.findall(text) for piece in _PIECES.findall(part)]
        return [number for piece in pieces for number in self._word(piece)]

    def special(self, token: str) -> int:
        """The number of a token that no text gives, such as the end of a message."""
        require(token in self._number, "a token of the vocabulary", repr(token), "see its first entries")
        return self._number[token]

    def decode(self, numbers: Sequence[int]) -> str:
        """The text; bytes that are no text become the replacement character."""
        joined = "".join(self._tokens[number] for number in numbers)
        return bytes(_BYTES[name] for name in joined).decode("utf-8", errors="replace")

    def _joined(self, piece: str) -> tuple[int, ...]:
        parts = [_NAMES[byte] for byte in piece.encode("utf-8")]
        never = len(self._rank)
        while len(parts) > 1:
            ranks = [self._rank.get(pair, never) for pair in pairwise(parts)]
            best = min(ranks)
            if best == never:
                break
            parts = _join(parts, *next(p for p, r in zip(pairwise(parts), ranks, strict=True) if r == best))
        missing = [part for part in parts if part not in self._number]
        require(not missing, "text that the vocabulary covers", f"{missing} in {piece!r}", "a larger size")
        return tuple(self._number[part] for part in parts)


def _join(parts: list[str], left: str, right: str) -> list[str]:
    """Every `left right` as one, from the start on."""
    out: list[str] = []
    for part in parts:
        if out and part == right and out[-1] == left:
            out[-1] = left + right
        else:
            out.append(part)
    return out
