"""`python -m research.benchmarks.ranks`: what a step of several processes costs, measured and by the cost model.

For 1, 2 and 4 processes on one machine: bytes that all processes send in a step (counted by the loopback interface of a
network namespace of their own), processor time of a rank beside that of plain DistributedDataParallel, and normals that
a rank draws. Plain and private steps alternate, on the same records; once with one batch for all ranks together, and
once with a batch that grows with them. The model extends bytes, messages and noise to 1024 ranks.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import discreet
from discreet import Streams, methods
from discreet.cli import entry
from discreet.cli.flags import flag
from discreet.core.files import check_file, write_json, write_text
from research.command import typed
from research.readme import put

_MODULE: Final = "research.benchmarks.ranks"
_INSIDE: Final = "DISCREET_RANKS_INSIDE"  # set in the network namespace
RANKS: Final = (1, 2, 4)
MODELLED: Final = (1, 2, 4, 16, 64, 256, 1024)
BATCH: Final = 2048
_STEPS: Final = 8
_FREEZE: Final = 0.9
_FLOAT: Final = 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))


def data(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(batch, 256, generator=drawn), torch.randint(0, 10, (batch,), generator=drawn)


def sent() -> int:
    """Bytes that the loopback interface has sent."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("lo:"))


def private_steps(recipe: discreet.Recipe, batch: int) -> tuple[Callable[[], None], Streams]:
    model = network()
    streams = Streams.from_os()
    # Every rank takes its part of one batch at every step, so that plain and private steps do the same work.
    plan = recipe.using(sampling=discreet.FullBatch()).bind(
        noise=1.0, horizon=discreet.Horizon.of(records=batch, batch=batch, steps=_STEPS + 2), delta=1e-5
    )
    private = discreet.Private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), plan, discreet.own_part(data(batch)), streams=streams
    )
    batches = iter(private)

    def step() -> None:
        moved = False
        while not moved:
            x, y = next(batches)
            moved = private.step(F.cross_entropy(model(x), y, reduction="none"))

    return step, private.streams


def plain_steps(batch: int) -> Callable[[], None]:
    model = network()
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = discreet.own_part(data(batch))[:]

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()

    return step


def measured(steps: dict[str, Callable[[], None]]) -> dict[str, dict[str, float]]:
    """For a step of each kind: bytes of all ranks, and the median of the processor seconds of this rank.

    The kinds take turns. The first step of each is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    counted: dict[str, list[int]] = {name: [] for name in steps}
    for turn in range(_STEPS + 1):
        for name, step in steps.items():
            _meet()
            before, clock = sent(), time.process_time()
            step()
            clock = time.process_time() - clock
            _meet()
            if turn:
                seconds[name].append(clock)
                counted[name].append(sent() - before)
    return {
        name: {"bytes": statistics.mean(counted[name]), "seconds": statistics.median(seconds[name])} for name in steps
    }


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def join(rank: int, size: int, port: int) -> None:
    """Meet the other processes on the loopback interface."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=timedelta(minutes=5))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


PRELOAD: Final = ["discreet.training.private", "torch.distributed.fsdp", "torch.distributed.checkpoint"]
RECIPES: Final = {
    "dp-sgd": methods.dp_sgd(),
    "random-freeze": methods.random_freeze(final_rate=_FREEZE, cooling_epochs=1),
}


