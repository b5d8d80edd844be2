"""Fine-tune SmolLM2-135M with LoRA adapters on E2E, privately, through Hugging Face's Trainer.

    PYTHONPATH=. python examples/smollm2_e2e.py --epsilon 8

Needs `pip install ".[huggingface,research]"`, and the weights and texts that docs/datasets.md names. A record is one
text about a restaurant. The model learns to write it from the facts. BLEU is for 48 sets of facts of the test set.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import sacrebleu
import torch
import transformers
from torch import Tensor

from research.tasks import e2e  # first: it makes torchvision importable beside a PyTorch for processors
from research.tasks.smollm2 import Adapters, SmolLM2

from discreet.integrations.huggingface import PrivateTrainer

LENGTH = 112  # public: prompt and text together; 97 % of the texts fit
IGNORED = -100
DELTA = 8e-6


def record(known: SmolLM2, facts: str, text: str, length: int) -> dict[str, Tensor]:
    """Tokens of prompt and text, padded at the right to one public length; the loss is on the text only."""
    prompt = known.prompt(e2e.request(facts))
    tokens = [*prompt, *known.answer(text)][:length]
    labels = [IGNORED] * len(prompt) + tokens[len(prompt) :]
    room = length - len(tokens)
    return {
        "input_ids": torch.tensor(tokens + [known.end] * room),
        "attention_mask": torch.tensor([1] * len(tokens) + [0] * room),
        "labels": torch.tensor((labels + [IGNORED] * length)[:length]),
    }


def bleu(known: SmolLM2, spoken: int) -> float:
    """Corpus BLEU of greedy decoding for some sets of facts, against all their references, in lower case."""
    found = e2e.texts("test")
    facts = list(e2e.some(found, 10**9))[:spoken]
    prompts = [known.prompt(e2e.request(about)) for about in facts]
    room = max(map(len, prompts))
    known.model.eval()
    made = known.model.generate(
        input_ids=torch.tensor([[known.end] * (room - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (room - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        max_new_tokens=e2e.LONGEST,
        do_sample=False,
        eos_token_id=known.end,
        pad_token_id=known.end,
    )
    rows = (row[: row.index(known.end)] if known.end in row else row for row in made[:, room:].tolist())
    references = list(itertools.zip_longest(*(found[about] for about in facts)))
    texts = [known.decode(row) for row in rows]
    print(texts[0])
    return float(sacrebleu.corpus_bleu(texts, references, lowercase=True, smooth_method="none").score)


def main(
    known: SmolLM2,
    *,
    epsilon: float = 8.0,
    records: int = 2000,
    batch: int = 200,
    epochs: int = 2,
    spoken: int = 48,
    folder: str = "runs/smollm2-e2e",
) -> dict[str, Any]:
    """Train, and return what was spent, the BLEU and the time."""
    plain = known.model.get_base_model()  # its weights were restored to float32: it is not quantized any more
    plain.hf_quantizer, plain.is_quantized, plain.quantization_method = None, False, None
    texts = e2e.some(e2e.texts("train"), records)
    private_records = [record(known, facts, text, LENGTH) for facts, written in texts.items() for text in written]
    args = transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=20,  # records in memory at once
        gradient_accumulation_steps=batch // 20,
        num_train_epochs=epochs,
        learning_rate=2e-3,
        weight_decay=0.01,
        warmup_steps=2,
        max_grad_norm=0.1,  # the clipping norm of each record
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    trainer = PrivateTrainer(
        known.model,
        args,
        train_dataset=private_records,
        epsilon=epsilon,
        delta=DELTA,
        records=records,
        data="texts of the E2E training set",
    )
    begun = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - begun
    print(trainer.spent())
    return {
        "epsilon": trainer.spent().certified.epsilon,
        "delta": DELTA,
        "bleu": bleu(known, spoken),
        "training_seconds": seconds,
        "steps": trainer.state.global_step,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0, help="of the adapters' initial values; noise is never seeded")
    parser.add_argument("--folder", default="runs/smollm2-e2e")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    model = SmolLM2.load(adapters=Adapters(blocks=2))
    model.reset(seed=given.seed)
    result = main(model, epsilon=given.epsilon, folder=given.folder)
    print(json.dumps(result, indent=1))
    if given.out is not None:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        command = f"python examples/smollm2_e2e.py --epsilon {given.epsilon:g} --seed {given.seed}"
        given.out.write_text(json.dumps({"command": command, "versions": versions, **result}, indent=1) + "\n")
