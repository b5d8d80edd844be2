"""`discreet predict`: use the model of a finished run."""

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from discreet.cli import flags as shared
from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core import check
from discreet.core.files import check_file, write_text

DataArgument = Annotated[Path, typer.Argument(metavar="DATA", help="A .csv, .parquet or .npz.", show_default=False)]
RunFlag = Annotated[Path | None, flag("The directory of a finished run. Required.")]


def predict(
    data: DataArgument,
    run: RunFlag = None,
    out: Annotated[Path | None, flag("Write a CSV file here (default: standard output).")] = None,
    as_json: JsonFlag = False,
) -> int:
    """The prediction for every record of a file, with the probability of each class; costs no privacy."""
    shared.require_all(run=run)
    if out is not None:
        check.require(out.suffix == ".csv", "--out to end in .csv", str(out), "name a CSV file")
        check_file(out)
    from discreet.runs import predicting

    found = predicting.predict(Path(str(run)), data)
    if as_json:
        emit(found.to_json())
        return 0
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(found.header)
    writer.writerows(found.rows)
    if out is None:
        print(lines.getvalue(), end="")
    else:
        write_text(out, lines.getvalue())
    return 0
