"""`discreet predict` and `discreet evaluate`: use the model of a finished run."""

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
    """The label and the probability of each class for every record of a file; costs no privacy."""
    shared.require_all(run=run)
    if out is not None:
        check.require(out.suffix == ".csv", "--out to end in .csv", str(out), "name a CSV file")
        check_file(out)
    from discreet.runs import predicting

    found = predicting.predict(Path(str(run)), data)
    rows = zip(found.labels, found.probabilities.tolist(), strict=True)
    if as_json:
        emit({"classes": list(found.classes), "predictions": [{"label": label, "p": p} for label, p in rows]})
        return 0
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(["label", *(f"p({name})" for name in found.classes)])
    writer.writerows([label, *(f"{value:.6f}" for value in p)] for label, p in rows)
    if out is None:
        print(lines.getvalue(), end="")
    else:
        write_text(out, lines.getvalue())
    return 0


def evaluate(data: DataArgument, run: RunFlag = None, as_json: JsonFlag = False) -> int:
    """Accuracy, AUC, F1 and calibration on records with known labels, which no epsilon protects."""
    shared.require_all(run=run)
    from discreet.runs import predicting

    found = predicting.evaluate(Path(str(run)), data)
    if as_json:
        emit(found.to_json())
        return 0
    from discreet.report import terminal

    auc = "not defined: a class is missing" if found.auc is None else f"{found.auc:.3f}"
    rows = [
        ("accuracy", f"{found.accuracy:.2%}", f"the most frequent class: {found.majority:.2%}"),
        ("AUC", auc, "area under the ROC curve"),
        ("F1", f"{found.f1:.3f}", "mean over the classes"),
        ("log loss", f"{found.log_loss:.3f}", "smaller is better"),
        ("calibration error", f"{found.calibration:.3f}", "confidence against accuracy, ten bins"),
    ]
    title = f"{run} on {data}: {found.records:,} records, which no epsilon protects"
    terminal.show(terminal.plain_table(title, ("measure", "value", ""), rows))
    return 0
