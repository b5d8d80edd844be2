"""`discreet presets`: settings that need no tuning."""

from typing import Annotated

import typer

from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core.plain import plain
from discreet.runs.presets import PRESETS, Defaults, measured


def presets(
    data: Annotated[str | None, flag("Only the presets of this dataset.")] = None, as_json: JsonFlag = False
) -> None:
    """Settings that need no tuning, by dataset, and what they reached."""
    chosen = [preset for preset in PRESETS if data in (None, preset.data)]
    if as_json:
        emit({"presets": [{**plain(preset), "measured": measured(preset)} for preset in chosen]})
        return
    for preset in chosen:
        typer.secho(f"{preset.name} for {preset.data or 'records of your own'}", bold=True)
        print(f"    {preset.about}")
        for epsilon, known in preset.budgets:
            print(f"    from epsilon {epsilon:g}: {_settings(known)}")
        for row in measured(preset):
            runs = "1 run" if row["runs"] == 1 else f"mean of {row['runs']} runs"
            cost = f"{row['cpu_seconds']:.0f} CPU seconds, {row['peak_megabytes']:,} MB"
            print(f"    measured at epsilon {row['epsilon']:g}: {100 * row['accuracy']:.1f} % ({runs}), {cost}")


def _settings(known: Defaults) -> str:
    source = f" (statistics of {known.public_records})" if known.public_records else ""
    size = f"batch {known.batch}, {known.steps} steps" if known.batch else "batch and steps by the number of records"
    parts = [
        f"{' + '.join(known.features) or 'the records'}{source}",
        f"model {known.model}",
        size,
        f"clip {known.clip:g}",
        f"learning rate {known.reach:g}/clip, {known.schedule}",
    ]
    return ", ".join(parts)
