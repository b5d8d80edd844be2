"""A grid of Flower without processes: every message is answered at once, by one `ClientApp` in this process.

Strategies, messages and mods are those of Flower. Only the transport is replaced, so that a thousand clients take
seconds on one core. It counts the bytes of the arrays in both directions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, final

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

_FAILED: Final = 1  # the code of an error in a client


def bytes_of(content: RecordDict) -> int:
    """The bytes of all arrays in a message, as they are serialised."""
    return sum(array.count_bytes() for array in content.array_records.values())


@final
class InProcessGrid(Grid):
    """`clients` nodes, numbered from 2; node n has the partition n - 2.

    down, up  bytes of arrays that were sent to clients and by clients
    """

    def __init__(self, app: ClientApp, clients: int) -> None:
        self._app, self._clients = app, clients
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # as Flower's runtimes do
        self.down = self.up = self.messages = 0

    def get_node_ids(self) -> Iterable[int]:
        return range(2, self._clients + 2)  # 1 is the server

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        config: Any = {"partition-id": node - 2, "num-partitions": self._clients}
        context = Context(run_id=0, node_id=node, node_config=config, state=RecordDict(), run_config={})
        try:
            reply = self._app(message, context)
        except Exception as error:  # as Flower does: a client that fails is an error in its reply
            return Message(Error(code=_FAILED, reason=str(error)), reply_to=message)
        self.messages += 1
        self.down += bytes_of(message.content)
        self.up += bytes_of(reply.content)
        return reply

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **settings: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError
