"""Fine-tune SmolLM2-135M with LoRA adapters on E2E, privately, through Hugging Face's Trainer.

    PYTHONPATH=. python examples/smollm2_e2e.py --epsilon 8

Needs `pip install ".[huggingface,research]"`, and the weights and texts that docs/datasets.md names. A record is one
text about a restaurant, which the model learns to write from facts. Only the last two blocks have adapters: what the
frozen blocks make of a record is computed once. BLEU is for 48 sets of facts of the test set.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from research.tasks import e2e  # first: it makes torchvision importable beside a PyTorch for processors
from research.tasks.smollm2 import Adapters, Heard, SmolLM2, Tail, greedy

# isort: split
import sacrebleu
import transformers

from discreet.integrations.huggingface import PrivateTrainer
from discreet.integrations.record_losses import token_losses

DELTA = 8e-6


class Texts(Dataset[dict[str, Tensor]]):
    """The records by name: the arguments of `Tail.forward`, and the tokens to predict."""

    def __init__(self, held: e2e.Hidden) -> None:
        self._examples = e2e.Examples(held)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, record: int) -> dict[str, Tensor]:
        names = ("hidden_NTW", "past", "prompt_NP", "labels")
        return dict(zip(names, map(torch.as_tensor, self._examples[record]), strict=True))


class Writer(PrivateTrainer):
    """The model is not one of transformers' classes, so its loss is written here."""

    def compute_loss_per_record(self, model: nn.Module, inputs: Any) -> Tensor:
        return token_losses(model(**self.model_inputs(inputs)), inputs["labels"])


def bleu(known: SmolLM2, spoken: int) -> float:
    """Corpus BLEU of greedy decoding for some sets of facts, against all their references, in lower case."""
    found = e2e.texts("test")
    facts = list(e2e.some(found, 10**9))[:spoken]
    heard = Heard.of(known, [known.prompt(e2e.request(about)) for about in facts])
    texts = [known.decode(row) for row in greedy(known, heard, most=e2e.LONGEST)]
    print(texts[0])
    references = list(itertools.zip_longest(*(found[about] for about in facts)))
    return float(sacrebleu.corpus_bleu(texts, references, lowercase=True, smooth_method="none").score)


def main(
    known: SmolLM2,
    records: Dataset[dict[str, Tensor]],
    *,
    folder: str,
    epsilon: float = 8.0,
    public_records: int = 2000,
    batch: int = 200,
    epochs: int = 2,
    clip: float = 0.1,
) -> PrivateTrainer:
    """Train the adapters; the modules are those of `known`, which is fine-tuned then."""
    args = transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=min(batch, 40),  # records in memory at once
        gradient_accumulation_steps=max(batch // 40, 1),
        num_train_epochs=epochs,
        learning_rate=2e-3,
        weight_decay=0.01,
        warmup_steps=2,
        max_grad_norm=clip,  # the clipping norm of each record
        label_names=["labels"],
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    trainer = Writer(
        Tail(known),
        args,
        train_dataset=records,
        epsilon=epsilon,
        delta=DELTA,
        records=public_records,
        data="texts of the E2E training set",
    )
    trainer.train()
    print(trainer.spent())
    return trainer


def run(epsilon: float, seed: int, folder: str) -> dict[str, Any]:
    """Load, train and measure."""
    known = SmolLM2.load(adapters=Adapters(blocks=2))
    file = e2e.hidden_values(lambda: known, train=2000, test=240, note=print)
    known.reset(seed=seed)
    begun = time.perf_counter()
    trainer = main(known, Texts(e2e.Hidden.read(file, "train")), folder=folder, epsilon=epsilon)
    seconds = time.perf_counter() - begun
    spent = trainer.spent().certified
    found = {"epsilon": spent.epsilon, "delta": spent.delta, "steps": trainer.state.global_step}
    return {**found, "training_seconds": seconds, "bleu": bleu(known, 48)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0, help="of the adapters' initial values; noise is never seeded")
    parser.add_argument("--folder", default="runs/smollm2-e2e")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result = run(given.epsilon, given.seed, given.folder)
    print(json.dumps(result, indent=1))
    if given.out is not None:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        command = f"python examples/smollm2_e2e.py --epsilon {given.epsilon:g} --seed {given.seed}"
        given.out.write_text(json.dumps({"command": command, "versions": versions, **result}, indent=1) + "\n")
