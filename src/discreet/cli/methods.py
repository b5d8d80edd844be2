"""`discreet methods`: every method, its guarantee and its flags."""

from typing import Any

import typer

from discreet.cli import recipes
from discreet.cli.flags import JsonFlag, emit


def methods(as_json: JsonFlag = False) -> None:
    """Every method: its guarantee in words and its own parameters."""
    rows: list[dict[str, Any]] = [
        {
            "name": method.name,
            "certified": method.certified,
            "guarantee": method.guarantee,
            "summary": method.summary,
            "optimizer": "adam" if method.adam else "sgd",
            "parameters": [{"name": p.name, "flag": p.flag, "about": p.about} for p in recipes.parameters(method)],
        }
        for method in recipes.METHODS.values()
    ]
    if as_json:
        emit({"methods": rows})
        return
    for row in rows:  # plain text: importing rich takes long
        typer.secho(row["name"], bold=True)
        for line in (row["guarantee"], row["summary"], *(f"{p['flag']} ({p['about']})" for p in row["parameters"])):
            print(f"    {line}")
