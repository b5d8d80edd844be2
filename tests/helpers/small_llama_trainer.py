"""A Llama of a few thousand parameters with LoRA adapters, records of one length, and a trainer for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from discreet import Streams
from discreet.integrations.huggingface import PrivateTrainer

RECORDS, LENGTH, VOCABULARY = 48, 6, 19
BUDGET = {"epsilon": 6.0, "delta": 1e-3, "records": RECORDS}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    return LlamaForCausalLM(config)


def adapted() -> PeftModel:
    torch.manual_seed(4)
    return get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))


def records(count: int = RECORDS, seed: int = 5) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in tokens]


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 1,
        "learning_rate": 0.05,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return TrainingArguments(**{**settings, **options})


def trainer(folder: Path, *, model: Any = None, seed: int | None = 7, **options: Any) -> PrivateTrainer:
    """Options of the trainer; those that TrainingArguments knows go there."""
    known = TrainingArguments.__dataclass_fields__
    of_arguments = {name: options.pop(name) for name in list(options) if name in known}
    streams = None if seed is None else Streams.seeded(seed)
    budget = {} if "plan" in options else BUDGET
    settings: dict[str, Any] = {"train_dataset": records(), "streams": streams, **budget, **options}
    return PrivateTrainer(adapted() if model is None else model, arguments(folder, **of_arguments), **settings)
