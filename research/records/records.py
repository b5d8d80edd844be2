"""The tasks of the records: data, preset and budget, beside what was published for them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final, final

DELTA: Final = 1e-5
RUNS: Final = 5
BUDGETS: Final = (1.0, 2.0, 3.0, 8.0)


@final
@dataclass(frozen=True, kw_only=True)
class Published:
    """A result of a paper. accounting: how its epsilon was found. extra: public data or weights beside the records."""

    source: str
    epsilon: float
    accuracy: float
    accounting: str
    extra: str


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """A task with the command that repeats it.

    target  the accuracy to reach
    beyond  a further goal, if there is one
    grid    (clip, learning rate times clip) that were tried on a split of the training records; the preset has the best
    before  how many other settings were tried on such a split before
    revision  raised when the features change behind their name, so that earlier trials and runs are dropped
    auc     whether the area under the ROC curve is measured, too
    micro_batch  records in memory at once, where another number than the usual one is faster
    """

    data: str
    preset: str
    epsilon: float
    target: float
    grid: tuple[tuple[float, float], ...]
    before: int = 0
    revision: int = 1
    auc: bool = False
    micro_batch: int | None = None
    published: tuple[Published, ...] = ()
    beyond: float | None = None

    @property
    def name(self) -> str:
        return f"{self.data}-{self.epsilon:g}"

    def command(self, out: str = "runs/record") -> str:
        faster = f" --micro-batch {self.micro_batch}" if self.micro_batch else ""
        return (
            f"discreet train --data {self.data} --preset {self.preset} --epsilon {self.epsilon:g} --delta {DELTA:g}"
            f"{faster} --out {out}"
        )


def sweep_of(record: Record) -> tuple[Record, ...]:
    """The same preset at the other budgets, for `discreet presets`."""
    known = {one.name for one in RECORDS}
    every = (dataclasses.replace(record, epsilon=epsilon, published=()) for epsilon in BUDGETS)
    return tuple(one for one in every if one.name not in known)


_SCATTERNET: Final = "ScatterNet (Tramer and Boneh 2021), linear model or CNN on scattering coefficients"
_RDP: Final = "RDP, Poisson sampling assumed"

RECORDS: Final = (
    Record(
        data="fashion-mnist",
        preset="best",
        epsilon=1.0,
        grid=((0.05, 25.0), (0.05, 12.0), (0.05, 50.0)),
        target=88.6,
        beyond=89.5,
        micro_batch=1024,
    ),
    Record(
        data="fashion-mnist",
        preset="best",
        epsilon=3.0,
        grid=((0.1, 70.0), (0.1, 35.0), (0.1, 140.0)),
        target=89.9,
        beyond=91.0,
        micro_batch=1024,
        published=(Published(source=_SCATTERNET, epsilon=3.0, accuracy=89.7, accounting=_RDP, extra="none"),),
    ),
    Record(
        data="mnist",
        preset="best",
        epsilon=3.0,
        grid=((0.05, 30.0), (0.05, 12.0)),
        before=4,
        target=98.3,
        beyond=99.0,
        published=(Published(source=_SCATTERNET, epsilon=3.0, accuracy=98.7, accounting=_RDP, extra="none"),),
    ),
    Record(
        data="cifar10",
        preset="best",
        epsilon=2.0,
        grid=((0.1, 40.0), (0.1, 16.0), (0.1, 100.0), (0.3, 40.0)),
        before=7,
        revision=2,
        target=86.2,
        beyond=88.0,
        published=(
            Published(
                source="SimCLR v2 features (Tramer and Boneh 2021)",
                epsilon=2.0,
                accuracy=92.4,
                accounting=_RDP,
                extra="ImageNet without labels",
            ),
            Published(
                source="ResNeXt-29 features (Tramer and Boneh 2021)",
                epsilon=2.0,
                accuracy=79.6,
                accounting=_RDP,
                extra="CIFAR-100",
            ),
            Published(source=_SCATTERNET, epsilon=3.0, accuracy=69.3, accounting=_RDP, extra="none"),
            Published(
                source="Wide ResNet from scratch (De et al. 2022)",
                epsilon=8.0,
                accuracy=81.4,
                accounting="as reported",
                extra="none",
            ),
        ),
    ),
    Record(
        data="adult",
        preset="best",
        epsilon=1.0,
        grid=((0.3, 12.0), (0.3, 4.8), (0.3, 30.0), (0.9, 12.0)),
        target=85.0,
        auc=True,
    ),
    Record(
        data="reviews",
        preset="best",
        epsilon=3.0,
        grid=((0.3, 12.0), (0.3, 4.8), (0.3, 30.0), (0.9, 12.0)),
        target=85.4,
    ),
    Record(
        data="digits",
        preset="best",
        epsilon=3.0,
        grid=((0.1, 2.5), (0.1, 1.0), (0.1, 6.25), (0.3, 2.5)),
        before=27,
        target=94.5,
    ),
)
