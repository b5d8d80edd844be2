"""The SFT example beside other ways to train the same adapters.

    python -m research.e2e_peers --peer opacus --epsilon 8 --seeds 0 1 2 --out FILE

Model, records, batch, steps and budget are those of examples/smollm2_e2e.py. The peers:

opacus    the example's settings and noise multiplier; Opacus computes the gradients of the records and adds the noise
dice-e2e  the row DPSGD-GC of that experiment: the paper's clip and learning rate, in a plain loop
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
import warnings
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader

from discreet import methods
from discreet.core.command import package_versions
from discreet.core.files import write_json
from discreet.integrations.record_losses import token_losses
from discreet.training.private import Private
from research.tasks import e2e
from research.tasks.smollm2 import Adapters, Heard, SmolLM2, Tail, greedy

# isort: split
import transformers

from research.reproductions.dicesgd import table_3

RECORDS: Final = 2000
DELTA: Final = 8e-6


class Peer(Protocol):
    """Trains `tail`, whose modules change; returns the epsilon of its own accountant and the number of steps."""

    def __call__(
        self, tail: nn.Module, records: e2e.Examples, *, epsilon: float, public_records: int, batch: int, epochs: int
    ) -> dict[str, float]: ...


def opacus(
    tail: nn.Module,
    records: e2e.Examples,
    *,
    epsilon: float,
    public_records: int = RECORDS,
    batch: int = 200,
    epochs: int = 2,
) -> dict[str, float]:
    """The settings of the example: clip 0.1 and learning rate 0.01."""
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    clip, learning_rate = 0.1, 1e-2
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
    done = 0
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
    return {"epsilon": float(engine.get_epsilon(DELTA)), "steps": done}


def dice_row(
    tail: nn.Module,
    records: e2e.Examples,
    *,
    epsilon: float,
    public_records: int = RECORDS,
    batch: int = 200,
    epochs: int = 2,
) -> dict[str, float]:
    """The settings of research/reproductions/dicesgd/table_3.py; noise is not seeded."""
    size = table_3.Size(train=public_records, test=0, batch=batch, epochs=epochs, spoken=0)
    budget = {"epsilon": epsilon, "delta": DELTA, "records": public_records, "batch": batch, "epochs": epochs}
    trained = [parameter for parameter in tail.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=size.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, size.rate_at)
    private = Private(
        tail,
        optimizer,
        methods.dp_sgd(clip=table_3.CLIP).for_budget(**budget),
        records,
        micro_batch=table_3.MICRO_BATCH,
        inputs=lambda example: example[:3],
        schedulers=(schedule,),
    )
    for hidden, past, prompt, following in private:
        if private.step(table_3.record_losses(tail(hidden, past, prompt), following)):
            schedule.step()
    spent = private.spent().certified
    private.close()
    return {"epsilon": spent.epsilon, "steps": private.progress.step}


PEERS: Final = MappingProxyType[str, Peer]({"opacus": opacus, "dice-e2e": dice_row})


def run(peer: Peer, known: SmolLM2, records: e2e.Examples, *, epsilon: float, seed: int) -> dict[str, Any]:
    """Train and measure once."""
    known.reset(seed=seed)
    wall, processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = peer(Tail(known), records, epsilon=epsilon, public_records=RECORDS, batch=200, epochs=2)
    times = {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    texts = e2e.texts("test")
    facts = list(e2e.some(texts, 10**9))[:48]
    heard = Heard.of(known, [known.prompt(e2e.request(about)) for about in facts])
    outputs = [known.decode(row) for row in greedy(known, heard, most=e2e.LONGEST)]
    score = table_3.bleu(outputs, [texts[about] for about in facts])
    return {"seed": seed, **found, **times, "peak_megabytes": memory, "bleu": score}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--peer", choices=sorted(PEERS), required=True)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the adapters' initial values, a run each")
    parser.add_argument("--out", type=Path, required=True, help="runs that this file holds are not repeated")
    given = parser.parse_args()
    found: list[dict[str, Any]] = json.loads(given.out.read_text())["runs"] if given.out.is_file() else []
    known = SmolLM2.load(adapters=Adapters(blocks=2))
    file = e2e.hidden_values(lambda: known, train=RECORDS, test=240, note=print)
    records = e2e.Examples(e2e.Hidden.read(file, "train"))
    for seed in [seed for seed in given.seeds if all(one["seed"] != seed for one in found)]:
        found.append(run(PEERS[given.peer], known, records, epsilon=given.epsilon, seed=seed))
        print(json.dumps(found[-1], indent=1), flush=True)
        seeds = " ".join(str(one["seed"]) for one in found)
        held = {
            "command": f"python -m research.e2e_peers --peer {given.peer} --epsilon {given.epsilon:g} --seeds {seeds}",
            "versions": package_versions("torch", "transformers", "opacus"),
            "bleu": math.fsum(one["bleu"] for one in found) / len(found),
            "runs": found,
        }
        write_json(given.out, held, indent=1)


if __name__ == "__main__":
    main()
