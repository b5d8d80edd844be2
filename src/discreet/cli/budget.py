"""`discreet budget`: the budget file of a dataset."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli import flags as shared
from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core import check
from discreet.core.files import check_file
from discreet.core.relation import Neighbouring
from discreet.runs.budget import Budget, BudgetLimit
from discreet.runs.config import noun_of


def budget(
    budget: Annotated[Path, typer.Argument(help="The budget file, one for each dataset.", show_default=False)],
    epsilon: shared.EpsilonFlag = None,
    delta: shared.DeltaFlag = None,
    relation: shared.RelationFlag = None,
    unit: Annotated[
        str | None, flag("The column of owners, if the limit protects them and not single records.", "Guarantee")
    ] = None,
    data: Annotated[str, typer.Option(help="The records in words, for whoever reads the file.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Make the budget file of a dataset, or show what is left of it."""
    if epsilon is not None or delta is not None:
        check_file(budget)
        limit = BudgetLimit(
            epsilon=shared.required_epsilon(epsilon),
            delta=shared.required_delta(delta),
            relation=relation or Neighbouring.ADD_REMOVE,
            unit="record" if unit is None else noun_of(unit),
        )
        Budget.create(budget, limit, data=data)
    else:
        given = data or relation or unit
        check.require(not given, "--epsilon and --delta with a new file", "neither", "give the limit of these records")
    state = Budget(budget).read()
    if as_json:
        entries = [{"what": entry.what, "part": entry.part} for entry in state.entries]
        limit = state.limit
        held = {"epsilon": limit.epsilon, "delta": limit.delta, "relation": str(limit.relation)}
        held |= {} if limit.unit == "record" else {"unit": limit.unit}
        emit({**held, "data": state.data, "spent": state.spent, "left": state.left, "entries": entries})
        return
    from discreet.report import terminal

    terminal.show(terminal.budget_table(str(budget), state))
