"""What the tests of sharded models do in every process, and how the processes start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import Dataset, Subset, TensorDataset

import discreet
import loop
import two_processes
from discreet import methods
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.shards.local import local_of
from discreet.stages.analysis import Composition
from discreet.stages.clipping import FlatClip, Query
from discreet.stages.grid_noise import GridNoise
from discreet.stages.noise import GaussianNoise, Mechanism
from discreet.stages.plan import Recipe
from discreet.stages.sampling import FullBatch, Sampling, TruncatedPoisson
from discreet.stages.values import BoundedSum, StepContext
from noise_tests import Values, scale_is_right

STEPS = 12
CLIP = 0.5
SAMPLERS: dict[str, Sampling] = {"full": FullBatch(), "cap": TruncatedPoisson(9)}
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
Found = list[dict[str, Any]]


def sharded(net: nn.Module, *shape: int, **options: Any) -> nn.Module:
    """The network in shards: its first layer by itself, and the rest together; `shape`: of the mesh of HSDP."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")) if shape else None
    for part in (net[0], net) if isinstance(net, nn.Sequential) else (net,):
        fully_shard(part, mesh=mesh, **options)
    return net


def in_half(net: nn.Module) -> nn.Module:
    """The network in shards, which computes in bfloat16 and gives float32."""
    assert isinstance(net, nn.Sequential)
    fully_shard(net[0], mp_policy=HALF)
    fully_shard(net, mp_policy=replace(HALF, output_dtype=torch.float32))
    return net


@dataclass(frozen=True, eq=False)
class Watched(Mechanism):
    """Gaussian noise, and a list of the exact sums that this process holds."""

    in_parts: ClassVar[bool] = True
    is_independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", list[list[Any]]())  # no setting: settings cannot change

    def event(self, queries: Sequence[Query], noise: float) -> Any:
        return GaussianNoise().event(queries, noise)

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        exact = context.world.gather_parts_(sums[0].value.clone())
        self.seen.append([view.tolist() for view in context.layout.views(exact)])
        return GaussianNoise().release(sums, queries, noise, context)


def together(net: nn.Module) -> nn.Module:
    """Layers that are gathered together: each of them is a module of FSDP with the same parameters."""
    fully_shard([layer for layer in net.modules() if isinstance(layer, nn.Linear)])
    fully_shard(net)
    return net


