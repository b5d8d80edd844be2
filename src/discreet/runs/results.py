"""The progress and the result of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from discreet.accounting.accountants import Certificate
from discreet.core.plain import from_plain, plain
from discreet.core.world import World
from discreet.data.features.store import Progress
from discreet.training.spending import Spent

CurvePoint = tuple[int, float, float]  # (step, test accuracy, certified epsilon so far)


@final
@dataclass(frozen=True, kw_only=True)
class RunOutline:
    """What a run is about to do, in public values; `begun` steps were run before."""

    method: str
    data: str
    model: str
    parameters: int
    steps: int
    begun: int
    plan: str
    epsilon: float


@final
@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """Progress after a step. Accuracies (on unprotected data) are set at evaluations, epsilon then and now and again.

    seeded  the run is not private: `epsilon` is what it would have with secret randomness
    stage   what is counted: steps of training, or records whose features are computed
    measure what accuracies are: accuracy, R² of a regression, label accuracy of several labels
    """

    step: int
    steps: int
    accuracy: float | None = None
    averaged_accuracy: float | None = None
    measure: str = "accuracy"
    epsilon: float | None = None
    seeded: bool = False
    stage: str = "step"


@final
@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The outcome of a run; every value is public.

    accuracy, averaged_accuracy  of the last parameters and of their average, on the unprotected test records
    measure                      what these are: accuracy, R² of a regression, label accuracy of several labels
    scores                       all scores on the test records by name, where there are several
    steps, lost                  steps charged, and how many of them a crash lost
    curve                        (step, accuracy, epsilon) at each evaluation, of the average if there is one
    """

    method: str
    data: str
    accuracy: float
    averaged_accuracy: float | None
    spent: Spent
    seconds: float
    steps: int
    lost: int
    resumes: int
    curve: tuple[CurvePoint, ...]
    statement: str
    directory: Path
    measure: str = "accuracy"
    scores: tuple[tuple[str, float], ...] = ()

    @property
    def test_accuracy(self) -> float:
        """The accuracy of the weights in model.pt: the average where there is one."""
        return self.accuracy if self.averaged_accuracy is None else self.averaged_accuracy

    def to_json(self) -> dict[str, Any]:
        order = ("method", "data", "test_accuracy", "accuracy", "averaged_accuracy", "spent", "seconds", "steps")
        held = {name: getattr(self, name) for name in (*order, "lost", "resumes", "curve")}
        scores = {"measure": self.measure, "scores": dict(self.scores)} if self.measure != "accuracy" else {}
        return {**held, **scores, "spent": self.spent.to_json(), "curve": plain(self.curve)}


def result_from_json(body: dict[str, Any], *, directory: Path, statement: str) -> RunResult:
    held = body["spent"]
    spent = Spent(
        certified=from_plain(Certificate, held["certified"]),
        claimed=from_plain(float | None, held["claimed"]),
        steps=held["steps"],
        statement=held["randomness"],
        warnings=tuple(held.get("warnings", ())),
        unit=held.get("unit", "record"),
        fixed_rows=held.get("fixed_rows"),
    )
    curve = from_plain(tuple[CurvePoint, ...], body["curve"])
    names = ("method", "data", "accuracy", "averaged_accuracy", "seconds", "steps", "lost", "resumes")
    values = {name: body[name] for name in names}
    values |= {"measure": body.get("measure", "accuracy"), "scores": tuple(body.get("scores", {}).items())}
    return RunResult(**values, spent=spent, curve=curve, statement=statement, directory=directory)


def curve_of(metrics: list[dict[str, Any]]) -> tuple[CurvePoint, ...]:
    """One point for each evaluated step; the latest evaluation of a step counts."""
    points = {}
    for values in metrics:
        step, averaged = values["step"], values["test_accuracy_averaged"]
        points[step] = step, values["test_accuracy"] if averaged is None else averaged, float(values["epsilon"])
    return tuple(points[step] for step in sorted(points))


Listener = Callable[[RunProgress], None]


def features_progress(listener: Listener | None) -> Progress | None:
    """Tells the listener of a run how far its public features are."""
    if listener is None:
        return None
    return lambda name, done, total: listener(RunProgress(step=done, steps=total, stage=f"features {name}, record"))


def known_to_all(world: World, make: Callable[[], RunResult]) -> RunResult:
    """The result that the first process makes, in all of them."""
    made = make() if world.is_first else None
    told = world.from_first(lambda: None if made is None else [made.to_json(), str(made.directory), made.statement])
    return made or result_from_json(told[0], directory=Path(told[1]), statement=told[2])
