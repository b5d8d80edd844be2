"""`discreet presets`: settings that need no tuning."""

from typing import Annotated, Any

import typer

from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core.plain import plain
from discreet.runs.presets import PRESETS


def presets(
    data: Annotated[str | None, flag("Only the presets of this dataset.")] = None, as_json: JsonFlag = False
) -> None:
    """Settings that need no tuning, by dataset, and what they reached."""
    chosen = [preset for preset in PRESETS if data in (None, preset.data)]
    if as_json:
        rows: list[dict[str, Any]] = [plain(preset) for preset in chosen]
        emit({"presets": rows})
        return
    for preset in chosen:
        typer.secho(f"{preset.name} for {preset.data or 'any records'}", bold=True)
        print(f"    {preset.about}")
        for epsilon, known in preset.budgets:
            source = f" (statistics of {known.public_records})" if known.public_records else ""
            print(
                f"    from epsilon {epsilon:g}: {' + '.join(known.features) or 'records'}{source}, {known.model}, "
                f"batch {known.batch}, {known.steps} steps, clip {known.clip:g}, learning rate {known.reach:g}/clip, "
                f"{known.schedule}"
            )
