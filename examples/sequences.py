"""Sequences of different lengths, a learning-rate scheduler, a resumed run and its privacy statement.

    python examples/sequences.py runs/sequences

Run the same command again after a crash to resume.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import discreet
from discreet import methods

LONGEST = 30  # public: the longest series that the sensor can record
Item = tuple[Tensor, int]


class Sensors(Dataset[Item]):
    """Synthetic readings of four channels that fall, stay or rise over 5 to 30 time steps."""

    def __init__(self, records: int) -> None:
        self.items = [self._made(int(torch.randint(3, ()))) for _ in range(records)]

    def _made(self, trend: int) -> Item:
        time = torch.linspace(0, 1, int(torch.randint(5, LONGEST + 1, ())))[:, None]
        return (trend - 1) * time + 0.5 * torch.randn(len(time), 4), trend

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]


def collate(items: list[Item]) -> tuple[Tensor, Tensor, Tensor]:
    """Padded readings, lengths and labels. Every batch is padded to the public length LONGEST."""
    padded = torch.stack([F.pad(x, (0, 0, 0, LONGEST - len(x))) for x, _ in items])
    return padded, torch.tensor([len(x) for x, _ in items]), torch.tensor([y for _, y in items])


class Trend(nn.Module):
    """An LSTM, read at the last time step of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.memory(x)
        scores: Tensor = self.head(states[torch.arange(len(x)), lengths - 1])
        return scores


def main(folder: Path, records: int = 4000, epochs: int = 4, stop_after: int | None = None) -> float:
    """Train, or resume after a crash or `stop_after` steps; return the accuracy on fresh data."""
    folder.mkdir(parents=True, exist_ok=True)
    model = Trend()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    recipe = methods.dp_sgd(clip=0.5)
    plan = recipe.for_budget(epsilon=3.0, delta=1e-5, records=records, batch=250, epochs=epochs)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.horizon.steps)

    checkpoint = folder / "checkpoint.pt"
    private = discreet.Private(
        model,
        optimizer,
        plan,
        Sensors(records),
        collate_fn=collate,
        inputs=lambda batch: batch[:2],  # the model takes readings and lengths
        ledger=folder / "ledger.jsonl",
        schedulers=[scheduler],
        resume=checkpoint if checkpoint.exists() else None,
    )
    for x, lengths, y in private:
        if private.step(F.cross_entropy(model(x, lengths), y, reduction="none")):
            scheduler.step()
            private.save(checkpoint)
        if private.progress.step == stop_after:
            break

    print(private.spent())
    (folder / "privacy-statement.md").write_text(discreet.statement(private, data="the sensors' readings"))
    torch.save(model.state_dict(), folder / "model.pt")
    private.close()
    x, lengths, y = collate(Sensors(1000).items)
    with torch.no_grad():
        accuracy = float((model(x, lengths).argmax(1) == y).float().mean())
    print(f"accuracy on fresh data: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/sequences"))
