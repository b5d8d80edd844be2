"""A tiny random Llama with a byte vocabulary, in memory and as a GGUF file."""

from __future__ import annotations

from pathlib import Path

import torch
from gguf import GGUFWriter, TokenType
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from research.tasks.smollm2 import Adapters, SmolLM2, tokenizer_of

WIDTH, INNER, BLOCKS, HEADS, SHARED = 16, 24, 3, 4, 2
MERGES = ("Ġ t", "Ġt h", "Ġth e", "a t")
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *ALPHABET, *(m.replace(" ", "") for m in MERGES))

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama(seed: int = 0) -> LlamaForCausalLM:
    """Random weights, large enough that tokens and positions matter."""
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        rope_parameters={"rope_theta": 100.0, "rope_type": "default"},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        pad_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            is_table = parameter is model.model.embed_tokens.weight
            scale = 1.0 if is_table else parameter.shape[-1] ** -0.5
            parameter.copy_(1 + drawn / 10 if parameter.dim() == 1 else scale * drawn)
    return model


def small(*, blocks: int = 2, seed: int = 0) -> SmolLM2:
    """The tiny model as the tasks use it."""
    tokenizer = tokenizer_of(TOKENS, MERGES, size=len(TOKENS))
    return SmolLM2(llama(seed), tokenizer, Adapters(blocks=blocks, rank=2, alpha=2))


def write_gguf(model: LlamaForCausalLM, file: Path) -> None:
    """The model as llama.cpp stores it."""
    writer = GGUFWriter(file, "llama")
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(BLOCKS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(SHARED)
    writer.add_rope_freq_base(100.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(64)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.NORMAL] * len(TOKENS))
    writer.add_token_merges(MERGES)
    state = model.state_dict()
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    for block in range(BLOCKS):
        for theirs, ours in _NAMES.items():
            weight = state[f"model.layers.{block}.{theirs}.weight"]
            heads = {"attn_q": HEADS, "attn_k": SHARED}.get(ours)
            stored = weight if heads is None else _paired(weight, heads)
            writer.add_tensor(f"blk.{block}.{ours}.weight", stored.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _paired(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp rotates neighbouring rows, transformers the two halves of a head."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
