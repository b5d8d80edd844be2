"""`discreet evaluate`: measure a run on records that need no protection, or on private ones, which is charged."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli import flags as shared
from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core import check


def evaluate(
    place: Annotated[
        Path, typer.Argument(metavar="DIRECTORY|FILE", help="A run, or with --run a file to measure it on.")
    ],
    run: Annotated[Path | None, flag("The run, if a file of records is named that need no protection.")] = None,
    epsilon: shared.EpsilonFlag = None,
    delta: shared.DeltaFlag = None,
    accept_delta: shared.AcceptDeltaFlag = False,
    records: Annotated[int | None, flag("Public number of test records, about.", "Data")] = None,
    data: Annotated[str | None, flag("Whose test records (default: those of the run's data).", "Data")] = None,
    budget: shared.BudgetFlag = None,
    part: Annotated[str | None, flag("The part of the budget's records that they are.", "Budget")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a run: on records that need no protection, or on private ones by a charged noisy count."""
    if run is not None:
        given = {"--epsilon": epsilon, "--delta": delta, "--records": records, "--data": data, "--budget": budget}
        extra = [name for name, value in given.items() if value is not None]
        remedy = "drop them: nothing is charged for records that need no protection"
        check.require(not extra, "--run and a file alone", " and ".join(extra), remedy)
        _unprotected(run, place, as_json)
        return
    remedy = "name the run's directory, or the run with --run and a file of records that need no protection"
    check.require(place.is_dir(), "the directory of a run", str(place), remedy)
    from discreet.report import terminal
    from discreet.runs import evaluation

    check.require(part is None or budget is not None, "--budget with --part", "none", "name the budget file")
    found = evaluation.evaluate(
        place,
        epsilon=shared.required_epsilon(epsilon),
        delta=shared.required_delta(delta),
        records=shared.required("records", records, "give a public number near that of the test records"),
        data=data,
        budget=budget,
        part=part,
        accept_large_delta=accept_delta,
    )
    if as_json:
        emit(found.to_json())
        return
    whom = found.certified.relation if found.unit == "record" else f"{found.certified.relation} of one {found.unit}"
    rows = (
        ("accuracy", f"{found.accuracy:.2%} ± {2 * found.error:.2%} (noise of the count)"),
        ("epsilon, certified", f"{found.certified.epsilon:.4g} at delta {found.certified.delta:g}, {whom}"),
        ("ledger", str(found.ledger)),
    )
    terminal.show(terminal.plain_table("evaluation on private records", ("", ""), rows))


def _unprotected(run: Path, data: Path, as_json: bool) -> None:
    """Scores and errors on records with known labels, which no epsilon protects."""
    from discreet.runs import predicting

    found = predicting.evaluate(run, data)
    if as_json:
        emit(found.to_json())
        return
    from discreet.report import terminal

    title = f"{run} on {data}: {found.records:,} records, which no epsilon protects"
    terminal.show(terminal.plain_table(title, ("measure", "value", ""), found.rows))
