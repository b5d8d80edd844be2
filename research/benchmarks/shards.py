"""`python -m research.benchmarks.shards`: a private step of a transformer that FSDP2 shards, beside a plain one.

For 1 and 4 processes on one machine: bytes of parameters, sums and optimizer state that a rank holds, bytes that all
ranks send in a step (counted by the loopback interface of a network namespace of their own), and processor time of a
rank. Plain and private steps alternate, on the same records.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import discreet
from discreet import methods
from discreet.cli import entry
from discreet.cli.flags import flag
from discreet.core.files import check_file, write_json, write_text
from discreet.core.peak_memory import peak_bytes, resident_bytes, restart_peak
from discreet.engine.shards.local import local_of
from research.benchmarks.ranks import alone, free_port, join, sent
from research.command import typed
from research.readme import put

_MODULE: Final = "research.benchmarks.shards"
RANKS: Final = (1, 4)
_STEPS: Final = 2
_VOCABULARY, _WIDTH, _HEADS, _LAYERS = 8192, 640, 10, 8


class Block(nn.Module):
    """Attention and a perceptron, each behind a normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-1] // _HEADS
        q, k, v = (
            part.unflatten(-1, (_HEADS, size)).transpose(1, 2) for part in self.joint(self.first(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """A language model of 50 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(_VOCABULARY, _WIDTH)
        self.blocks = nn.ModuleList(Block(_WIDTH) for _ in range(_LAYERS))
        self.last, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.last(x))
        return logits


def network(*, sharded: bool) -> nn.Module:
    model = Transformer()
    if sharded:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def data(records: int, length: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, _VOCABULARY, (records, length + 1), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)


def private_steps(size: int, records: int, length: int) -> tuple[Callable[[], None], Callable[[], dict[str, int]]]:
    model = network(sharded=size > 1)
    horizon = discreet.Horizon.of(records=records, batch=records, steps=_STEPS + 3)
    plan = methods.dp_sgd().using(sampling=discreet.FullBatch()).bind(noise=1.0, horizon=horizon, delta=1e-4)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4)
    private = discreet.Private(model, adam, plan, discreet.own_part(data(records, length)), micro_batch=records // size)
    batches = iter(private)

    def step() -> None:
        moved = False
        while not moved:
            moved = private.step(losses(model, *next(batches)))

    def held() -> dict[str, int]:
        state = [value for own in adam.state.values() for value in own.values()]
        return {
            "parameters": sum(local_of(parameter).nbytes for parameter in model.parameters()),
            "sums": private._engine.zeros().nbytes,
            "optimizer": sum(local_of(value).nbytes for value in state),
        }

    return step, held


def plain_steps(size: int, records: int, length: int) -> Callable[[], None]:
    model = network(sharded=size > 1)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, y = discreet.own_part(data(records, length))[:]

    def step() -> None:
        losses(model, x, y).mean().backward()
        adam.step()
        adam.zero_grad()

    return step


def measured(step: Callable[[], None]) -> dict[str, float]:
    """Bytes of all ranks, processor seconds and the rise of memory of this rank, for one step."""
    _meet()
    before, resident, clock = sent(), resident_bytes(), time.process_time()
    restart_peak()
    step()
    clock = time.process_time() - clock
    peak = peak_bytes()
    _meet()
    rise = 0 if peak is None or resident is None else peak - resident
    return {"bytes": sent() - before, "seconds": clock, "rise": rise}


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def work(rank: int, size: int, place: str, port: int, records: int, length: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if size > 1:
        join(rank, size, port)
    plain = plain_steps(size, records, length)
    started = time.process_time()
    private, held = private_steps(size, records, length)
    for step in (plain, private):  # the first is not counted: rehearsals, and room for the optimizer
        step()
    found: dict[str, Any] = {"setup": time.process_time() - started}
    pairs = [(measured(plain), measured(private)) for _ in range(_STEPS)]
    for name, place_ in (("plain", 0), ("dp-sgd", 1)):
        found[name] = {key: statistics.median(pair[place_][key] for pair in pairs) for key in pairs[0][0]}
    found["held"] = held()
    Path(place, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    _meet()
    os._exit(0)  # gloo's teardown may abort


def row(size: int, records: int, length: int) -> dict[str, Any]:
    """The mean over the ranks; the bytes held are those of the rank that holds most."""
    with tempfile.TemporaryDirectory() as place:
        args = size, place, free_port(), records, length
        mp.start_processes(work, args=args, nprocs=size, start_method="spawn")
        ranks = [json.loads(Path(place, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]
    kinds: dict[str, Any] = {"ranks": size, "setup": max(own["setup"] for own in ranks)}
    for kind in ("plain", "dp-sgd"):
        kinds[kind] = {name: sum(own[kind][name] for own in ranks) / size for name in ranks[0][kind]}
    kinds["held"] = {name: max(own["held"][name] for own in ranks) for name in ranks[0]["held"]}
    return kinds


def modelled(ranks: int, parameters: int) -> int:
    """Bytes that all ranks send in a step: parameters are gathered for both passes, and sums go to their shards."""
    return 3 * 4 * parameters * (ranks - 1)


def table(answer: dict[str, Any]) -> str:
    """What a rank holds, what travels, and how long a step takes."""
    whole = sum(answer["measured"][0]["held"].values())
    lines = [
        f"A transformer of {answer['parameters']:,} parameters with AdamW, {answer['records']} records of "
        f"{answer['length']} tokens in a step, measured on one machine with gloo "
        f"([results/shards.json](../results/shards.json), `{answer['command']}`). Bytes held are those of parameters, "
        "sums and optimizer state; bytes sent are those of all processes in one step.",
        "",
        "| processes | bytes held by one, dp_sgd | of one process | bytes sent, plain FSDP2 | bytes sent, dp_sgd | "
        "model | of plain FSDP2 | processor time / plain FSDP2 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for own in answer["measured"]:
        held, plain, private = sum(own["held"].values()), own["plain"], own["dp-sgd"]
        sent_ratio = f"{private['bytes'] / plain['bytes']:.2f}" if own["ranks"] > 1 else ""
        cells = [own["ranks"], f"{held:,}", f"{held / whole:.2f}", f"{plain['bytes']:,.0f}", f"{private['bytes']:,.0f}"]
        cells += [
            f"{modelled(own['ranks'], answer['parameters']):,}",
            sent_ratio,
            f"{private['seconds'] / plain['seconds']:.2f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def shards(
    out: Annotated[Path, flag("The JSON file to write.")] = Path("results/shards.json"),
    page: Annotated[Path | None, flag("Write the table of this page from the file; measure nothing.")] = None,
    records: Annotated[int, flag("Records in a step.")] = 16,
    length: Annotated[int, flag("Tokens of a record.")] = 16,
) -> int:
    """Measure a step of a sharded transformer beside plain FSDP2."""
    if page is not None:
        answer = json.loads(out.read_text(encoding="utf-8"))
        write_text(page, put(page.read_text(encoding="utf-8"), "shards", table(answer)))
        return 0
    check_file(out)
    answer = {
        "command": typed(_MODULE),
        "parameters": sum(parameter.numel() for parameter in Transformer().parameters()),
        "records": records,
        "length": length,
        "steps": _STEPS,
        "measured": [row(number, records, length) for number in RANKS],
    }
    write_json(out, answer)
    return 0


if __name__ == "__main__":
    code = alone(_MODULE)
    sys.exit(
        entry.main(args=["shards", *sys.argv[1:]], commands=[shards], program=f"python -m {_MODULE}")
        if code is None
        else code
    )
