"""Models of transformers, peft and timm for the step-time table, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from discreet.data.features.vision_operators import declare_vision_operators


class Pooled(nn.Module):
    """A text model, and the mean of its last states to the classes; the form that all peers can take."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encoder(input_ids=tokens).last_hidden_state.mean(1))
        return scores


def _adapted(encoder: nn.Module, targets: list[str]) -> nn.Module:
    """With adapters of rank 8 whose second factor is not zero, as it is after some steps."""
    import peft

    adapted: nn.Module = peft.get_peft_model(encoder, peft.LoraConfig(r=8, target_modules=targets))  # type: ignore[arg-type]
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    return adapted


def _transformers() -> Any:
    declare_vision_operators()
    import transformers

    return transformers


def lora_llama(classes: int, *, width: int = 256, layers: int = 4) -> nn.Module:
    """LoRA on the queries and values of a Llama."""
    hf = _transformers()
    size = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    config = hf.LlamaConfig(vocab_size=1000, num_attention_heads=4, num_key_value_heads=2, use_cache=False, **size)
    return Pooled(_adapted(hf.LlamaModel(config), ["q_proj", "v_proj"]), width, classes)


def _bert(width: int, layers: int) -> nn.Module:
    hf = _transformers()
    size = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    quiet = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    model: nn.Module = hf.BertModel(
        hf.BertConfig(vocab_size=1000, num_attention_heads=4, **size, **quiet), add_pooling_layer=False
    )
    return model


def lora_bert(classes: int, *, width: int = 256, layers: int = 4) -> nn.Module:
    """LoRA on the queries and values of a BERT."""
    return Pooled(_adapted(_bert(width, layers), ["query", "value"]), width, classes)


def prompt_bert(classes: int, *, width: int = 256, layers: int = 4) -> nn.Module:
    """Eight trained prompt vectors in front of the words of a BERT that is frozen."""
    encoder = _bert(width, layers)
    import peft

    config = peft.PromptTuningConfig(task_type=peft.TaskType.FEATURE_EXTRACTION, num_virtual_tokens=8)
    return Pooled(peft.get_peft_model(encoder, config), width, classes)  # type: ignore[arg-type]


class Autocast(nn.Module):
    """A model that computes in bfloat16 and gives scores in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores: Tensor = self.model(tokens)
        return scores.float()


def gpt2(
    classes: int, *, is_checkpointed: bool = False, is_autocast: bool = False, width: int = 768, layers: int = 12
) -> nn.Module:
    """GPT-2 small, 124 million parameters, or a smaller one."""
    hf = _transformers()
    quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    size = {"n_embd": width, "n_layer": layers, "n_head": width // 64}
    encoder = hf.GPT2Model(hf.GPT2Config(use_cache=False, **size, **quiet))
    if is_checkpointed:
        encoder.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model = Pooled(encoder, width, classes)
    return Autocast(model) if is_autocast else model


def smollm2(classes: int) -> nn.Module:
    """The layers of SmolLM2-135M."""
    hf = _transformers()
    size = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    config = hf.LlamaConfig(num_attention_heads=9, num_key_value_heads=3, use_cache=False, **size)
    return Pooled(hf.LlamaModel(config), 576, classes)


def lora_smollm2(classes: int) -> nn.Module:
    """LoRA on the queries and values of SmolLM2-135M."""
    model = smollm2(classes)
    assert isinstance(model, Pooled)
    return Pooled(_adapted(model.encoder, ["q_proj", "v_proj"]), 576, classes)


def vit_tiny(classes: int) -> nn.Module:
    declare_vision_operators()
    import timm

    model: nn.Module = timm.create_model("vit_tiny_patch16_224", num_classes=classes)
    return model


def only(model: Callable[[int], nn.Module], trained: Callable[[str], bool]) -> Callable[[int], nn.Module]:
    """A model of which only some parameters are trained, by their names."""

    def make(classes: int) -> nn.Module:
        made = model(classes)
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(trained(name))
        return made

    return make


def bert(classes: int, *, width: int = 256, layers: int = 4) -> nn.Module:
    return Pooled(_bert(width, layers), width, classes)


BITFIT = only(bert, lambda name: name.endswith("bias") or name.startswith("head"))
PROBE = only(bert, lambda name: name.startswith("head"))
