"""Fine-tune a sentence encoder on clothing reviews, privately: does the reviewer recommend it?

    PYTHONPATH=. python examples/minilm_reviews.py --epsilon 3

Needs `pip install ".[huggingface,research]"`, and the weights and reviews that docs/datasets.md names. LoRA adapters in
the last layers of all-MiniLM-L6-v2 and a new head are trained through Hugging Face's Trainer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from research.tasks import sentences  # first: it makes torchvision importable beside a PyTorch for processors

# isort: split
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from discreet.integrations.huggingface import PrivateTrainer

LENGTH = 64  # public: longer reviews are cut


def encoded(tokenizer: Any, texts: Sequence[str], labels: Sequence[int]) -> list[dict[str, Tensor]]:
    """Records of one public length."""
    found = tokenizer(list(texts), padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
    rows = zip(found["input_ids"], found["attention_mask"], labels, strict=True)
    return [{"input_ids": ids, "attention_mask": mask, "labels": torch.tensor(label)} for ids, mask, label in rows]


def main(
    model: Any,
    records: list[dict[str, Tensor]],
    public: list[dict[str, Tensor]],
    *,
    folder: str,
    epsilon: float = 3.0,
    batch: int = 512,
    epochs: int = 5,
) -> dict[str, float]:
    """Train adapters and head; returns the metrics of the public records and the certified epsilon."""
    layers = model.config.num_hidden_layers
    adapters = LoraConfig(
        r=4,
        target_modules=["query", "value"],
        layers_to_transform=list(range(layers - min(layers, 2), layers)),
        layers_pattern="layer",
        modules_to_save=["classifier"],
    )
    batches = max(batch // 32, 1)
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=batch // batches,
        gradient_accumulation_steps=batches,
        num_train_epochs=epochs,
        learning_rate=2e-3,
        max_grad_norm=0.1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    trainer = PrivateTrainer(
        get_peft_model(model, adapters),
        args,
        train_dataset=records,
        eval_dataset=public,
        compute_metrics=lambda made: {"accuracy": float(np.mean(made.predictions.argmax(1) == made.label_ids))},
        epsilon=epsilon,
        delta=1 / (20 * len(records)),
        records=len(records),  # published with the data
        data="reviews of women's clothing",
    )
    trainer.train()
    print(trainer.spent())
    return {**trainer.evaluate(), "epsilon": trainer.spent().certified.epsilon}


def run(epsilon: float, folder: str) -> dict[str, float]:
    """Load the encoder and the reviews, and train."""
    texts, labels = sentences.reviews()
    place = sentences.encoder_folder()
    tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
    encoder = AutoModelForSequenceClassification.from_pretrained(place, num_labels=2, local_files_only=True)
    rows = encoded(tokenizer, texts[:7500], labels[:7500])
    return main(encoder, rows[:6000], rows[6000:], folder=folder, epsilon=epsilon)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--folder", default="runs/minilm-reviews")
    given = parser.parse_args()
    print(run(given.epsilon, given.folder))
