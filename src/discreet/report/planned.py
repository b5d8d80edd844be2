"""The planner's answer in the terminal and as a page."""

from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from discreet.core.files import write_text
from discreet.report import wording
from discreet.report.charts import Chart, Series, above_zero, save_both
from discreet.report.page import coordinates, drawn, filled
from discreet.report.terminal import plain_table
from discreet.runs.planning.own_loader import LOADER_WORDS
from discreet.runs.planning.planner import Answer, MethodPrice, Price
from discreet.runs.planning.step_cost import StepCost

_ELSEWHERE = Price(why="this method has other samplers; they are listed below the table")
LOADERS_TITLE = "your own loader beside Poisson sampling, at the same certificate"
LOADER_COLUMNS = ("batches", "method", "neighbours", "noise", "noise on the parameters")
UNKNOWN = "unknown: give --model (and --record-shape and --classes, or --data) to measure two steps on this machine"


def table(answer: Answer, trial: StepCost | None, micro_batch: int) -> RenderableType:
    of = answer.question
    names = _samplers(answer)
    title = (
        f"noise for epsilon {of.epsilon:g} at delta {of.delta:g}: {of.records:,} records, batch {of.batch}, "
        f"{wording.counted(of.epochs, 'epoch')}"
    )
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in answer.methods:
        alike.setdefault(tuple(map(noise, _prices(row, names))), []).append(row.name)
    rows = [("\n".join(methods), *prices) for prices, methods in alike.items()]
    batches = [
        (str(at.batch), str(at.steps), f"{at.noise + 5e-4:.3f}", f"{at.effective:.2e}", f"{at.path:.2e}")
        for at in answer.batches
    ]
    columns = ("batch", "steps", "noise", "noise / batch", "over the whole run")
    notes = [*advice(answer), *(f"{name}: {value}" for name, value in costs(answer, trial, micro_batch))]
    notes += [f"{row.name}: {row.price.why}" for row in answer.methods if row.price.noise is None]
    notes += returning(answer)
    return Group(
        plain_table(title, ("method", *(name.replace("-", "-\n", 1) for name in names)), rows),
        plain_table("batches, at the same number of epochs", columns, batches),
        plain_table(LOADERS_TITLE, LOADER_COLUMNS, loaders(answer)),
        *(Text(note) for note in notes),
    )


def advice(answer: Answer) -> list[str]:
    quiet, sensible = answer.quietest, answer.sensible
    return [
        f"Least noise on a step: batch {quiet.batch:,} ({quiet.effective:.2e} clipping norms on the mean gradient), "
        f"with {wording.counted(quiet.steps, 'step')}.",
        f"Sensible: batch {sensible.batch:,}, the smallest one whose noise over the whole run is within 25 % of the "
        f"least, with {wording.counted(sensible.steps, 'step')}.",
    ]


def loaders(answer: Answer) -> list[tuple[str, str, str, str, str]]:
    """Each way to get batches with its price, beside Poisson sampling."""
    return [
        (
            LOADER_WORDS[row.sampling],
            row.method,
            row.relation,
            noise(Price(noise=row.noise)),
            "-" if row.times is None else f"{row.times:.2g} times",
        )
        for row in answer.loaders
    ]


def costs(answer: Answer, trial: StepCost | None, micro_batch: int) -> list[tuple[str, str]]:
    of = answer.question
    if trial is None:
        return [("time", UNKNOWN), ("memory", UNKNOWN)]
    seconds = trial.seconds(records=of.records, epochs=of.epochs)
    per_step = trial.seconds_per_record * of.batch
    time = (
        f"about {_duration(seconds)} for the run, {_duration(per_step)} a step: DP-SGD on {trial.model}, "
        f"measured here over two steps on random data with {wording.counted(trial.threads, 'thread')}"
    )
    memory = (
        f"about {trial.memory(micro_batch=micro_batch) / 1e6:,.0f} MB without the data and PyTorch itself: an "
        f"estimate from {trial.parameters:,} parameters and a micro-batch of {micro_batch}"
    )
    return [("time", time), ("memory", memory)]


