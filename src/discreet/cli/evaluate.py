"""`discreet evaluate`: the accuracy of a run on private records."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli import flags as shared
from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core import check


def evaluate(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    epsilon: shared.EpsilonFlag = None,
    delta: shared.DeltaFlag = None,
    accept_delta: shared.AcceptDeltaFlag = False,
    records: Annotated[int | None, flag("Public number of test records, about.", "Data")] = None,
    data: Annotated[str | None, flag("Whose test records (default: those of the run's data).", "Data")] = None,
    budget: shared.BudgetFlag = None,
    part: Annotated[str | None, flag("The part of the budget's records that they are.", "Budget")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The accuracy of a run on private test records, by a charged noisy count."""
    from discreet.report import terminal
    from discreet.runs import evaluation

    check.require(part is None or budget is not None, "--budget with --part", "none", "name the budget file")
    found = evaluation.evaluate(
        directory,
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
    rows = (
        ("accuracy", f"{found.accuracy:.2%} ± {2 * found.error:.2%} (noise of the count)"),
        ("epsilon, certified", f"{found.certified.epsilon:.4g} at delta {found.certified.delta:g}"),
        ("ledger", str(found.ledger)),
    )
    terminal.show(terminal.plain_table("evaluation on private records", ("", ""), rows))
