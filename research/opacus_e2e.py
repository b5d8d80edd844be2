"""The SFT example with Opacus in place of discreet: python -m research.opacus_e2e --epsilon 8 --seed 0 --out FILE

The model, records, adapters, batch, steps, clip, noise multiplier, optimizer and schedule are those of
examples/smollm2_e2e.py. Opacus computes the gradients of the records and adds the noise.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
import warnings
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from discreet import methods
from discreet.integrations.record_losses import token_losses
from research.tasks import e2e
from research.tasks.smollm2 import Adapters, Heard, SmolLM2, Tail, greedy

# isort: split
import transformers

from research.reproductions.dicesgd.table_3 import bleu

RECORDS: Final = 2000
DELTA: Final = 8e-6


def train(
    tail: nn.Module,
    records: Dataset[Any],
    *,
    epsilon: float,
    public_records: int = RECORDS,
    batch: int = 200,
    epochs: int = 2,
    clip: float = 0.1,
    learning_rate: float = 1e-2,
) -> dict[str, float]:
    """Train `tail`, whose modules change; returns the epsilon of Opacus's accountant and the time of a step."""
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    budget = {"epsilon": epsilon, "delta": DELTA, "records": public_records, "batch": batch, "epochs": epochs}
    noise = methods.dp_sgd(clip=clip).for_budget(**budget).noise
    trained = [parameter for parameter in tail.parameters() if parameter.requires_grad]
    optimizer: Any = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.01)
    steps = epochs * math.ceil(public_records / batch)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=tail.train(),
        optimizer=optimizer,
        data_loader=DataLoader(records, batch_size=batch),
        noise_multiplier=noise,
        max_grad_norm=clip,
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer.original_optimizer, 2, steps)
    begun, processor, done = time.perf_counter(), time.process_time(), 0
    for _ in range(epochs):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=min(batch, 40), optimizer=optimizer
        ) as parts:
            for hidden, past, prompt, following in parts:
                optimizer.zero_grad()
                token_losses(model(hidden, past, prompt), following).mean().backward()
                optimizer.step()
                if not optimizer._is_last_step_skipped:  # the last part of a logical batch
                    schedule.step()
                    done += 1
    seconds, spent = time.perf_counter() - begun, time.process_time() - processor
    return {
        "epsilon": float(engine.get_epsilon(DELTA)),
        "steps": done,
        "seconds": seconds,
        "processor_seconds": spent,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def run(epsilon: float, seed: int) -> dict[str, Any]:
    """Load, train and measure."""
    known = SmolLM2.load(adapters=Adapters(blocks=2))
    file = e2e.hidden_values(lambda: known, train=RECORDS, test=240, note=print)
    known.reset(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = train(Tail(known), e2e.Examples(e2e.Hidden.read(file, "train")), epsilon=epsilon)
    texts = e2e.texts("test")
    facts = list(e2e.some(texts, 10**9))[:48]
    heard = Heard.of(known, [known.prompt(e2e.request(about)) for about in facts])
    outputs = [known.decode(row) for row in greedy(known, heard, most=e2e.LONGEST)]
    return {"seed": seed, **found, "bleu": bleu(outputs, [texts[about] for about in facts])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result = run(given.epsilon, given.seed)
    print(json.dumps(result, indent=1))
    if given.out is not None:
        command = f"python -m research.opacus_e2e --epsilon {given.epsilon:g} --seed {given.seed}"
        given.out.write_text(json.dumps({"command": command, **result}, indent=1) + "\n")
