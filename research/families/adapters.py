"""Parts of a model that are trained beside frozen layers, by peft and by hand."""

from __future__ import annotations

from typing import Any

import peft
from torch import nn

from research.families.family import Family, Scale, padded
from research.families.text import bert, llama


def _adapted(model: nn.Module, config: Any) -> nn.Module:
    """The model with an adapter whose second factor is not zero, as it is after some steps."""
    adapted: nn.Module = peft.get_peft_model(model, config)  # type: ignore[arg-type]
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return adapted


def _lora(scale: Scale) -> nn.Module:
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"])
    return _adapted(llama(scale), config)


def _dora(scale: Scale) -> nn.Module:
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"], use_dora=True)
    return _adapted(llama(scale), config)


def _lora_bert(scale: Scale) -> nn.Module:
    return _adapted(bert(scale), peft.LoraConfig(task_type="SEQ_CLS", r=2))


def _prompt(scale: Scale) -> nn.Module:
    return _adapted(llama(scale), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))


def _prefix(scale: Scale) -> nn.Module:
    return _adapted(llama(scale), peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))


def _ia3(scale: Scale) -> nn.Module:
    targets = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
    return _adapted(llama(scale), peft.IA3Config(task_type="CAUSAL_LM", **targets))


def _bitfit(scale: Scale) -> nn.Module:
    model = bert(scale)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or name.startswith("classifier"))
    return model


def _probe(scale: Scale) -> nn.Module:
    model = bert(scale)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("classifier"))
    return model


FAMILIES = (
    Family(name="LoRA on Llama", library="peft", settings="rank 2, queries and values", make=_lora, inputs=padded),
    Family(name="LoRA on BERT", library="peft", settings="rank 2, trained classifier", make=_lora_bert, inputs=padded),
    Family(name="DoRA on Llama", library="peft", settings="rank 2, queries and values", make=_dora, inputs=padded),
    Family(name="prompt tuning on Llama", library="peft", settings="3 virtual tokens", make=_prompt, inputs=padded),
    Family(name="prefix tuning on Llama", library="peft", settings="3 virtual tokens", make=_prefix, inputs=padded),
    Family(name="IA3 on Llama", library="peft", settings="keys, values and MLP", make=_ia3, inputs=padded),
    Family(name="BitFit on BERT", library="transformers", settings="biases, classifier", make=_bitfit, inputs=padded),
    Family(name="linear probe on BERT", library="transformers", settings="classifier", make=_probe, inputs=padded),
)
