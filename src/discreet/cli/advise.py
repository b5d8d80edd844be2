"""`discreet advise`: settings for a budget and a number of records."""

from dataclasses import dataclass
from typing import Annotated, final

from discreet.cli import flags as shared
from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core import check
from discreet.runs.planning import advisor
from discreet.runs.planning.advisor import KINDS, RULES, Wanted
from discreet.runs.planning.step_cost import StepCost, measure

_KINDS = f"{', '.join(RULES)}, or a dataset: {', '.join(KINDS)}"


@final
@dataclass(frozen=True, kw_only=True)
class AdviceFlags:
    """The public numbers, and what is to be trained."""

    records: Annotated[int | None, flag("Public number of records. Required.")] = None
    epsilon: shared.EpsilonFlag = None
    delta: Annotated[float | None, flag("If it is fixed already.", "Budget")] = None
    data: Annotated[str | None, flag(f"The kind of records: {_KINDS} (default: network).", "Model")] = None
    model: Annotated[str | None, flag("A model of ours: its step is measured on random data.", "Model")] = None
    parameters: Annotated[int | None, flag("Trainable parameters of your own network.", "Model")] = None
    users: Annotated[int | None, flag("Public number of users, to protect them.", "Guarantee")] = None
    per_user: Annotated[int | None, flag("Most records of one user that are used.", "Guarantee")] = None
    minutes: Annotated[float | None, flag("The time that training may take; needs --model.", "Model")] = None


def advise(flags: AdviceFlags, as_json: JsonFlag = False) -> None:
    """What to do with a budget: batch, steps, clip, learning rate, the reason for each, and the command."""
    shared.require_all(records=flags.records, epsilon=flags.epsilon)
    assert flags.records is not None
    both = flags.model is not None and flags.parameters is not None
    check.require(not both, "--model or --parameters", "both", "drop one of them")
    wanted = Wanted(
        records=flags.records,
        epsilon=shared.required_epsilon(flags.epsilon),
        delta=flags.delta,
        data=flags.data or "network",
        parameters=flags.parameters,
        minutes=flags.minutes,
        users=flags.users,
        per_user=flags.per_user,
        cost=None if flags.model is None else _measured(flags.model, flags.data),
    )
    found = advisor.advise(wanted)
    if as_json:
        emit(found.to_json())
        return
    from discreet.report import terminal

    rows = [(line.name, line.value, line.reason) for line in found.lines]
    title = f"{wanted.records:,} records at epsilon {wanted.epsilon:g}"
    more = () if found.python == found.command else (f"in Python: {found.python}",)
    terminal.show(terminal.plain_table(title, ("", "advice", "because"), rows), found.command, *more)


def _measured(model: str, data: str | None) -> StepCost:
    """The time of a step on random records of the shape of a dataset."""
    from discreet.data.catalogue import known_shapes

    known = known_shapes()
    expected, remedy = "--data, a dataset whose shape --model takes", "e.g. --data fashion-mnist"
    check.require(data in known, expected, repr(data), remedy)
    shape, classes = known[str(data)]
    return measure(model, shape=shape, classes=classes)
