"""Models that FSDP2 shards: the sums and the certificate of one process, noise by shards, checkpoints, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import discreet
import loop
import two_processes
from discreet import methods
from discreet.accounting.ledger import read
from discreet.core.check import Damaged, Refused
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
from discreet.training.checkpoint import Checkpoint
from discreet.training.sharded.checkpoint import _check_files
from noise_tests import Values, are_independent, same_lengths, scale_is_right

pytestmark = pytest.mark.timeout(900)  # one test waits for all processes
STEPS = 12
SAMPLERS: dict[str, Sampling] = {"full": FullBatch(), "cap": TruncatedPoisson(9)}
Found = list[dict[str, Any]]


def sharded(net: nn.Module, *shape: int, **options: Any) -> nn.Module:
    """The network in shards: its first layer by itself, and the rest together; `shape`: of the mesh of HSDP."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")) if shape else None
    for part in (net[0], net) if isinstance(net, nn.Sequential) else (net,):
        fully_shard(part, mesh=mesh, **options)
    return net


@dataclass(frozen=True)
class Watched(Mechanism):
    """Gaussian noise, and a list of the exact sums that this process holds."""

    seen: list[list[Any]] = field(default_factory=list, compare=False)
    in_parts: ClassVar[bool] = True
    is_independent: ClassVar[bool] = True

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


def exact_sums(name: str, net: nn.Module) -> list[list[Any]]:
    """The sums of all steps before noise, by parameter, at the initial parameters, by one seed."""
    recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=SAMPLERS[name])
    watched = Watched()
    plan = loop.plan(recipe, batch=12 if name == "cap" else 60, steps=4)
    plan = replace(plan, mechanism=watched, analysis=Composition(), claims=None)
    run = loop.private(net, plan, dataset=discreet.own_part(loop.data()), optimizer=still, seed=5, micro_batch=4)
    assert loop.train(run) == 4
    run.close()
    return watched.seen


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
        self.noise = noise


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


def refusals() -> dict[str, str]:
    def begin(recipe: Recipe | None = None, **options: Any) -> Callable[[], object]:
        net = sharded(loop.model(), **options)
        return lambda: loop.private(net, loop.plan(recipe), dataset=discreet.own_part(loop.data()))

    hooked = sharded(loop.model())
    hooked.register_forward_pre_hook(lambda module, inputs: None)
    part = loop.model()
    fully_shard(part[0])
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    return {
        "frozen": told(begin(methods.random_freeze(final_rate=0.5, cooling_epochs=1))),
        "grid": told(begin(Recipe(method="x", bounder=FlatClip(0.5), mechanism=GridNoise()))),
        "two": told(begin(methods.two_level(clip=0.5))),
        "half": told(begin(mp_policy=half)),
        "hooked": told(lambda: loop.private(hooked, dataset=discreet.own_part(loop.data()))),
        "part": told(lambda: loop.private(part, dataset=discreet.own_part(loop.data()))),
    }


def work(rank: int, place: str, size: int, shared: str) -> None:
    torch.set_num_threads(1)
    two_processes.meet(rank, place, size)
    found: dict[str, Any] = {name: exact_sums(name, sharded(loop.model())) for name in SAMPLERS}
    found["pair"] = exact_sums("full", together(loop.model()))
    found["trained"] = trained(lambda: sharded(loop.model())), trained(frozen)
    found["run"] = goes_on(shared, {1: 2, 2: 5, 4: loop.STEPS}[size])
    if size == 4:
        found["hsdp"] = exact_sums("full", sharded(loop.model(), 2, 2))
        found["hsdp noise"] = released_noise(Streams.from_os(), 2, 2)
        found["starts"] = [released_noise(Streams.from_os()) for _ in range(2)]
        found["one key"] = released_noise(OneKey.seeded(3))
    if size == 2:
        found["refused"], found["written"] = refusals() | {"beside": used_beside()}, written_to()
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    two_processes.part()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that all of them go on with."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> dict[int, Found]:
    """What each of 1, 2 and 4 processes found."""
    every = {}
    for size in (1, 2, 4):
        place = tmp_path_factory.mktemp(f"ranks{size}")
        mp.start_processes(work, args=(str(place), size, str(shared)), nprocs=size, start_method="spawn")
        every[size] = [json.loads((place / f"{rank}.json").read_text()) for rank in range(size)]
    return every


def joined(shards: Sequence[list[list[Any]]]) -> Values:
    """The sums of every step from the shards of all ranks."""
    steps = []
    for step in zip(*shards, strict=True):
        rows = [[row for piece in pieces for row in piece] for pieces in zip(*step, strict=True)]
        steps.append(np.concatenate([np.array(own, dtype=float).ravel() for own in rows]))
    return np.array(steps)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", [*SAMPLERS, "pair", "hsdp"])
