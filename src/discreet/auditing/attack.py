"""The attack classifier of membership inference: a two-layer perceptron, 50 hidden units (arXiv 2502.17772, D.4)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_SEED = 0  # of the classifier alone: what it attacks is drawn elsewhere


def attack_features(answers: Tensor, labels: Tensor) -> Tensor:
    """What the classifier sees of a record: the model's probabilities, sorted, that of its label, and its loss.

    The paper says only that the attack sees the model's output; sorting makes classes alike.
    """
    own = answers.gather(1, labels.unsqueeze(1))
    top = answers.sort(dim=1, descending=True).values
    return torch.cat([top.exp(), own.exp(), own.clamp(min=-20)], dim=1).float()


@final
class AttackClassifier:
    """SGD with momentum 0.9, weight decay 5e-4, learning rate 0.01, batches of 100; the number of epochs is ours."""

    def __init__(self, *, hidden: int = 50, epochs: int = 30) -> None:
        self._hidden, self._epochs = hidden, epochs
        self._net: nn.Module | None = None
        self._shift = self._scale = torch.zeros(0)

    def learn(self, features: Tensor, members: Tensor) -> None:
        """Tell members [n] from others by their features [n, k]."""
        self._shift, self._scale = features.mean(0), features.std(0).clamp(min=1e-6)
        x, y = (features - self._shift) / self._scale, members.float()
        generator = torch.Generator().manual_seed(_SEED)
        layers = nn.Linear(x.shape[1], self._hidden), nn.Linear(self._hidden, 1)
        net = nn.Sequential(layers[0], nn.ReLU(), layers[1])
        with torch.no_grad():
            for layer in layers:
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        for _ in range(self._epochs):
            for rows in torch.randperm(len(x), generator=generator).split(100):
                loss = F.binary_cross_entropy_with_logits(net(x[rows]).squeeze(1), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self._net = net

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Log-odds of membership: above 0 is a guess that the record is a member."""
        assert self._net is not None, "learn first"
        return torch.as_tensor(self._net((features - self._shift) / self._scale)).squeeze(1).double()
