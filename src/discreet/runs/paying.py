"""Charging the budget file of a dataset before its records are read."""

import os
from pathlib import Path

from discreet.accounting.charges import Charge
from discreet.core import check
from discreet.core.files import write_json
from discreet.core.relation import Neighbouring
from discreet.runs.budget import Budget
from discreet.runs.folder import read_json

RECEIPT = "budget.json"  # in the directory of a run: which entry of which budget paid for it


def is_paid(budget: str | Path, directory: Path) -> bool:
    """Whether the budget file holds a charge for this directory."""
    receipt = directory / RECEIPT
    return receipt.exists() and Budget(budget).holds(read_json(receipt)["entry"])


def pay(
    budget: str | Path, directory: Path, charge: Charge, relation: Neighbouring, *, what: str, unit: str = "record"
) -> None:
    """Charge a run to the budget file, once for its directory. Call it before the records are read.

    The entry's name is drawn when the directory is first paid for. So a run that is resumed is not charged again, and a
    directory that was deleted and begun anew is.
    """
    file, receipt = Budget(budget), directory / RECEIPT
    stated = file.read().limit.relation
    remedy = "an epsilon holds for one relation: use another sampler or another budget"
    check.require(relation is stated, f"relation {stated}, that of {budget}", f"{relation}", remedy)
    if not receipt.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_json(receipt, {"budget": str(Path(budget).absolute()), "entry": os.urandom(16).hex()})
    file.charge(charge, entry=read_json(receipt)["entry"], what=what, unit=unit)