def test_the_sums_before_noise_are_those_of_one_process(found: dict[int, Found], name: str, size: int) -> None:
    if name == "hsdp" and size != 4:
        pytest.skip("HSDP has four processes")
    alone = joined([exact_sums(name if name in SAMPLERS else "full", loop.model())])
    assert np.linalg.norm(alone, axis=1).min() > 0.1
    ranks = found[size]
    for replica in (ranks[:2], ranks[2:]) if name == "hsdp" else (ranks,):
        apart = np.linalg.norm(joined([seen[name] for seen in replica]) - alone, axis=1)
        assert (apart <= 1e-6 * np.linalg.norm(alone, axis=1)).all()


def parts_of(z: Values, shards: int) -> list[Values]:
    """The coordinates of each shard of Linear(20, 25): rows of the weight, then of the bias."""
    rows = np.array_split(np.arange(25), [-(-25 // shards) * cut for cut in range(1, shards)])
    weight, bias = z[:, :500].reshape(len(z), 25, 20), z[:, 500:]
    return [np.concatenate([weight[:, own].reshape(len(z), -1), bias[:, own]], 1) for own in rows]


def test_noise_has_its_scale_on_every_coordinate(found: dict[int, Found]) -> None:
    """False alarm at most 1e-9 for each run; the controls are 8 % too much noise, and a shard without any."""
    first = found[4][0]
    for run, shards in ((first["starts"][0], 4), (first["starts"][1], 4), (first["hsdp noise"], 2)):
        z = np.array(run)
        assert z.shape == (STEPS, 525)
        assert scale_is_right(z, parts_of(z, shards))
        assert not scale_is_right(z * 1.08, parts_of(z * 1.08, shards))
        bare = z.copy()
        bare[:, 500 - 20 * 7 : 500] = 0.0
        assert not scale_is_right(bare, parts_of(bare, shards))


def test_noise_is_independent_between_shards_steps_and_starts(found: dict[int, Found]) -> None:
    seen = found[4][0]
    first, second, hybrid = np.array(seen["starts"][0]), np.array(seen["starts"][1]), np.array(seen["hsdp noise"])
    assert are_independent(same_lengths(parts_of(first, 4)) + same_lengths(parts_of(second, 4)))
    assert are_independent(same_lengths(parts_of(hybrid, 2)))
    halves = [half for part in parts_of(hybrid, 2) for half in np.array_split(part, 2, 1)]  # which replica drew it
    assert are_independent(same_lengths(halves))
    assert are_independent([*first, *second, *hybrid])  # every two steps, of the same start or not
    # The controls: ranks with one key, and a start that repeats the other's noise.
    assert not are_independent(same_lengths(parts_of(np.array(seen["one key"]), 4)))
    assert not are_independent([*first, *first])


def test_every_process_sees_the_same_parameters(found: dict[int, Found]) -> None:
    first, *others = found[4]
    for other in others:
        assert (other["starts"], other["hsdp noise"]) == (first["starts"], first["hsdp noise"])


def test_the_certificate_is_that_of_one_process(found: dict[int, Found]) -> None:
    run = loop.private(None, loop.plan())
    loop.train(run)
    for seen in (one for ranks in found.values() for one in ranks):
        for moved, epsilon in seen["trained"]:
            assert moved > 0.1
            assert epsilon == run.spent().certified.epsilon


def test_a_run_goes_on_with_another_number_of_processes(found: dict[int, Found], shared: Path) -> None:
    """One process begins it, two go on and four end it; nothing is charged twice, and no key comes back."""
    ends = {size: ranks[0]["run"] for size, ranks in found.items()}
    assert [ends[size]["began"][0] for size in (1, 2, 4)] == [0, 2, 5]
    for earlier, later in ((1, 2), (2, 4)):
        assert ends[later]["began"] == ends[earlier]["left"]
    for rank in found[4]:
        assert rank["run"] == ends[4]
    record = read(shared / "ledger.jsonl")
    assert [entry.step for entry in record.entries] == list(range(loop.STEPS))
    keys = [value for entry in record.entries for value in entry.note.values() if isinstance(value, str)]
    assert len(set(keys)) == len(keys) == 2 * (1 + 2 + 4)
    assert record.charge().certified == loop.plan().charge().certified
    assert len(list(shared.iterdir())) == 3  # the ledger, the file and one folder of shards


def test_damaged_shards_are_refused(found: dict[int, Found], shared: Path) -> None:
    folder = next(shared.glob("run.pt.shards-*"))
    files = Checkpoint.read(shared / "run.pt").shards
    assert files is not None
    _check_files(folder, files["files"])
    file = max(folder.iterdir(), key=lambda one: one.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match="as it was written"):
        _check_files(folder, files["files"])


def test_what_cannot_be_sharded_is_refused_by_name(found: dict[int, Found]) -> None:
    assert "written to in place" in found[2][0]["written"]
    said = found[2][1]["refused"]
    assert "random-freeze, which selects coordinates" in said["frozen"]
    assert "adds noise that depends on more than one coordinate" in said["grid"]
    assert "two-level, which" in said["two"]
    assert "gathered in torch.bfloat16" in said["half"]
    assert "torch.autocast" in said["half"]
    assert "forward hooks of your own" in said["hooked"]
    assert "fully_shard(model) last" in said["part"]
    assert "outside of it" in said["beside"]