def noise(price: Price) -> str:
    """The noise, rounded up, or a dash."""
    if price.noise is None:
        return "-"
    return f"{price.noise + 5e-4:.3f}" if price.noise < 1000 else f"{price.noise * 1.005:.2e}"


def charts(answer: Answer) -> tuple[Chart, ...]:
    """Noise against epsilon, one line for methods of equal cost; noise against the batch size."""
    lists: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for row in answer.methods:
        if row.curve:
            lists.setdefault(row.curve, []).append(row.name)
    lines = tuple(Series.exact(_together(names), style, curve) for style, (curve, names) in enumerate(lists.items()))
    step = Series.exact("on a step's mean gradient", 0, [(at.batch, at.effective) for at in answer.batches])
    whole = Series.exact("over the whole run", 1, [(at.batch, at.path) for at in answer.batches])
    unit = "noise, in units of the clip"
    names = (
        ("noise-by-epsilon", "Noise against epsilon", "certified epsilon", "ε", lines, "noise multiplier"),
        ("noise-by-batch", "Noise against batch, at the same epochs", "batch", "batch", (step, whole), unit),
    )
    return tuple(
        Chart(key, title, x_label, x_short, series, above_zero(series), y_label, log_x=True, log_y=True)
        for key, title, x_label, x_short, series, y_label in names
    )


def render(answer: Answer, trial: StepCost | None, micro_batch: int, command: str) -> str:
    shown = charts(answer)
    names = _samplers(answer)
    return filled(
        "plan.html",
        title=f"A plan for {answer.question.records:,} records",
        of=answer.question,
        answer=answer,
        first=next(row for row in answer.methods if row.price.noise is not None),
        delta=wording.power(answer.question.delta),
        names=names,
        rows=[(row, _prices(row, names)) for row in answer.methods],
        noise=noise,
        advice=[*advice(answer), *returning(answer)],
        loaders=loaders(answer),
        loader_columns=LOADER_COLUMNS,
        costs=costs(answer, trial, micro_batch),
        charts=[drawn(chart, named=True) for chart in shown],
        data={chart.key: coordinates(chart) for chart in shown},
        command=command,
    )


def write(answer: Answer, trial: StepCost | None, micro_batch: int, command: str, page: Path) -> tuple[Path, ...]:
    """The page, and its charts as SVG and PNG files beside it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, render(answer, trial, micro_batch, command))
    folder = page.parent / f"{page.stem}-figures"
    return (page, *(path for chart in charts(answer) for path in save_both(chart, folder)))


def _samplers(answer: Answer) -> list[str]:
    return [name for name, _ in next((row.samplers for row in answer.methods if row.samplers), ())]


def _prices(row: MethodPrice, names: list[str]) -> list[Price]:
    """The price under each sampler; a method that has none is shown with its own."""
    priced = dict(row.samplers)
    return [priced.get(name, _ELSEWHERE) for name in names] if priced else [row.price] * len(names)


def returning(answer: Answer) -> list[str]:
    """The prices of methods whose samplers are not the columns of the table, a line each."""
    names = set(_samplers(answer))
    return [
        f"{row.name}: noise " + ", ".join(f"{noise(price)} {name} ({price.relation})" for name, price in own)
        for row in answer.methods
        if (own := [(name, price) for name, price in row.samplers if name not in names and price.noise is not None])
    ]


def _together(names: list[str]) -> str:
    """The name of methods of equal cost.

    >>> _together(["dp-sgd", "psac", "auto-s"])
    'dp-sgd and two others'
    """
    rest = len(names) - 1
    return names[0] if rest == 0 else f"{names[0]} and {wording.counted(rest, 'other')}"


def _duration(seconds: float) -> str:
    """
    >>> _duration(0.25), _duration(50.0), _duration(600.0), _duration(20_000.0)
    ('250 ms', '50 s', '10 min', '5.6 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
