"""Images through Lightning: handwritten digits at epsilon 3.

    python examples/images_lightning.py
    python examples/images_lightning.py --data fashion-mnist --model cnn-small

Needs `pip install ".[lightning]"`. The digits come with scikit-learn; any dataset and model of discreet works.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from discreet import data, methods
from discreet.integrations.lightning import PrivateModule


class Digits(PrivateModule, LightningModule):
    """Any network; `losses` stands in place of `training_step`."""

    def __init__(self, task: data.Task, model: str) -> None:
        super().__init__()
        self.net = data.build(model, shape=task.shape, classes=task.classes, seed=0)

    def forward(self, images: Tensor) -> Any:
        return self.net(images)

    def losses(self, batch: Any) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self(images), labels, reduction="none")

    def validation_step(self, batch: Any, number: int) -> None:
        images, labels = batch
        self.log("accuracy", (self(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=5.0)


def main(
    name: str = "digits",
    model: str = "mlp",
    *,
    epsilon: float = 3.0,
    steps: int = 120,
    folder: Path = Path("runs/lightning"),
) -> float:
    """Train privately, and return the accuracy on the test set, which is public here."""
    task = data.load(name)
    records = len(task.train)
    plan = methods.dp_sgd(clip=0.1).for_budget(
        epsilon=epsilon, delta=1e-5, records=records, batch=records // 6, steps=steps
    )
    folder.mkdir(parents=True, exist_ok=True)
    net = Digits(task, model).privately(plan, task.train, ledger=folder / "ledger.jsonl")
    trainer = Trainer(max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False)
    test = DataLoader(task.test, batch_size=256)
    trainer.fit(net)
    (found,) = trainer.validate(net, test)
    print(net.spent())
    return float(found["accuracy"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--folder", type=Path, default=Path("runs/lightning"))
    given = parser.parse_args()
    print(f"test accuracy {main(given.data, given.model, folder=given.folder):.1%}")
