"""`discreet methods`: every method, its guarantee and its flags."""

from __future__ import annotations

from discreet.cli import recipes
from discreet.cli.flags import JsonFlag
from discreet.cli.output import emit


def methods(as_json: JsonFlag = False) -> None:
    """Every method: its guarantee in words and its own parameters."""
    rows = [
        {
            "name": method.name,
            "certified": method.certified,
            "guarantee": method.guarantee,
            "summary": method.summary,
            "optimizer": "adam" if method.adam else "sgd",
            "parameters": [
                {"name": parameter.name, "flag": parameter.flag, "about": parameter.about}
                for parameter in recipes.parameters(method)
            ],
        }
        for method in recipes.METHODS.values()
    ]
    if as_json:
        emit({"methods": rows})
    else:
        from discreet.report import terminal

        terminal.show(terminal.methods_table(rows))
