"""The attack classifier of membership inference: a two-layer perceptron, 50 hidden units (arXiv 2502.17772, D.4)."""

from __future__ import annotations

import warnings
from typing import final

import torch
from scipy.special import logit
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor

_SEED = 0  # of the classifier only: the attacked models have their own
_BATCH, _WEIGHT_DECAY = 100, 5e-4
_LEAST = 1e-15  # keeps log-odds finite


def attack_features(answers: Tensor, labels: Tensor) -> Tensor:
    """What the classifier sees of a record: the model's probabilities, sorted, that of its label, and its loss.

    The paper says only that the attack sees the model's output; sorting makes classes alike.
    """
    own = answers.gather(1, labels.unsqueeze(1))
    top = answers.sort(dim=1, descending=True).values
    return torch.cat([top.exp(), own.exp(), own.clamp(min=-20)], dim=1).float()


@final
class AttackClassifier:
    """scikit-learn's perceptron with the paper's settings: SGD with momentum 0.9, learning rate 0.01, batches of 100.

    The paper's weight decay is 5e-4. The paper does not state the number of epochs; 30 is our choice.
    """

    def __init__(self, *, hidden: int = 50, epochs: int = 30) -> None:
        self._scaler = StandardScaler()
        self._net = MLPClassifier(
            hidden_layer_sizes=(hidden,),
            solver="sgd",
            learning_rate_init=0.01,
            momentum=0.9,
            nesterovs_momentum=False,
            batch_size=_BATCH,
            alpha=_BATCH * _WEIGHT_DECAY,  # scikit-learn divides its penalty by the batch size
            max_iter=epochs,
            n_iter_no_change=epochs,  # a fixed number of epochs
            random_state=_SEED,
        )

    def learn(self, features: Tensor, members: Tensor) -> None:
        """Learn to distinguish members [n] from others by their features [n, k]."""
        x = self._scaler.fit_transform(features.double().numpy())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the epochs are fixed
            self._net.fit(x, members.bool().numpy())

    def scores(self, features: Tensor) -> Tensor:
        """Log-odds of membership, [n]: above 0 is a guess that the record is a member."""
        odds = self._net.predict_proba(self._scaler.transform(features.double().numpy()))[:, 1]
        return torch.from_numpy(logit(odds.clip(_LEAST, 1 - _LEAST)))
