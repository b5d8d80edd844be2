"""`discreet schema`: draft a schema from public data."""

import json
from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core import check
from discreet.core.files import check_file, write_text


def schema(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A table of PUBLIC records.", show_default=False)],
    public: Annotated[bool, flag("You declare that no record of this file needs protection. Required.")] = False,
    out: Annotated[Path | None, flag("Write the schema here, e.g. schema.json (default: standard output).")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Draft a schema from public data: bounds and categories. Edit it before use."""
    expected = "--public, your word that no record of this file needs protection"
    remedy = "write the schema from public knowledge: bounds and categories of private records reveal them"
    check.require(public, expected, "none", remedy)
    if out is not None:
        check_file(out)
    from discreet.data import tables

    found = tables.draft_schema(tables.read(data))
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(column)}" for name, column in found.items())
    text = f"{{\n{lines}\n}}\n"
    if out is not None:
        write_text(out, text)
    if as_json:
        emit({"schema": found, "file": None if out is None else str(out)})
    elif out is None:
        print(text, end="")
    return 0