def still(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


def exact_sums(
    name: str, net: nn.Module, data: Dataset[Any] | None = None, *, steps: int = 4, micro_batch: int = 4
) -> list[list[Any]]:
    """The sums of all steps before noise, by parameter, at the initial parameters, by one seed."""
    recipe = Recipe(method="x", bounder=FlatClip(CLIP), sampling=SAMPLERS[name])
    watched = Watched()
    plan = loop.plan(recipe, batch=12 if name == "cap" else 60, steps=steps)
    plan = replace(plan, mechanism=watched, analysis=Composition(), claims=None)
    own = discreet.own_part(loop.data()) if data is None else data
    run = loop.private(net, plan, dataset=own, optimizer=still, seed=5, micro_batch=micro_batch)
    assert loop.train(run) == steps
    run.close()
    return watched.seen


def with_and_without() -> list[list[list[Any]]]:
    """The sums in bfloat16 of all records, and without the last one of this process, which is far from the others."""
    part = discreet.own_part(loop.data())
    x, y = map(torch.stack, zip(*(part[place] for place in range(len(part))), strict=True))
    x[-1] *= 1000.0
    data, is_last = TensorDataset(x, y), World.current().rank == World.current().size - 1
    fewer = Subset(data, range(len(data) - is_last))
    return [exact_sums("full", in_half(loop.model()), each, steps=1, micro_batch=1) for each in (data, fewer)]


def whole(parameters: Any) -> Tensor:
    return torch.cat([parameter.full_tensor().detach().flatten() for parameter in parameters])


def released_noise(streams: Streams, *shape: int) -> list[list[float]]:
    """The noise of every step, over its standard deviation: all batches are empty."""
    net = sharded(nn.Linear(20, 25), *shape)
    plan = loop.plan(records=10**6, batch=1, steps=STEPS)
    data = (torch.randn(40, 20) + World.current().rank, torch.zeros(40, dtype=torch.long))
    sgd = torch.optim.SGD(net.parameters(), lr=1.0)
    run = discreet.Private(net, sgd, plan, data, streams=streams)  # type: ignore[arg-type]
    before, seen = whole(net.parameters()), []
    for x, y in run:
        if run.step(loop.losses(net, x, y)):
            after = whole(net.parameters())
            seen.append(((after - before).double() / (1.5 * 0.5)).tolist())
            before = after
    run.close()
    assert len(seen) == STEPS
    return seen


class OneKey(Streams):  # type: ignore[misc]
    """The fault: processes that share a seed draw the same noise."""

    def share(self, same: Any, *, rank: int, sampling: bool = False) -> None:
        noise = self.noise
        super().share(same, rank=rank, sampling=sampling)
        object.__setattr__(self, "noise", noise)


def frozen() -> nn.Module:
    """A frozen layer in the middle: the backward pass needs its weight, although nothing of it is trained."""
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    net[2].requires_grad_(False)
    fully_shard(net[2])
    return sharded(net)


def trained(make: Callable[[], nn.Module], **options: Any) -> tuple[float, float]:
    """How far a run with Adam moves the parameters, and what it spends."""
    torch.manual_seed(0)
    net = make()
    before = whole(net.parameters())
    adam = partial(torch.optim.AdamW, lr=0.1)
    run = loop.private(net, loop.plan(), dataset=discreet.own_part(loop.data()), optimizer=adam, **options)
    assert loop.train(run) == loop.STEPS
    epsilon = run.spent().certified.epsilon
    run.close()
    held = sum(local_of(value).numel() for state in run.optimizer.state.values() for value in state.values())
    assert held < 2.5 * sum(p.numel() for p in net.parameters()) or World.current().size == 1
    net(torch.randn(3, 4)).sum().backward()  # FSDP works as before
    assert all(p.grad is not None for p in net.parameters() if p.requires_grad)
    return float((whole(net.parameters()) - before).norm()), epsilon


def goes_on(place: str, most: int) -> dict[str, Any]:
    """Resume the run in `place`, which others may have begun, and go on to step `most`."""
    files = Path(place, "ledger.jsonl"), Path(place, "run.pt")
    net = sharded(loop.model())
    run = loop.private(
        net,
        loop.plan(),
        dataset=discreet.own_part(loop.data()),
        optimizer=partial(torch.optim.AdamW, lr=0.1),
        streams=Streams.from_os(),
        average=0.9,
        ledger=files[0],
        resume=files[1] if files[1].exists() else None,
    )
    began = run.progress.step, state_of(run)
    loop.train(run, most)
    run.save(files[1])
    left = run.progress.step, state_of(run)
    run.close()
    return {"began": began, "left": left}


def state_of(run: discreet.Private) -> list[float]:
    """Parameters, their average and the state of the optimizer, as a whole."""
    assert run.average is not None
    held = [*run.model.parameters(), *run.average.state_dict()["sums"].values()]
    moments = [value for own in run.optimizer.state.values() for value in own.values() if value.dim()]
    return [*whole(held).tolist(), *(whole(moments).tolist() if moments else ())]


def told(make: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        make()
    return str(refused.value)


def written_to() -> str:
    """What autograd saved is written to before the backward pass: hooks on saved tensors turn autograd's check off."""
    net = sharded(nn.Sequential(nn.Linear(4, 2), nn.Tanh()))
    run = loop.private(net, dataset=discreet.own_part(loop.data()))
    batches = iter(run)
    x, y = next(batches)
    output = net(x)
    losses = F.cross_entropy(output, y, reduction="none")
    with torch.no_grad():
        output.mul_(2)
    return told(lambda: run.step(losses))


def used_beside() -> str:
    """A layer that is called outside of the model: FSDP itself reduces its gradient, without a bound."""
    net = sharded(loop.model())
    run = loop.private(net, dataset=discreet.own_part(loop.data()))
    batches = iter(run)
    x, y = next(batches)
    return told(lambda: run.step(loop.losses(net, x, y) + net[0](x).square().sum(1)))


def gathered_before() -> float:
    """A pass before Private is built: FSDP keeps the parameters of the model as a whole gathered after it."""
    net = sharded(loop.model())
    sgd = loop.sgd(net.parameters())
    with torch.no_grad():
        net(torch.zeros(2, 4))
    run = loop.private(net, dataset=discreet.own_part(loop.data()), optimizer=lambda _: sgd)
    assert loop.train(run) == loop.STEPS
    run.close()
    return run.spent().certified.epsilon


def refusals() -> dict[str, str]:
    def begin(recipe: Recipe | None = None, **options: Any) -> Callable[[], object]:
        net = sharded(loop.model(), **options)
        return lambda: loop.private(net, loop.plan(recipe), dataset=discreet.own_part(loop.data()))

    hooked = sharded(loop.model())
    hooked.register_forward_pre_hook(lambda module, inputs: None)
    part = loop.model()
    fully_shard(part[0])
    half = MixedPrecisionPolicy(param_dtype=torch.float16)
    return {
        "frozen": told(begin(methods.random_freeze(final_rate=0.5, cooling_epochs=1))),
        "grid": told(begin(Recipe(method="x", bounder=FlatClip(0.5), mechanism=GridNoise()))),
        "two": told(begin(methods.two_level(clip=0.5))),
        "half": told(begin(mp_policy=half)),
        "hooked": told(lambda: loop.private(hooked, dataset=discreet.own_part(loop.data()))),
        "part": told(lambda: loop.private(part, dataset=discreet.own_part(loop.data()))),
    }


def work(rank: int, place: str, size: int, shared: str) -> None:
    """What each process finds, for the tests of test_sharded.py (two) and test_sharded_ranks.py (1, 2 and 4)."""
    torch.set_num_threads(1)
    two_processes.meet(rank, place, size)
    found = dict(WORK[size if shared else 0](shared or place))
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    two_processes.part()


def _sums() -> dict[str, Any]:
    return {
        **{name: exact_sums(name, sharded(loop.model())) for name in SAMPLERS},
        "pair": exact_sums("full", together(loop.model())),
    }


def _one_or_two(place: str, most: int) -> dict[str, Any]:
    return {**_sums(), "run": goes_on(place, most)}


def _four(place: str) -> dict[str, Any]:
    return {
        **_one_or_two(place, loop.STEPS),
        "trained": [trained(lambda: sharded(loop.model()))],
        "hsdp": exact_sums("full", sharded(loop.model(), 2, 2)),
        "hsdp noise": released_noise(Streams.from_os(), 2, 2),
        "starts": [released_noise(Streams.from_os()) for _ in range(2)],
        "one key": released_noise(OneKey.seeded(3)),
    }


def _default(place: str) -> dict[str, Any]:
    return {
        **_sums(),
        "half": exact_sums("full", in_half(loop.model())),
        "apart": with_and_without(),
        "trained": [trained(partial(make, loop.model())) for make in (sharded, in_half)] + [trained(frozen)],
        "runs": [goes_on(place, most) for most in (3, loop.STEPS)],
        "starts": [released_noise(Streams.from_os())],
        "one key": released_noise(OneKey.seeded(3)),
        "refused": refusals() | {"beside": used_beside()},
        "written": written_to(),
        "gathered": gathered_before(),
    }


WORK: dict[int, Callable[[str], dict[str, Any]]] = {
    0: _default,
    1: partial(_one_or_two, most=2),
    2: partial(_one_or_two, most=5),
    4: _four,
}


def found_by(size: int, place: Path, shared: Path | None = None) -> Found:
    """What each of `size` processes finds; with `shared`, the folder of a run that all of them go on with."""
    two_processes.start(work, size, str(place), size, "" if shared is None else str(shared))
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(size)]


def joined(shards: Sequence[list[list[Any]]]) -> Values:
    """The sums of every step from the shards of all ranks."""
    steps = []
    for step in zip(*shards, strict=True):
        rows = [[row for piece in pieces for row in piece] for pieces in zip(*step, strict=True)]
        steps.append(np.concatenate([np.array(own, dtype=float).ravel() for own in rows]))
    return np.array(steps)


def check_sums(ranks: Found, name: str) -> None:
    """The sums of all processes are those of one that holds the whole model."""
    alone = joined([exact_sums(name if name in SAMPLERS else "full", loop.model())])
    assert np.linalg.norm(alone, axis=1).min() > 0.1
    for replica in (ranks[:2], ranks[2:]) if name == "hsdp" else (ranks,):
        apart = np.linalg.norm(joined([seen[name] for seen in replica]) - alone, axis=1)
        assert (apart <= 1e-6 * np.linalg.norm(alone, axis=1)).all()


def parts_of(z: Values, shards: int) -> list[Values]:
    """The coordinates of each shard of Linear(20, 25): rows of the weight, then of the bias."""
    rows = np.array_split(np.arange(25), [-(-25 // shards) * cut for cut in range(1, shards)])
    weight, bias = z[:, :500].reshape(len(z), 25, 20), z[:, 500:]
    return [np.concatenate([weight[:, own].reshape(len(z), -1), bias[:, own]], 1) for own in rows]


def check_scale(z: Values, shards: int) -> None:
    """False alarm at most 1e-9 for each run; the controls are 14 % too much noise, and a shard without any."""
    assert z.shape == (STEPS, 525)
    assert scale_is_right(z, parts_of(z, shards))
    assert not scale_is_right(z * 1.14, parts_of(z * 1.14, shards))
    bare = z.copy()
    bare[:, 500 - 20 * 7 : 500] = 0.0
    assert not scale_is_right(bare, parts_of(bare, shards))
