"""Settings that work without tuning: the usual ones of each dataset, and presets by name and budget.

All were chosen on public benchmarks, so they cost no privacy.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

from discreet.core import check
from discreet.core.own_files import is_table

if TYPE_CHECKING:
    from discreet.runs.comparison.compare import CompareSettings
    from discreet.runs.config import RunConfig


@final
@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Settings that are used where the user gives none.

    features        public features in place of the records, by name
    public_records  the dataset that their statistics come from
    reach           learning rate times the bound on a record's gradient. SGD's learning rate is reach / bound, so that
                    methods with different bounds take steps of the same size
    schedule        how the learning rate falls: constant, linear or cosine
    average         decay of the average of the parameters; 0: no average
    """

    model: str
    batch: int
    features: tuple[str, ...] = ()
    public_records: str | None = None
    epochs: int | None = None
    steps: int | None = None
    clip: float = 1.0
    reach: float = 1.0
    momentum: float = 0.0
    adam_rate: float = 0.002
    schedule: str = "constant"
    average: float = 0.9


@final
@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings for one dataset, or for one kind of records, at every budget.

    name     what `--preset` takes
    data     the dataset; empty: any records of this kind
    budgets  (epsilon, settings), in rising order
    slower   for any records: epsilon times records for each unit of reach, which bounds it where noise is large
    """

    name: str
    data: str
    about: str
    budgets: tuple[tuple[float, Defaults], ...]
    slower: float = 0.0

    def at(self, epsilon: float) -> Defaults:
        """The settings of the largest budget that is not above `epsilon`, otherwise those of the smallest."""
        fitting = [settings for budget, settings in self.budgets if budget <= epsilon]
        return fitting[-1] if fitting else self.budgets[0][1]


_ANY: Final = Defaults(model="mlp", batch=256, epochs=20)
_GREY: Final = Defaults(model="cnn-small", batch=2048, epochs=30, clip=0.1, reach=0.4, momentum=0.9, average=0.98)

DEFAULTS: Final = MappingProxyType(
    {
        "digits": Defaults(model="cnn-digits", batch=256, steps=300, clip=0.2, reach=0.8, adam_rate=0.01, average=0.97),
        "mnist": _GREY,
        "fashion-mnist": _GREY,
        "cifar10": Defaults(model="cnn-550k", batch=1024, epochs=30, clip=0.1, reach=0.2, momentum=0.9, average=0.98),
        "adult": Defaults(model="logistic", batch=1024, epochs=10, clip=1.0, reach=1.0, average=0.95),
        "reviews": Defaults(
            model="head", features=("minilm",), batch=2048, steps=100, clip=0.3, reach=6.0, momentum=0.9, average=0.0
        ),
    }
)


def _head(
    *features: str,
    clip: float,
    reach: float,
    batch: int = 8192,
    steps: int = 240,
    public: str | None = None,
    adam_rate: float = 0.002,
    average: float = 0.0,
) -> Defaults:
    """A linear head on public features, with momentum and a learning rate that falls to zero."""
    return Defaults(
        model="head",
        features=features,
        public_records=public,
        batch=batch,
        steps=steps,
        clip=clip,
        reach=reach,
        momentum=0.9,
        adam_rate=adam_rate,
        schedule="linear",
        average=average,
    )


SMALL: Final = 5000  # records below which a batch is a third of them instead of an eighth
LONG: Final = 40_000  # records from which a head is trained for more steps
TABLE_CLIP: Final = 0.3
TABLE_REACH: Final = 30.0
HEAD_SLOWER: Final = 1700.0  # of a head on features of images, as `usual_reach` takes it
TABLE_SLOWER: Final = 1000.0
NUMBER_SLOWER: Final = 3000.0  # times the number of columns
NUMBER_CLIP: Final = 4.0  # of the squared error, whose gradients are larger
NUMBER_REACH: Final = 5.2  # divided by the number of columns, which bounds the curvature of the squared error

_BOTH: Final = ("scattering", "patches")

PRESETS: Final = (
    Preset(
        name="best",
        data="fashion-mnist",
        about="linear head on scattering coefficients and patches",
        budgets=(
            (1.0, _head(*_BOTH, clip=0.05, reach=25.0, public="cifar10", adam_rate=0.2)),
            (3.0, _head(*_BOTH, clip=0.1, reach=35.0, public="cifar10", adam_rate=0.2)),
        ),
    ),
    Preset(
        name="fast",
        data="fashion-mnist",
        about="linear head on scattering coefficients",
        budgets=(
            (1.0, _head("scattering", clip=0.05, reach=25.0, public="cifar10", adam_rate=0.2)),
            (3.0, _head("scattering", clip=0.1, reach=35.0, public="cifar10", adam_rate=0.2)),
        ),
    ),
    Preset(
        name="best",
        data="mnist",
        about="linear head on scattering coefficients",
        budgets=((1.0, _head("scattering", clip=0.05, reach=30.0, public="cifar10", adam_rate=0.2)),),
    ),
    Preset(
        name="best",
        data="cifar10",
        about="linear head on a network trained on ImageNet",
        budgets=((2.0, _head("efficientnet-lite2", clip=0.1, reach=40.0, steps=160)),),
    ),
    Preset(
        name="best",
        data="adult",
        about="linear head on categories and public bins",
        budgets=((1.0, _head("bins", clip=0.3, reach=30.0, batch=4096, steps=100)),),
    ),
    Preset(
        name="best",
        data="reviews",
        about="linear head on a sentence encoder",
        budgets=((3.0, _head("minilm", clip=0.3, reach=12.0, batch=4096, steps=100)),),
    ),
    Preset(
        name="best",
        data="digits",
        about="linear head on scattering coefficients",
        budgets=((3.0, _head("scattering", clip=0.3, reach=2.5, batch=512, steps=100, public="mnist")),),
    ),
    Preset(
        name="image",
        data="",
        about="images: linear head on scattering coefficients",
        budgets=(
            (1.0, _head("scattering", clip=0.05, reach=25.0, batch=0, public="cifar10", adam_rate=0.2)),
            (3.0, _head("scattering", clip=0.1, reach=35.0, batch=0, public="cifar10", adam_rate=0.2)),
        ),
        slower=HEAD_SLOWER,
    ),
    Preset(
        name="photo",
        data="",
        about="photographs: linear head on a network trained on ImageNet",
        budgets=((1.0, _head("efficientnet-lite2", clip=0.1, reach=40.0, batch=0)),),
        slower=HEAD_SLOWER,
    ),
    Preset(
        name="text",
        data="",
        about="texts as bytes: linear head on a sentence encoder",
        budgets=((1.0, _head("minilm", clip=0.3, reach=12.0, batch=0, steps=100)),),
    ),
    Preset(
        name="table",
        data="",
        about="columns from 0 to 1: linear head",
        budgets=((1.0, _head(clip=0.3, reach=12.0, batch=0, steps=100)),),
    ),
)


def presets_of(data: str) -> Iterator[Preset]:
    """The presets for this dataset, then those for any records."""
    yield from (preset for preset in PRESETS if preset.data == data)
    yield from (preset for preset in PRESETS if not preset.data)


def measured(preset: Preset) -> list[dict[str, Any]]:
    """What a preset reached on its dataset, by budget: accuracy, runs, CPU seconds and peak memory."""
    file = resources.files("discreet.runs").joinpath("measured.json")
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return [row for row in rows if (row["data"], row["preset"]) == (preset.data, preset.name)]


def defaults_for(data: str) -> Defaults:
    return DEFAULTS.get(data, _ANY)


def usual_size(records: int, *, share: float = 1 / 8, steps: int = 100, more_steps: int = 240) -> tuple[int, int]:
    """Batch and steps of a linear model on this many records; `share` is the batch as a part of many records.

    >>> usual_size(50_000), usual_size(1500)
    ((6250, 240), (500, 100))
    """
    part = 1 / 3 if records < SMALL else share
    return max(1, min(records, round(part * records))), more_steps if records >= LONG else steps


def usual_reach(reach: float, epsilon: float | None, records: int, slower: float) -> float:
    """The reach for a budget: smaller where noise is large, that is, for few records or a small epsilon.

    >>> usual_reach(35.0, 3.0, 60_000, HEAD_SLOWER), usual_reach(35.0, 3.0, 1700, HEAD_SLOWER)
    (35.0, 3.0)
    """
    return min(reach, epsilon * records / slower) if slower and epsilon is not None else reach


def _own_table(settings: RunConfig | CompareSettings) -> Defaults:
    """The settings of a linear model on a table of the user."""
    if settings.records is None:
        check.refuse("the public number of records of a table", "none", "give records=, --records: about its size")
    batch, steps = usual_size(settings.records)
    if settings.task == "regression":
        columns = max(1, len(json.loads(str(settings.schema))) - 1)
        reach = usual_reach(NUMBER_REACH, settings.epsilon, settings.records, NUMBER_SLOWER) / columns
        return _head(clip=NUMBER_CLIP, reach=reach, batch=batch, steps=steps)
    reach = usual_reach(TABLE_REACH, settings.epsilon, settings.records, TABLE_SLOWER)
    return _head(clip=TABLE_CLIP, reach=reach, batch=batch, steps=steps)


def usual(settings: RunConfig | CompareSettings) -> Defaults:
    """The settings that a run uses where the user gives none: those of its preset, or of its data."""
    if settings.preset is None:
        return _own_table(settings) if is_table(settings.data, settings.label) else defaults_for(settings.data)
    known = {preset.name: preset for preset in presets_of(settings.data)}
    expected = f"a preset for {settings.data} ({', '.join(known)})"
    check.require(settings.preset in known, expected, repr(settings.preset), "see `discreet presets`")
    preset = known[settings.preset]
    if settings.epsilon is None:
        check.refuse("epsilon with a preset", "noise", "give the budget: a preset has settings for it")
    chosen = preset.at(settings.epsilon)
    if preset.data:
        return chosen
    from discreet.data import published_records  # imports torch

    records = published_records(settings.data) or settings.records
    if records is None:
        check.refuse("the public number of records with this preset", "none", "give records=, --records")
    batch, steps = usual_size(records)
    reach = usual_reach(chosen.reach, settings.epsilon, records, preset.slower)
    return dataclasses.replace(chosen, batch=batch, steps=steps, reach=reach)
