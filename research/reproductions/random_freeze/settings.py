"""Random freeze (paper 001): budgets, settings and runs that its tables and Figure 4 share.

The paper trains a CNN of 550K parameters on CIFAR-10 for 40 to 100 epochs, which is days on two cores. Here its whole
schedule (rate 0.02, epochs, clip, momentum, learning rate, freeze rate) runs on Fashion-MNIST with two hidden layers of
128 (118K parameters), and a quarter of its epochs with the 28x28 CNN (26K).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, final

from discreet.methods.random_freeze.selection import RandomFreeze, RankedFreeze
from discreet.runs import RunConfig
from discreet.stages.sampling import Horizon
from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.experiment import Row
from research.reproductions.random_freeze.clip_scaling import scale_clip_with_momentum

UNIT: Final = "test accuracy, %"
RECORDS, BATCH, DELTA = 60_000, 1200, 1e-5  # the paper's rate, 1000 / 50000
BASE_CLIP, BASE_MOMENTUM = 0.1, 0.9  # Table 5, after Tramer and Boneh
CLIP = scale_clip_with_momentum(clip=BASE_CLIP, momentum=BASE_MOMENTUM, to_momentum=0.0)  # Table 9: 1
RATE = 0.9

GUESSES: Final = (
    "The paper prints the mean of each run's best accuracy; ours is the accuracy at the end of the run.",
    "The paper shuffles and accounts as Poisson; we sample as Poisson, so our noise is for what is run.",
)


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """A budget of the paper: the epochs of its dense runs, and its printed accuracies."""

    epsilon: float
    epochs: int
    density: float
    baseline: float
    adjusted: float
    longer: tuple[tuple[str, float], ...]
    """Freezing with 20 more epochs, Tables 3 and 4."""
    added: float
    """Freezing with the baseline's settings, Table 1."""


STRICT: Final = Budget(
    epsilon=3.0,
    epochs=40,
    density=0.6,
    baseline=60.4,
    adjusted=63.1,
    longer=(("random-freeze", 64.5), ("ranked-freeze", 64.6)),
    added=61.1,
)
LOOSE: Final = Budget(
    epsilon=7.53,
    epochs=80,
    density=0.58,
    baseline=66.9,
    adjusted=69.7,
    longer=(("random-freeze", 70.2), ("ranked-freeze", 70.0)),
    added=66.7,
)


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """Runs of one network at one budget, with a share of the paper's epochs."""

    bench: Bench
    budget: Budget
    model: str
    share: float
    words: str

    def epochs(self, more: int = 0) -> int:
        """Our number for the paper's epochs plus `more`: a share of them, a twentieth in a quick run."""
        return max(2, round((self.budget.epochs + more) * (0.05 if self.bench.quick else self.share)))

    def row(
        self,
        setting: str,
        *,
        clip: float,
        momentum: float,
        epochs: int | None = None,
        method: str = "dp-sgd",
        freeze: dict[str, Any] | None = None,
        paper: float | None = None,
        note: str = "",
    ) -> Row:
        """Runs at the paper's learning rate of 1, without averaging."""
        epochs = self.epochs() if epochs is None else epochs
        run = RunConfig(
            delta=DELTA,
            out="",
            data="fashion-mnist",
            model=self.model,
            method=method,
            parameters=(("clip", round(clip, 12)), *(freeze or {}).items()),
            epsilon=self.budget.epsilon,
            batch=BATCH,
            epochs=epochs,
            optimizer="sgd",
            learning_rate=1.0,
            momentum=momentum,
            average=0.0,
            micro_batch=600,
            eval_every=max(1, epochs * RECORDS // BATCH // 4),
        )
        return accuracy_row(setting, self.bench.train_seeds(run), paper=paper, note=note)

    def baseline(self) -> Row:
        """Clip 0.1 and momentum 0.9."""
        where = f"baseline, epsilon {self.budget.epsilon:g}, {self.words}"
        return self.row(where, clip=BASE_CLIP, momentum=BASE_MOMENTUM, paper=self.budget.baseline)

    def adjusted(self) -> Row:
        """Clip 1 without momentum, by the scaling rule."""
        where = f"adjusted baseline, epsilon {self.budget.epsilon:g}, {self.words}"
        return self.row(where, clip=CLIP, momentum=0.0, paper=self.budget.adjusted)

    def longer(self, method: str) -> Row:
        """The adjusted baseline with freezing: the rate rises over its epochs and stays for 20 more."""
        dense, epochs = self.epochs(), self.epochs(more=20)
        kind = RandomFreeze if method == "random-freeze" else RankedFreeze
        horizon = Horizon.of(records=RECORDS, batch=BATCH, epochs=epochs)
        density = kind(final_rate=RATE, cooling_epochs=dense).density(horizon, baseline_epochs=dense)
        return self.row(
            f"{method.replace('-', ' ')}, epsilon {self.budget.epsilon:g}, {self.words}",
            clip=CLIP,
            momentum=0.0,
            epochs=epochs,
            method=method,
            freeze={"final_rate": RATE, "cooling_epochs": dense},
            paper=dict(self.budget.longer)[method],
            note=f"total density {density:.2f}, paper {self.budget.density}",
        )

    def added(self) -> Row:
        """The baseline with freezing: the rate rises to 0.7 over all its epochs."""
        epochs = self.epochs()
        horizon = Horizon.of(records=RECORDS, batch=BATCH, epochs=epochs)
        density = RandomFreeze(final_rate=0.7, cooling_epochs=epochs).density(horizon)
        return self.row(
            f"random freeze 0.7, epsilon {self.budget.epsilon:g}, {self.words}",
            clip=BASE_CLIP,
            momentum=BASE_MOMENTUM,
            method="random-freeze",
            freeze={"final_rate": 0.7, "cooling_epochs": epochs},
            paper=self.budget.added,
            note=f"total density {density:.2f}, paper 0.65",
        )


def mlp_series(bench: Bench, budget: Budget) -> Series:
    return _series(bench, budget, "mlp", "MLP", 1.0, "the paper's epochs")


def cnn_series(bench: Bench, budget: Budget) -> Series:
    return _series(bench, budget, "cnn-small", "28x28 CNN", 0.25, "a quarter of the epochs")


def _series(bench: Bench, budget: Budget, model: str, name: str, share: float, epochs: str) -> Series:
    words = f"{name}, {'a twentieth of the epochs' if bench.quick else epochs}"
    return Series(bench=bench, budget=budget, model=model, share=share, words=words)


def at_least(one: Row, other: Row) -> bool:
    """Whether one is above the other, or within the standard error of the difference.

    >>> at_least(Row(setting="a", ours=84.9, spread=0.1), Row(setting="b", ours=85.0))
    True
    """
    difference, error = _compared(one, other)
    return difference >= -error


def gap(one: Row, other: Row) -> str:
    """The difference with its standard error.

    >>> gap(Row(setting="a", ours=86.0, spread=0.3), Row(setting="b", ours=85.0, spread=0.4))
    '+1.00 ± 0.50'
    """
    difference, error = _compared(one, other)
    return f"{difference:+.2f}" + (f" ± {error:.2f}" if error else "")


def _compared(one: Row, other: Row) -> tuple[float, float]:
    assert one.ours is not None
    assert other.ours is not None
    return round(one.ours - other.ours, 9), round(math.hypot(one.spread or 0.0, other.spread or 0.0), 9)
