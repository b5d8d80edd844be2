"""Federated training on Flower: what clients send, what the server makes of it, restarts, and a simulation."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="flwr is not installed here: run make test-flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import discreet
from discreet import Horizon, methods
from discreet.accounting.ledger import read
from discreet.integrations import flower
from discreet.integrations.flower import UPDATE, PrivateStrategy, bounded_update
from research.federated.grid import InProcessGrid, bytes_of

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, CLIP = 8, 0.5
UNIT = discreet.SampledUsers(per_user=4, name="client")
FLAT = methods.dp_sgd(clip=CLIP).using(unit=UNIT)


def net() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))  # its statistics must stay at the client
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    return made


def plan(
    recipe: discreet.Recipe = FLAT, *, noise: float = 1e-9, steps: int = 3, batch: float = CLIENTS
) -> discreet.Plan:
    return recipe.bind(noise=noise, horizon=Horizon.of(records=CLIENTS, batch=batch, steps=steps), delta=1e-3)


def strategy(which: discreet.Plan | None = None, **options: Any) -> PrivateStrategy:
    model = net()
    return PrivateStrategy(model, torch.optim.SGD(model.parameters(), lr=1.0), which or plan(), **options)


def moves(client: int) -> Tensor:
    """How far the client's training moves each parameter; some are longer than the clip."""
    return torch.full((2, 4), 0.02 * (client + 1) ** 2)


def app(recipe: discreet.Recipe = FLAT) -> ClientApp:
    """A client as one writes it without privacy."""
    made = ClientApp(mods=[bounded_update(recipe)])

    @made.train()
    def train(message: Message, context: Context) -> Message:
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model(torch.randn(8, 4))  # moves the statistics
        client = int(context.node_config["partition-id"])
        with torch.no_grad():
            model[0].weight -= moves(client)
        metrics = MetricRecord({"num-examples": 10**9, "loss": 1.0})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "m": metrics}), reply_to=message)

    return made


class Spy(InProcessGrid):  # type: ignore[misc]
    """A grid that keeps the replies, and may replace some of them."""

    def __init__(self, app: ClientApp, lies: dict[int, Any] | None = None, lost: Iterable[int] = ()) -> None:
        super().__init__(app, CLIENTS)
        self.replies: list[Message] = []
        self._lies, self._lost = lies or {}, set(lost)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        answers = []
        for message in messages:
            client = message.metadata.dst_node_id - 2
            if client in self._lost:
                continue
            lie = self._lies.get(client)
            answers.append(self._answer(message) if lie is None else Message(lie, reply_to=message))
        self.replies += answers
        return answers


def released(grid: InProcessGrid, which: discreet.Plan | None = None) -> Tensor:
    """The sum of one round."""
    run = strategy(which or plan(steps=1))
    run.start(grid, run.arrays, num_rounds=1)
    run.close()
    flat = torch.cat([parameter.detach().flatten() for parameter in run.rounds.model.parameters()])
    return -flat.double() * CLIENTS


def clipped(client: int) -> Tensor:
    flat = torch.cat([moves(client).flatten(), torch.zeros(6)]).double()
    return flat * min(1.0, CLIP / float(flat.norm()))


def test_a_round_is_the_average_of_bounded_updates() -> None:
    grid = Spy(app())
    total = released(grid)
    assert torch.allclose(total, sum((clipped(client) for client in range(CLIENTS)), torch.zeros(14)), atol=1e-5)
    for reply in grid.replies:  # no metric, no buffer, no name of a parameter
        assert list(reply.content.keys()) == [UPDATE]
        assert [array.shape for array in reply.content[UPDATE].values()] == [(14,)]


