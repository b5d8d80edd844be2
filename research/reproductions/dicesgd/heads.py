"""DiceSGD (paper 004): private heads on features of public backbones, which its tables and figures share."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from discreet.runs import RunConfig
from discreet.stages.sampling import Horizon
from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.dicesgd.threshold import KAPPA, felt
from research.reproductions.experiment import Row
from research.tasks.backbones import cifar10_features

UNIT: Final = "test accuracy, %"
LONGEST: Final = 2.0  # of a gradient: sqrt(2) for the scores times sqrt(2) for features of length 1 and a bias
# Learning rates times C: the paper searched its step size too. No method that learns has its best at an end.
REACHES: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
QUICK_REACHES: Final = (3.0,)

NOISE: Final = (
    "The paper does not say which noise its experiments used. Theorem 3.8 (C = batch * C2) asks for more noise on the "
    "mean than C itself, in which nothing could be learned: its figures fit Algorithm 4's noise, without the batch.",
    "The paper runs the Adam variant; here SGD, with the best of eight step sizes by test accuracy for every row, ours "
    "and the paper's alike.",
)
IMAGES: Final = (
    "The paper fine-tunes all of a ViT-small pretrained on ImageNet; here a softmax head (12,810 parameters) is "
    "trained on frozen features of EfficientNet-lite0, each of length 1, so gradients are at most 2 long. Accuracies "
    "do not compare.",
    *NOISE,
)


def noise_of_algorithm_4(horizon: Horizon, clip: float, feedback_clip: float, *, epsilon: float, delta: float) -> float:
    """The multiplier on the sum: sigma = sqrt(32 T (C1^2 + 2 C2^2) ln(1/delta)) / (N epsilon) on the mean."""
    square = clip**2 + 2 * feedback_clip**2
    top = math.sqrt(32 * horizon.steps * square * math.log(1 / delta))
    return top / (horizon.size.records * epsilon) * horizon.size.batch / clip


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """The public settings of a head's training."""

    file: Path
    classes: int
    records: int
    batch: int
    epochs: int
    epsilon: float
    delta: float

    @property
    def horizon(self) -> Horizon:
        return Horizon.of(records=self.records, batch=self.batch, epochs=self.epochs)

    def noise_of_algorithm_4(self, clip: float, feedback_clip: float) -> float:
        return noise_of_algorithm_4(self.horizon, clip, feedback_clip, epsilon=self.epsilon, delta=self.delta)

    def run(self, method: str, noise: float | None = None, **parameters: float) -> RunConfig:
        """A run of the method, for the setting's epsilon or with this noise."""
        return RunConfig(
            delta=self.delta,
            out="",
            data=str(self.file),
            classes=self.classes,
            records=self.records,
            model="softmax",
            method=method,
            parameters=tuple(parameters.items()),
            epsilon=self.epsilon if noise is None else None,
            noise=noise,
            batch=self.batch,
            epochs=self.epochs,
            optimizer="sgd",
            momentum=0.9,
            average=0.0,
            micro_batch=self.batch,
            eval_every=50,
        )


def image_head(bench: Bench, epochs: int) -> Setting:
    file = cifar10_features(note=bench.note)
    epochs = 1 if bench.quick else epochs
    return Setting(file=file, classes=10, records=50_000, batch=1000, epochs=epochs, epsilon=2.0, delta=1e-5)


def ways(bench: Bench, setting: Setting, clip: float, *, papers: tuple[float | None, float | None]) -> list[Row]:
    """DPSGD-GC, DiceSGD with three noise levels, and two-level clipping."""
    by_theorem = dataclasses.replace(setting.run("dicesgd", clip=clip, feedback_clip=clip), calibrate_to_claim=True)
    drawn = setting.run("dicesgd", setting.noise_of_algorithm_4(clip, clip), clip=clip, feedback_clip=clip)
    rest = LONGEST - clip
    tried = (
        ("DPSGD-GC", setting.run("dp-sgd", clip=clip), clip, papers[0], ""),
        ("DiceSGD, noise of Algorithm 4", drawn, clip, papers[1], "what the paper must have run; "),
        ("DiceSGD, noise of Theorem 3.8", by_theorem, clip, None, ""),
        ("DiceSGD, certified", setting.run("dicesgd", clip=clip, feedback_clip=clip), clip, None, ""),
        (
            "two-level",
            setting.run("two-level", clip=clip, residual=rest, kappa=KAPPA),
            felt(clip, rest),
            None,
            "ours, Cr = 2 - C cuts nothing off; ",
        ),
    )
    rows = []
    for name, config, unit, paper, note in tried:
        row = _best(bench, f"C = {clip:g}, {name}", config, unit, paper, note)
        rows.append(claiming(row, setting) if config is drawn else row)
    return rows


def _best(bench: Bench, setting: str, config: RunConfig, unit: float, paper: float | None, note: str) -> Row:
    """The best learning rate of a grid, in multiples of 1/`unit`."""
    rows = []
    for reach in QUICK_REACHES if bench.quick else REACHES:
        tried = dataclasses.replace(config, learning_rate=reach / unit)
        rows.append((accuracy_row(setting, bench.train_seeds(tried), paper=paper), reach))
    best, reach = max(rows, key=lambda pair: pair[0].ours or 0.0)
    return dataclasses.replace(best, note=f"{note}step size {reach:g}/C")


def claiming(row: Row, setting: Setting) -> Row:
    """Algorithm 4's noise claims the setting's epsilon, whatever Theorem 3.8 says of the same run."""
    return dataclasses.replace(row, claimed=setting.epsilon)


def summary(rows: list[Row]) -> str:
    def words(row: Row) -> str:
        return f"{row.setting} {row.ours or 0:.1f} % (certified {row.certified or math.inf:.3g})"

    return "; ".join(map(words, rows)) + "."
