"""The accuracy of a run on private records, by a charged noisy count."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from discreet.accounting.accountants import Certificate, certify
from discreet.accounting.calibration import calibrate_noise
from discreet.accounting.charges import Charge
from discreet.accounting.events import CountQuery
from discreet.accounting.ledger import Ledger
from discreet.core import check
from discreet.core.errors import RunStopped
from discreet.core.own_files import is_table, require_classes
from discreet.core.plain import digest
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.data import Task
from discreet.runs.budget import Budget
from discreet.runs.config import RunConfig
from discreet.runs.defaults import load_task, settle
from discreet.runs.folder import RunFolder
from discreet.runs.making import make_model
from discreet.runs.scoring import Scored, accuracy_of, right_predictions
from discreet.runs.training import load_config
from discreet.stages.delta import check_delta
from discreet.training.owners import Owners


@final
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The accuracy on private records: within two times `error` of the truth in 19 of 20 cases.

    unit  whom the certificate protects; if users are sampled, the accuracy is the mean over users
    """

    accuracy: float
    error: float
    certified: Certificate
    ledger: Path
    unit: str = "record"

    def to_json(self) -> dict[str, Any]:
        held = {"accuracy": self.accuracy, "error": self.error, "ledger": str(self.ledger)}
        protected = {} if self.unit == "record" else {"unit": self.unit}
        return {**held, **protected, "certified": self.certified.to_json()}


def evaluate(
    directory: str | Path,
    *,
    epsilon: float,
    delta: float,
    records: int,
    data: str | None = None,
    budget: str | Path | None = None,
    part: str | None = None,
    accept_large_delta: bool = False,
) -> Evaluation:
    """Count the right predictions of a run's model on the test records of `data`, with noise.

    records  a public number near the number of these records; of their owners, if the run sampled users
    data     a dataset, an npz file or a table, of which all rows count; None: the data of the run
    part     the part of the budget's records that they are; None: all records pay

    The charge is in a ledger in the run's directory, and in the budget file, before a record is read.
    """
    folder, config = RunFolder(directory), load_config(directory)
    require_classes(config.task, "an evaluation on private records")
    unit = config.protected()
    check.count("records is a public number, about the number of test records", records=records)
    check.require(folder.model.is_file(), "a trained model", f"no {folder.model}", "finish the run first")
    check_delta(delta, records, accepted=accept_large_delta)
    relation = Neighbouring(config.relation or Neighbouring.ADD_REMOVE)

    def counted(sigma: float) -> Charge:
        return Charge.of(CountQuery(sigma))

    sigma = calibrate_noise(counted, epsilon=epsilon, delta=delta, relation=relation)
    charge = counted(sigma)
    proven = certify(charge, delta=delta, relation=relation)
    path = _new_ledger(folder.directory)
    header = {"relation": str(relation), "delta": delta, "plan": digest(["evaluation", sigma]), "seeded": False}
    header |= {} if unit.is_record else {"unit": unit.name}
    with Ledger.create(path, header) as ledger:
        if budget is not None:
            entry, what = f"{ledger.digest}", f"evaluate {directory} on {data or config.data}"
            try:
                Budget(budget).charge(charge, entry=entry, what=what, part=part, unit=unit.name)
            except check.Refused:
                path.unlink()  # nothing was charged
                raise
        ledger.append(CountQuery(sigma), step=0)
    try:
        count = _count(config if data in (None, config.data) else _on(config, data), folder, sigma)
    except Exception as error:
        raise RunStopped(1, path, "the same command, which is charged again") from error
    accuracy, deviation = accuracy_of(count, records), unit.counted * sigma / records
    return Evaluation(accuracy=accuracy, error=deviation, certified=proven, ledger=path, unit=unit.name)


def _new_ledger(directory: Path) -> Path:
    """The ledger after the last one. Counting them would name one that exists, if an earlier one was removed."""
    taken = (file.stem.removeprefix("evaluation-") for file in directory.glob("evaluation-*.jsonl"))
    return directory / f"evaluation-{max((int(one) for one in taken if one.isdecimal()), default=-1) + 1}.jsonl"


def _on(config: RunConfig, data: str) -> RunConfig:
    """The settings of a run with the test records of other data: all rows of a table, which has no parts."""
    whole: dict[str, Any] = {"test": data, "hold_out": None} if is_table(data, config.label) else {}
    return dataclasses.replace(config, data=data, **whole)


def _count(config: RunConfig, folder: RunFolder, sigma: float) -> float:
    task = load_task(config)
    chosen, plan = settle(config, task)
    streams = Streams.from_os()
    model = make_model(chosen, task, plan, streams)
    model.load_state_dict(torch.load(folder.model, weights_only=True))
    right = right_predictions(model, task.test, chosen.device)
    return _scored(config, task).noisy_count(right, sigma, streams.noise)


def _scored(config: RunConfig, task: Task) -> Scored:
    """The test records, with their owners if the run protects users."""
    if config.unit is None:
        return Scored(task.test)
    remedy = f"add the column {config.unit!r} to the table of test records"
    check.require(task.test_owners is not None, "owners of the test records", "none", remedy)
    return Scored(task.test, Owners(task.test_owners or ()), config.protected())
