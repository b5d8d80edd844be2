"""`discreet schema`: draft a schema from public data, or pay for noisy bounds of private data."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.cli import flags as shared
from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core import check
from discreet.core.files import check_file, write_text


def schema(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A table.", show_default=False)],
    public: Annotated[bool, flag("You declare that no record of this file needs protection.")] = False,
    out: Annotated[Path | None, flag("Write the schema here, e.g. schema.json.")] = None,
    spend: Annotated[float | None, flag("Epsilon to pay for noisy bounds of private columns.", "Budget")] = None,
    numbers: Annotated[str | None, flag("With --spend: the columns of numbers, as a list a,b.", "Budget")] = None,
    delta: shared.DeltaFlag = None,
    records: Annotated[int | None, flag("With --spend: public number of records.", "Budget")] = None,
    budget: Annotated[Path | None, flag("With --spend: the budget file of the records.", "Budget")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Draft a schema: from public data for free, or noisy bounds of private columns, which are charged."""
    if spend is not None:
        check.require(not public, "--public or --spend", "both", "drop --spend: public records cost nothing")
        return _paid(data, spend, numbers, delta, records, budget, out, as_json)
    given = {"--numbers": numbers, "--delta": delta, "--records": records, "--budget": budget}
    extra = [name for name, value in given.items() if value is not None]
    check.require(not extra, "--spend with " + " and ".join(extra), "none", "give the epsilon to pay, or drop them")
    expected = "--public, your word that no record of this file needs protection, or --spend"
    remedy = "write the schema from public knowledge, or pay for noisy bounds, e.g. --spend 0.1: bounds reveal records"
    check.require(public, expected, "neither", remedy)
    if out is not None:
        check_file(out)
    from discreet.data import tables

    found = tables.draft_schema(tables.read(data))
    if out is not None:
        write_text(out, _written(found))
    if as_json:
        emit({"schema": found, "file": None if out is None else str(out)})
    elif out is None:
        print(_written(found), end="")
    return 0


def _paid(
    data: Path,
    spend: float,
    numbers: str | None,
    delta: float | None,
    records: int | None,
    budget: Path | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Noisy bounds; the ledger is beside the schema."""
    shared.require_all({"out": "schema.json"}, numbers=numbers, delta=delta, records=records, out=out)
    assert numbers is not None
    assert records is not None
    assert out is not None
    check_file(out)
    is_known, remedy = data.is_file(), "check the path"
    check.require(is_known, "a table (.csv, .parquet, .npz)", f"no file {data}", remedy)
    from discreet.report import terminal
    from discreet.runs import noisy_bounds

    found = noisy_bounds.find_bounds(
        data,
        [name.strip() for name in numbers.split(",")],
        epsilon=spend,
        delta=shared.required_delta(delta),
        records=records,
        ledger=out.with_suffix(".ledger.jsonl"),
        budget=budget,
    )
    write_text(out, _written(found.schema))
    if as_json:
        emit({**found.to_json(), "file": str(out)})
        return 0
    rows: list[tuple[str, ...]] = [
        (name, "{:g} to {:g}".format(*pair["bounds"])) for name, pair in found.schema.items()
    ]
    rows += [(name, "not found: too few records for this epsilon") for name in found.missing]
    proven = found.certified
    rows += [
        ("epsilon, certified", f"{proven.epsilon:.4g} at delta {proven.delta:g}, {proven.relation}"),
        ("ledger", str(found.ledger)),
        ("schema", f"{out}: add the other columns by hand, from public knowledge"),
    ]
    terminal.show(terminal.plain_table("noisy bounds of private columns", ("", ""), rows))
    return 0


def _written(found: dict[str, Any]) -> str:
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(column)}" for name, column in found.items())
    return f"{{\n{lines}\n}}\n"
