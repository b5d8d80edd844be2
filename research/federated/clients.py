"""The clients as apps of Flower, written as one writes them without privacy."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from research.federated.settings import Setting
from research.federated.tasks import Federation


def app_of(setting: Setting, of: Federation, mods: list[object]) -> ClientApp:
    """A client that makes one pass over its records."""
    app, model = ClientApp(mods=mods), of.build()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        used = of.train_(model, client, rate=setting.rate, batches=setting.batches)
        arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": used})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app
