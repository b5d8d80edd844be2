"""Texts of a few words, and a tokenizer that knows these words."""

from __future__ import annotations

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import small_llama_trainer as small

WORDS = ["<pad>", "<end>", *(f"w{number}" for number in range(small.VOCABULARY - 2))]


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")


def texts() -> datasets.Dataset:
    """Texts of two to seven words."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(2, 8, (small.RECORDS,), generator=generator).tolist()
    rows = [[WORDS[2 + (number + place) % 17] for place in range(length)] for number, length in enumerate(lengths)]
    return datasets.Dataset.from_dict({"text": [" ".join(row) for row in rows]})