def test_the_log_of_the_server_tells_of_clients_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise clients that all fail would train the model on noise alone, unnoticed."""
    said: list[str] = []
    monkeypatch.setattr(flower, "log", lambda level, text, *values: said.append(text % values if values else text))
    released(Spy(app(), lies={2: Error(code=0, reason="no such file")}, lost=[5]))
    assert "2 of 8 clients sent no usable update: no such file" in said
    said.clear()
    released(Spy(app()))
    assert not [line for line in said if "usable" in line]


def test_statistics_of_clients_do_not_reach_the_server() -> None:
    run = strategy(plan(steps=1))
    before = run.rounds.model[1].running_mean.clone()
    run.start(Spy(app()), run.arrays, num_rounds=1)
    assert torch.equal(run.rounds.model[1].running_mean, before)
    assert float(run.arrays.to_torch_state_dict()["1.running_var"][0]) == 1.0


def lying(values: Any) -> RecordDict:
    return RecordDict({UPDATE: ArrayRecord({"values": Array(np.asarray(values))})})


def lies() -> dict[int, RecordDict]:
    damaged = Array("float32", (14,), "numpy.ndarray", b"no array at all")
    norm = lying(np.ones(14, dtype=np.float32))
    norm["norm"] = MetricRecord({"norm": math.inf})
    return {
        0: lying(np.full(14, 1e30, dtype=np.float32)),
        1: lying(np.full(14, np.nan, dtype=np.float32)),
        2: lying(np.full(14, -np.inf)),
        3: lying(np.ones(3, dtype=np.float32)),
        4: RecordDict({UPDATE: ArrayRecord({"values": damaged})}),
        5: RecordDict({"arrays": ArrayRecord(net().state_dict())}),
        6: norm,
        7: lying(np.array([1 + 1j] * 14)),
    }


def test_a_client_that_lies_moves_the_sum_by_at_most_the_clip() -> None:
    honest = released(Spy(app()))
    for client, lie in lies().items():
        with_lie, without = released(Spy(app(), {client: lie})), released(Spy(app(), lost=[client]))
        assert bool(with_lie.isfinite().all())
        assert float((with_lie - without).norm()) <= CLIP * (1 + 1e-5), client
    everybody = released(Spy(app(), lies()))
    assert float(everybody.norm()) <= 2 * CLIP * (1 + 1e-5)  # of clients 0 and 6; the others sent no vector
    assert float(everybody.norm()) > 1.9 * CLIP
    assert float((honest - released(Spy(app(), lost=range(CLIENTS)))).norm()) > CLIP  # the test sees something


def test_drop_outs_and_failures_add_nothing_and_cost_the_same() -> None:
    which = plan(noise=1.0, steps=2)
    run = strategy(which)
    run.start(Spy(app(), lost=range(CLIENTS)), run.arrays, num_rounds=1)
    failing = ClientApp(mods=[bounded_update(FLAT)])  # without a train function
    run.start(Spy(failing), run.arrays, num_rounds=1)
    assert run.rounds.spent().certified.epsilon == which.certificate().epsilon
    assert float(run.rounds.model[0].weight.detach().abs().max()) > 0  # noise


def adding_one(recipe: discreet.Recipe) -> ClientApp:
    """A client whose training adds 1 to every parameter."""
    made = ClientApp(mods=[bounded_update(recipe)])

    @made.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"].to_torch_state_dict()
        moved = ArrayRecord({name: value + 1 for name, value in arrays.items()})
        return Message(RecordDict({"arrays": moved}), reply_to=message)

    return made


def test_random_freeze_sends_values_alone() -> None:
    frozen = methods.random_freeze(clip=CLIP, final_rate=0.9, cooling_epochs=1).using(unit=UNIT)
    sent, changed = {}, {}
    for recipe in (FLAT, frozen):
        model = nn.Linear(500, 20)
        before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        run = PrivateStrategy(model, torch.optim.SGD(model.parameters(), lr=1.0), plan(recipe, steps=1))
        grid = Spy(adding_one(recipe))
        run.start(grid, run.arrays, num_rounds=1)
        after = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        sent[recipe.method], changed[recipe.method] = bytes_of(grid.replies[0].content), after - before
    assert sent["random-freeze"] <= 0.15 * sent["dp-sgd"]
    change = changed["random-freeze"]  # the server put the values where the clients took them from
    assert int((change > 0.01).sum()) == 1002
    assert float(change.norm()) == pytest.approx(CLIP, rel=1e-3)


def test_adaptive_clipping_follows_the_norms_that_clients_report() -> None:
    recipe = methods.adaptive_quantile(clip=8.0, rate=0.5, count_noise=0.1).using(unit=UNIT)
    run = strategy(plan(recipe, steps=15))
    run.start(Spy(app(recipe)), run.arrays, num_rounds=15)
    norms = sorted(float(moves(client).norm()) for client in range(CLIENTS))
    assert norms[2] < 8.0 * run.rounds.progress.scale < norms[5]


def test_with_correlated_noise_a_node_comes_back_once_an_epoch(tmp_path: Path) -> None:
    recipe = methods.dp_ftrl(clip=CLIP, bands=4).using(unit=UNIT)
    which = plan(recipe, noise=1.0, steps=6, batch=CLIENTS / 3)
    grid, joined = Spy(app(recipe)), dict[int, list[int]]()
    run = strategy(which, folder=tmp_path)
    for step in range(6):
        if step == 4:  # the server restarts
            run.close()
            run = strategy(which, folder=tmp_path)
        before = len(grid.replies)
        run.start(grid, run.arrays, num_rounds=1)
        for reply in grid.replies[before:]:
            joined.setdefault(reply.metadata.src_node_id, []).append(step)
    assert len(joined) == CLIENTS
    assert all(later - earlier == 3 for earlier, later in joined.values())
    assert run.rounds.spent().certified.epsilon == which.certificate().epsilon
    run.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt", "ledger.jsonl"]  # no key is left


def test_clients_are_not_asked_to_evaluate() -> None:
    run = strategy()
    assert run.configure_evaluate(1, run.arrays, ConfigRecord(), Spy(app())) == []
    assert run.aggregate_evaluate(1, []) is None


def test_a_restart_continues_the_run_of_its_folder(tmp_path: Path) -> None:
    which = plan(noise=1.0)
    first = strategy(which, folder=tmp_path)
    first.start(Spy(app()), first.arrays, num_rounds=1)
    released_before = first.rounds.model[0].weight.detach().clone()
    first.configure_train(2, first.arrays, ConfigRecord(), Spy(app()))  # the server stops inside a round
    first.close()
    again = strategy(which, folder=tmp_path)
    assert again.left == 2  # the open round was not charged, and nothing of it was released
    assert torch.equal(again.rounds.model[0].weight, released_before)
    again.start(Spy(app()), again.arrays, num_rounds=again.left)
    again.close()
    record = read(tmp_path / "ledger.jsonl")
    assert [entry.step for entry in record.entries] == [0, 1, 2]
    fingerprints = [entry.note["noise"] for entry in record.entries if "noise" in entry.note]
    assert len(set(fingerprints)) == 2  # one key for each start
    finished = strategy(which, folder=tmp_path)
    assert finished.left == 0
    with pytest.raises(discreet.Refused, match="a round that is left"):
        finished.start(Spy(app()), finished.arrays, num_rounds=1)
    finished.close()


def test_the_mod_refuses_another_strategy_and_another_recipe() -> None:
    context = Context(run_id=1, node_id=2, node_config={"partition-id": 0}, state=RecordDict(), run_config={})
    run = strategy()
    (message, *_) = run.configure_train(1, run.arrays, ConfigRecord(), Spy(app()))
    with pytest.raises(discreet.Refused, match="clipping and selection"):
        app(methods.dp_sgd(clip=7.0).using(unit=UNIT))(message, context)
    del message.content["config"]["discreet-task"]
    with pytest.raises(discreet.Refused, match="a round of PrivateStrategy"):
        app()(message, context)


def test_a_simulation_on_flowers_engine(tmp_path: Path) -> None:
    """The example, on Ray: 100 clients."""
    assert "add/remove of one client" in simulated("federated_flower.py", tmp_path / "run", rounds=3)
    assert read(tmp_path / "run" / "ledger.jsonl").length == 3


@pytest.mark.slow
def test_a_simulation_of_a_thousand_clients(tmp_path: Path) -> None:
    """Fashion-MNIST over 1,000 clients, on Ray."""
    try:
        discreet.data.load("fashion-mnist")
    except discreet.Refused:
        pytest.skip("Fashion-MNIST is not on this machine")
    said = simulated("federated_fashion_mnist.py", tmp_path / "run", rounds=2)
    assert "1000 clients" in said
    assert "add/remove of one client" in said
    assert read(tmp_path / "run" / "ledger.jsonl").length == 2


def simulated(name: str, folder: Path, *, rounds: int) -> str:
    """What an example prints on Flower's simulation engine."""
    pytest.importorskip("ray", reason="flwr[simulation] is not installed here: run make test-flower")
    command = [sys.executable, str(ROOT / "examples" / name), str(folder), str(rounds)]
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "no usable update" not in done.stdout + done.stderr
    return done.stdout