def work(rank: int, size: int, batch: int, kinds: tuple[str, ...], place: str, port: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if size > 1:
        join(rank, size, port)
    private = {name: private_steps(RECIPES[name], batch) for name in kinds}
    drawn = {name: streams.noise.spent for name, (_, streams) in private.items()}
    found = measured({"plain": plain_steps(batch)} | {name: step for name, (step, _) in private.items()})
    for name, (_, streams) in private.items():
        found[name]["normals"] = 2 * (streams.noise.spent - drawn[name]) / (_STEPS + 1)
    Path(place, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    _meet()
    os._exit(0)  # gloo's teardown may abort


def row(size: int, batch: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """The mean over the ranks, for a plain step and each of these kinds; bytes are those of all ranks together."""
    multiprocessing.set_forkserver_preload(PRELOAD)  # imported once for all processes
    with tempfile.TemporaryDirectory() as place:
        args = size, batch, kinds, place, free_port()
        mp.start_processes(work, args=args, nprocs=size, start_method="forkserver")
        ranks = [json.loads(Path(place, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]
    found: dict[str, Any] = {"ranks": size, "batch": batch}
    for kind in ranks[0]:
        found[kind] = {name: sum(own[kind][name] for own in ranks) / size for name in ranks[0][kind]}
    return found


# -- the cost model --------------------------------------------------------------------------------------------


def modelled(ranks: int, coordinates: int, active: float) -> dict[str, float]:
    """Costs of one step of `ranks` processes with `coordinates`, of which the fraction `active` is released.

    bytes_sent  by all ranks together: every part goes to its owner from ranks - 1 others, and back to them
    messages    of a rank: one to each other owner, one broadcast of each part, and the one that says the step is paid
    normals     that one rank draws
    ledger      lines that are written and flushed to the disk, by the first rank
    """
    sums = coordinates * active
    return {
        "ranks": ranks,
        "bytes_sent": 2 * _FLOAT * sums * (ranks - 1),
        "bytes_sent_by_rank": 2 * _FLOAT * sums * (ranks - 1) / ranks,
        "messages": 2 * ranks if ranks > 1 else 0,
        "normals": sums / ranks,
        "ledger": 1,
    }


def tables(answer: dict[str, Any]) -> str:
    """The measured step beside the model, and the model up to 1024 ranks."""
    dense, sparse = (answer["model"][name] for name in ("dp-sgd", "random-freeze"))
    by_ranks = {own["ranks"]: (own, other) for own, other in zip(dense, sparse, strict=True)}
    lines = [
        f"{answer['coordinates']:,} coordinates, measured on one machine with gloo "
        f"([results/ranks.json](../results/ranks.json), `{answer['command']}`). Bytes are those of all processes in "
        f"one step; `random_freeze` releases {1 - answer['frozen']:.0%} of the coordinates.",
        "",
        "| processes | bytes, plain DDP | bytes, dp_sgd | model | bytes, random_freeze | model | normals a process | "
        f"model | processor time / plain DDP, batch {answer['batch']:,} | batch {answer['batch']:,} a process |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    grown_rows = [answer["measured"][0], *answer["measured_with_a_batch_for_each"]]  # one process has one batch
    for own, grown in zip(answer["measured"], grown_rows, strict=True):
        model, thin = by_ranks[own["ranks"]]
        private = own["dp-sgd"]
        cells = [own["ranks"], *(f"{own[kind]['bytes']:,.0f}" for kind in ("plain", "dp-sgd"))]
        cells += [f"{model['bytes_sent']:,.0f}", f"{own['random-freeze']['bytes']:,.0f}", f"{thin['bytes_sent']:,.0f}"]
        cells += [f"{private['normals']:,.0f}", f"{model['normals']:,.0f}"]
        cells += [f"{one['dp-sgd']['seconds'] / one['plain']['seconds']:.2f}" for one in (own, grown)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "The model for more of them:", ""]
    lines += [
        "| processes | bytes a process sends | messages of a process | normals a process draws |",
        "|---|---|---|---|",
    ]
    for own in dense:
        cells = [own["ranks"], *(f"{own[name]:,.0f}" for name in ("bytes_sent_by_rank", "messages", "normals"))]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def ranks(
    out: Annotated[Path, flag("The JSON file to write.")] = Path("results/ranks.json"),
    page: Annotated[Path | None, flag("Write the tables of this page from the file; measure nothing.")] = None,
) -> int:
    """Measure a step of 1, 2 and 4 processes beside the cost model."""
    if page is not None:
        answer = json.loads(out.read_text(encoding="utf-8"))
        write_text(page, put(page.read_text(encoding="utf-8"), "ranks", tables(answer)))
        return 0
    check_file(out)
    size = sum(parameter.numel() for parameter in network().parameters())
    answer = {
        "command": typed(_MODULE),
        "coordinates": size,
        "frozen": _FREEZE,
        "batch": BATCH,
        "steps": _STEPS,
        "own_network": os.environ.get(_INSIDE) == "1",
        "cores": os.cpu_count(),
        "measured": [row(number, BATCH, tuple(RECIPES)) for number in RANKS],
        "measured_with_a_batch_for_each": [row(number, BATCH * number, ("dp-sgd",)) for number in RANKS[1:]],
        "model": {
            "dp-sgd": [modelled(number, size, 1.0) for number in MODELLED],
            "random-freeze": [modelled(number, size, 1 - _FREEZE) for number in MODELLED],
        },
    }
    write_json(out, answer)
    return 0


def alone(module: str = _MODULE) -> int | None:
    """Run this command again in a network namespace of its own, if that is possible; its exit code, or None."""
    tools = shutil.which("unshare"), shutil.which("ip")
    if os.environ.get(_INSIDE) or None in tools:
        return None
    command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    with contextlib.suppress(OSError):
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            again = [*command, sys.executable, "-m", module, *sys.argv[1:]]
            return subprocess.run(again, env={**os.environ, _INSIDE: "1"}, check=False).returncode
    return None


if __name__ == "__main__":
    code = alone()
    sys.exit(
        entry.main(args=["ranks", *sys.argv[1:]], commands=[ranks], program=f"python -m {_MODULE}")
        if code is None
        else code
    )
