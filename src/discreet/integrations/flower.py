"""Federated training on Flower, with differential privacy for every client.

Server:

    strategy = PrivateStrategy(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, folder="runs/phones")
    strategy.start(grid, strategy.arrays, num_rounds=strategy.left)
    print(strategy.rounds.spent())

Client, with the recipe of the plan:

    app = ClientApp(mods=[bounded_update(recipe)])

    @app.train()
    def train(message, context):  # as without privacy: load the arrays, train, reply with the new arrays
        ...

Several local steps are DP-FedAvg; one step of SGD with lr=1 on all records of the client is DP-FedSGD.
"""

import time
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Final

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log
from torch import Tensor, nn

import discreet
from discreet.integrations.refusal import require

ARRAYS: Final = "arrays"  # the names of Flower's own strategies
CONFIG: Final = "config"
TASK: Final = "discreet-task"
UPDATE: Final = "discreet-update"
_VALUES: Final = "values"
_NORM: Final = "norm"

ClientCall = Callable[[Message, Context], Message]


class PrivateStrategy(Strategy):
    """Draws clients, bounds what they send, and releases the sum with noise: see `discreet.PrivateRounds`.

    Guarantee: the certificate of the plan, for adding or removing one client with all of its records, towards everybody
    who sees the model after each round. The server itself is trusted. A client that sends nonsense moves a sum by at
    most the clip; a client that drops out, or replies after the timeout, adds nothing.

    Metrics of clients are not charged, so they are dropped, and clients are not asked to evaluate. Evaluate on public
    records with `evaluate_fn` of `start`.

    folder  for the ledger and a checkpoint after each round; a run in it is resumed. None: in memory
    pause   seconds before each round in which clients can connect. A round never waits for a number of clients: one
            client would then decide which others take part
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: discreet.Plan,
        *,
        folder: str | Path | None = None,
        streams: discreet.Streams | None = None,
        pause: float = 0.0,
    ) -> None:
        self._checkpoint, ledger, resume = None, None, None
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._checkpoint, ledger = Path(folder, "checkpoint.pt"), Path(folder, "ledger.jsonl")
            resume = self._checkpoint if self._checkpoint.exists() else None
        self.rounds = discreet.PrivateRounds(model, optimizer, plan, ledger=ledger, streams=streams, resume=resume)
        self._pause, self._places = pause, dict[int, int]()
        self._save()

    @property
    def arrays(self) -> ArrayRecord:
        """The current model: parameters and buffers."""
        return ArrayRecord(self.rounds.model.state_dict())

    @property
    def left(self) -> int:
        """How many rounds the plan has left."""
        return self.rounds.left

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients of a round and send them the strategy's own model, not `arrays`."""
        time.sleep(self._pause)
        nodes = sorted(set(grid.get_node_ids()))
        self._places = {nodes[place]: place for place in self.rounds.draw(nodes).tolist()}
        told = ConfigRecord({**config, "server-round": server_round, TASK: self.rounds.task.to_json()})
        content = RecordDict({ARRAYS: self.arrays, CONFIG: told})
        return [Message(content, dst_node_id=node, message_type=MessageType.TRAIN) for node in self._places]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Release the sum of the replies with noise, also if there are none. Returns the model and public numbers."""
        used, errors = 0, list[str]()
        for reply in replies:
            place, sent = self._places.get(reply.metadata.src_node_id), _sent_in(reply)
            if place is not None and sent is not None:
                used += self.rounds.add(place, *sent)
            elif reply.has_error():
                errors.append(f": {reply.error.reason}")
        self._warn(used, *errors[:1])
        self.rounds.release()
        self._save()
        return self.arrays, MetricRecord({"rounds-charged": self.rounds.progress.step})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask no client: what they measure on their records is not charged."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Log the public numbers of the run."""
        log(INFO, "\t├──> %s: %s", self.rounds.plan.method, self.rounds.plan.outline)
        log(INFO, "\t└──> %s rounds left", self.left)

    def close(self) -> None:
        """Close the ledger."""
        self.rounds.close()

    def _warn(self, used: int, error: str = "") -> None:
        """Tell the server, which is trusted, that clients fail: else a broken client trains on noise unnoticed."""
        if used < len(self._places):
            log(WARNING, "%s of %s clients sent no usable update%s", len(self._places) - used, len(self._places), error)

    def _save(self) -> None:
        if self._checkpoint is not None:
            self.rounds.save(self._checkpoint)


def bounded_update(recipe: discreet.Recipe | discreet.Plan) -> Callable[[Message, Context, ClientCall], Message]:
    """A mod for a `ClientApp` that replies with its trained arrays: sends the bounded update instead, and nothing else.

    The update is the difference of the trained parameters, clipped as the recipe says. With random freeze it is the
    active coordinates alone; the mask is drawn from the public key of the round. Buffers and metrics are not sent.
    """

    def mod(message: Message, context: Context, call_next: ClientCall) -> Message:
        if message.metadata.message_type != MessageType.TRAIN:
            return call_next(message, context)
        task = _task_in(message)
        before = _arrays_in(message.content)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        after = _arrays_in(reply.content)
        missing = [name for name in task.names if name not in after]
        require(not missing, "the arrays of the trained model", f"none for {missing[:3]}", "reply with all of them")
        sent = task.contribution(recipe, {name: before[name] - after[name] for name in task.names})
        content = RecordDict({UPDATE: ArrayRecord({_VALUES: Array(sent.values.numpy())})})
        if sent.norm is not None:
            content[_NORM] = MetricRecord({_NORM: sent.norm})
        return Message(content, reply_to=message)

    return mod


def _task_in(message: Message) -> discreet.RoundTask:
    told = [config[TASK] for config in message.content.config_records.values() if TASK in config]
    remedy = "use PrivateStrategy on the server"
    require(len(told) == 1, "a round of PrivateStrategy", "a message of another strategy", remedy)
    return discreet.RoundTask.from_json(str(told[0]))


def _arrays_in(content: RecordDict) -> dict[str, Tensor]:
    records = list(content.array_records.values())
    require(len(records) == 1, "one ArrayRecord", len(records), "reply with one record, the trained arrays")
    return dict(records[0].to_torch_state_dict())


def _sent_in(reply: Message) -> tuple[Tensor, float | None] | None:
    """What a client sent; None if that cannot be read. Clients may send anything: no reply may end a round."""
    if reply.has_error():
        return None
    try:
        values = torch.from_numpy(reply.content.array_records[UPDATE][_VALUES].numpy())
        norms: Any = reply.content.metric_records.get(_NORM, {})
        return values, float(norms[_NORM]) if _NORM in norms else None
    except Exception:  # whatever decoding such bytes may raise
        return None
