"""Tokens: which pairs are joined, in which order, and back to text."""

from __future__ import annotations

import pytest
from small_llama import MERGES, TOKENS

from discreet.core.check import Refused
from research.tasks.bytepairs import BytePairs


def pieces(text: str, size: int | None = None) -> list[str]:
    return [TOKENS[number] for number in BytePairs(TOKENS, MERGES, size=size).encode(text)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the", ["t", "h", "e"]),  # the joined token has the space before it
        (" the", ["Ġthe"]),
        ("cat at", ["c", "at", "Ġ", "at"]),
        (" 12", ["Ġ", "1", "2"]),
        ("it's", ["i", "t", "'", "s"]),
        ("é", ["Ã", "©"]),
        ("a\n", ["a", "Ċ"]),
        ("", []),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert pieces(text) == tokens


def test_the_most_frequent_pair_is_joined_first() -> None:
    tokens = ["a", "b", "c", "bc", "ab"]
    first, second = BytePairs(tokens, ["b c", "a b"]), BytePairs(tokens, ["a b", "b c"])
    assert [tokens[i] for i in first.encode("abc")] == ["a", "bc"]
    assert [tokens[i] for i in second.encode("abc")] == ["ab", "c"]


def test_a_smaller_vocabulary_uses_its_own_tokens_only() -> None:
    size = len(TOKENS) - 2  # without "Ġthe" and "at"
    assert pieces(" the cat", size) == ["Ġth", "e", "Ġ", "c", "a", "t"]
    assert max(BytePairs(TOKENS, MERGES, size=size).encode(" the cat at the mat")) < size


@pytest.mark.parametrize("text", ["", " the  cat,\nat £9.50 the café’s\tend ", "日本語 🙂 _x_ 'll"])
def test_decoding_gives_the_text_back(text: str) -> None:
    pairs = BytePairs(TOKENS, MERGES)
    assert pairs.decode(pairs.encode(text)) == text


def test_special_tokens_are_not_made_of_text() -> None:
    pairs = BytePairs(TOKENS, MERGES)
    assert pairs.special("<|im_end|>") == 2
    assert 2 not in pairs.encode("<|im_end|>")
    with pytest.raises(Refused, match="a token of the vocabulary"):
        pairs.special("<|nobody|>")


def test_bytes_that_no_token_covers_are_refused() -> None:
    with pytest.raises(Refused, match="text that the vocabulary covers"):
        BytePairs(["a", "b"], []).encode("abc")
