"""Text models of transformers, with padded records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

from research.families.family import WORDS, Family, Inputs, Scale, padded


def _encoder(scale: Scale) -> dict[str, Any]:
    return _small(scale) | {"intermediate_size": 2 * scale.hidden, "max_position_embeddings": scale.length + 13}


def decoder(scale: Scale) -> dict[str, Any]:
    """Settings that decoders share: grouped attention with one head for keys."""
    return _small(scale) | {"intermediate_size": 2 * scale.hidden, "num_key_value_heads": 1, "head_dim": 8}


def _small(scale: Scale) -> dict[str, Any]:
    heads = {"num_hidden_layers": 2, "num_attention_heads": scale.heads}
    return {"vocab_size": WORDS, "hidden_size": scale.hidden} | heads


def bert(scale: Scale, attention: str = "sdpa") -> nn.Module:
    return hf.BertForSequenceClassification(hf.BertConfig(**_encoder(scale), attn_implementation=attention))


def llama(scale: Scale, attention: str = "sdpa") -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**decoder(scale), attn_implementation=attention))


def _roberta(scale: Scale, attention: str) -> nn.Module:
    return hf.RobertaForSequenceClassification(hf.RobertaConfig(**_encoder(scale), attn_implementation=attention))


def _distilbert(scale: Scale, attention: str) -> nn.Module:
    size = {"dim": scale.hidden, "n_layers": 2, "n_heads": scale.heads, "hidden_dim": 2 * scale.hidden}
    config = hf.DistilBertConfig(vocab_size=WORDS, **size, attn_implementation=attention)
    return hf.DistilBertForSequenceClassification(config)


def _deberta(scale: Scale, attention: str) -> nn.Module:
    config = hf.DebertaV2Config(**_encoder(scale), relative_attention=True, pos_att_type=["p2c", "c2p"])
    return hf.DebertaV2ForSequenceClassification(config)


def deberta_v1(scale: Scale) -> nn.Module:
    """The first version, which scales what it computes from its table of positions in place."""
    config = hf.DebertaConfig(**_encoder(scale), relative_attention=True, pos_att_type=["p2c", "c2p"])
    return hf.DebertaForSequenceClassification(config)


def multiple_choice(scale: Scale) -> nn.Module:
    return hf.BertForMultipleChoice(hf.BertConfig(**_encoder(scale)))


def choices(scale: Scale) -> Inputs:
    """Three choices for each record, without token types."""
    args, named = padded(scale)
    return args, {name: tensor.unsqueeze(1).repeat(1, 3, 1) for name, tensor in named.items()}


def layoutlm(scale: Scale) -> nn.Module:
    return hf.LayoutLMForTokenClassification(hf.LayoutLMConfig(**_encoder(scale), max_2d_position_embeddings=50))


def boxes(scale: Scale) -> Inputs:
    """The place of each token on its page: left, top, right, bottom."""
    args, named = padded(scale)
    corners = torch.randint(0, 25, (scale.records, scale.length, 2), generator=torch.Generator().manual_seed(2))
    return args, named | {"bbox": torch.cat([corners, corners + 9], -1)}


def _gpt2(scale: Scale, attention: str) -> nn.Module:
    size = {"n_embd": scale.hidden, "n_layer": 2, "n_head": scale.heads, "n_positions": scale.length + 9}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=WORDS, **size, attn_implementation=attention))


def _opt(scale: Scale, attention: str) -> nn.Module:
    size = {"ffn_dim": 2 * scale.hidden, "word_embed_proj_dim": scale.hidden}
    longest = {"max_position_embeddings": scale.length + 13}
    return hf.OPTForCausalLM(hf.OPTConfig(**_small(scale), **size, **longest, attn_implementation=attention))


def _mamba(scale: Scale, attention: str) -> nn.Module:
    config = hf.MambaConfig(vocab_size=WORDS, hidden_size=scale.hidden, num_hidden_layers=2, state_size=4)
    return hf.MambaForCausalLM(config)


def _t5(scale: Scale, attention: str) -> nn.Module:
    size = {"d_model": scale.hidden, "num_layers": 2, "num_heads": scale.heads, "d_kv": 8, "d_ff": 2 * scale.hidden}
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=WORDS, **size, decoder_start_token_id=0))


def mixtral(scale: Scale, experts: str = "batched_mm") -> nn.Module:
    model: Any = hf.MixtralForCausalLM(hf.MixtralConfig(**decoder(scale), num_local_experts=3))
    model.set_experts_implementation(experts)
    return model  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[Scale, str], nn.Module]] = {
    "BERT": bert,
    "RoBERTa": _roberta,
    "DistilBERT": _distilbert,
    "DeBERTa-v2": _deberta,
    "GPT-2": _gpt2,
    "Llama": llama,
    "Qwen3": lambda scale, how: hf.Qwen3ForCausalLM(hf.Qwen3Config(**decoder(scale), attn_implementation=how)),
    "Gemma": lambda scale, how: hf.GemmaForCausalLM(hf.GemmaConfig(**decoder(scale), attn_implementation=how)),
    "Mistral": lambda scale, how: hf.MistralForCausalLM(hf.MistralConfig(**decoder(scale), attn_implementation=how)),
    "OPT": _opt,
    "Mamba": _mamba,
    "T5": _t5,
}
"""From a size and an implementation of attention to a model; DeBERTa, Mamba and T5 have one implementation."""


def inputs_of(name: str, scale: Scale) -> Inputs:
    """A padded batch; T5 also gets the tokens of its decoder."""
    args, named = padded(scale)
    return args, named | ({"decoder_input_ids": named["input_ids"]} if name == "T5" else {})


_HEADS = {"BERT", "RoBERTa", "DistilBERT", "DeBERTa-v2"}


def _family(name: str) -> Family:
    return Family(
        name=name,
        library="transformers",
        settings="padded mask, " + ("classifier" if name in _HEADS else "language model"),
        make=lambda scale: MODELS[name](scale, "sdpa"),
        inputs=lambda scale: inputs_of(name, scale),
    )


FAMILIES = (
    *(_family(name) for name in MODELS),
    Family(
        name="Mixtral",
        library="transformers",
        settings='padded mask, set_experts_implementation("batched_mm")',
        make=mixtral,
        inputs=padded,
    ),
    Family(name="DeBERTa", library="transformers", settings="padded mask, classifier", make=deberta_v1, inputs=padded),
    Family(
        name="BERT multiple choice",
        library="transformers",
        settings="padded mask, three choices",
        make=multiple_choice,
        inputs=choices,
    ),
    Family(
        name="LayoutLM",
        library="transformers",
        settings="padded mask, boxes, token classifier",
        make=layoutlm,
        inputs=boxes,
    ),
)
