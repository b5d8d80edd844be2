"""Fine-tune SmolLM2-135M with LoRA adapters on E2E, privately, through Hugging Face's Trainer.

    PYTHONPATH=. python examples/smollm2_e2e.py --epsilon 8 --seeds 0 1 2

Needs `pip install ".[huggingface,research]"`, and the weights and texts that docs/datasets.md names. A record is one
text about a restaurant, which the model learns to write from facts. Only the last two blocks have adapters: what the
frozen blocks make of a record is computed once. BLEU is for 48 sets of facts of the test set.

The learning rate, five times that of the paper without privacy, was chosen by the loss on the development set.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import time
from collections.abc import Sequence
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
        learning_rate=1e-2,
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


def run(epsilon: float, seeds: Sequence[int], folder: str, out: Path | None = None) -> list[dict[str, Any]]:
    """Load the model, and train and measure once for each seed; runs that `out` holds are not repeated."""
    found: list[dict[str, Any]] = json.loads(out.read_text())["runs"] if out is not None and out.is_file() else []
    known = SmolLM2.load(adapters=Adapters(blocks=2))
    file = e2e.hidden_values(lambda: known, train=2000, test=240, note=print)
    records = Texts(e2e.Hidden.read(file, "train"))
    for seed in [seed for seed in seeds if all(one["seed"] != seed for one in found)]:
        known.reset(seed=seed)
        wall, processor = time.perf_counter(), time.process_time()
        trainer = main(known, records, folder=f"{folder}-{seed}", epsilon=epsilon)
        times = {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}
        spent, memory = trainer.spent().certified, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        certified = {"epsilon": spent.epsilon, "delta": spent.delta, "steps": trainer.state.global_step}
        found.append({"seed": seed, **certified, **times, "peak_megabytes": memory, "bleu": bleu(known, 48)})
        print(json.dumps(found[-1], indent=1))
        if out is not None:
            versions = {"torch": torch.__version__, "transformers": transformers.__version__}
            command = f"python examples/smollm2_e2e.py --epsilon {epsilon:g} --seeds {' '.join(map(str, seeds))}"
            mean = sum(one["bleu"] for one in found) / len(found)
            held = {"command": command, "versions": versions, "bleu": mean, "runs": found}
            out.write_text(json.dumps(held, indent=1) + "\n")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=8.0)
    about = "of the adapters' initial values, a run each; noise is never seeded"
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help=about)
    parser.add_argument("--folder", default="runs/smollm2-e2e")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    run(given.epsilon, given.seeds, given.folder, given.out)
