"""`discreet plan`: what a budget buys, before anything is trained."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from discreet.cli import flags as shared
from discreet.cli import recipes
from discreet.cli.flags import INTERRUPTED, JsonFlag, emit, flag, required_delta, required_epsilon
from discreet.core import check
from discreet.core.command import command_line
from discreet.core.files import check_file
from discreet.runs.planning.advisor import RULES, Wanted, size_of, usual_delta
from discreet.runs.planning.planner import Question, answer
from discreet.stages.delta import delta_warning


@final
@dataclass(frozen=True, kw_only=True)
class QuestionFlags:
    """The public numbers of a run, and the model whose time and memory are measured."""

    records: Annotated[int | None, flag("Public number of records.", "Run")] = None
    batch: shared.WholeBatchFlag = None
    epochs: shared.EpochsFlag = None
    epsilon: shared.EpsilonFlag = None
    delta: shared.DeltaFlag = None
    accept_delta: shared.AcceptDeltaFlag = False
    methods: Annotated[str | None, flag("Methods, as a list a,b,c (default: all).")] = None
    model: Annotated[str | None, flag("A model's name: measure two steps on random data.", "Time and memory")] = None
    data: Annotated[str | None, flag("Published data whose shape and classes to use.", "Time and memory")] = None
    record_shape: Annotated[str | None, flag("Shape of a record, e.g. 1,28,28.", "Time and memory")] = None
    classes: Annotated[int | None, flag("Number of classes.", "Time and memory")] = None
    micro_batch: shared.MicroBatchFlag = None
    out: Annotated[Path | None, flag("Write a page here, e.g. plan.html.")] = None


def plan(flags: QuestionFlags, as_json: JsonFlag = False) -> int:
    """The noise that a budget needs, by method, sampler and batch size, with time and memory. Nothing is trained."""
    question = _question(flags)
    shape = _shape(flags)
    micro_batch = 512 if flags.micro_batch is None else flags.micro_batch
    check.count("the most records in memory at once", micro_batch=micro_batch)
    if flags.out is not None:
        check.require(flags.out.suffix == ".html", "--out to end in .html", str(flags.out), "name a page")
        check_file(flags.out)
    command = command_line()
    try:
        from discreet.report import planned, progress, terminal
        from discreet.runs.planning.step_cost import measure

        trial = None
        if flags.model is not None and shape is not None:
            trial = measure(flags.model, shape=shape[0], classes=shape[1], micro_batch=micro_batch)
        with progress.pricing_bar(quiet=as_json) as listener:
            found = answer(question, listener)
    except KeyboardInterrupt:
        print("Stopped. Nothing was kept: run the command again.", file=sys.stderr)
        return INTERRUPTED
    warning = delta_warning(question.delta, question.records)
    files = () if flags.out is None else planned.write(found, trial, micro_batch, command, flags.out)
    if as_json:
        costs = dict(planned.costs(found, trial, micro_batch))
        warned = {"warnings": [warning]} if warning else {}
        emit({**found.to_json(), "trial": trial, **costs, **warned, "files": [str(file) for file in files]})
    else:
        lines = [f"Warning: {warning}"] if warning else []
        lines += [] if flags.out is None else [f"The page: {flags.out}"]
        terminal.show(planned.table(found, trial, micro_batch), *lines)
    return 0


def _question(flags: QuestionFlags) -> Question:
    """The question; numbers that were not given are the advised ones."""
    shared.require_all(records=flags.records, epsilon=flags.epsilon)
    assert flags.records is not None
    usual = Wanted(records=flags.records, epsilon=required_epsilon(flags.epsilon))
    batch, steps = size_of(usual.records, RULES[usual.kind])
    batch = batch if flags.batch is None else flags.batch
    names = recipes.METHODS if flags.methods is None else recipes.methods_called(flags.methods)
    return Question(
        records=usual.records,
        batch=batch,
        epochs=max(1, round(steps * batch / usual.records)) if flags.epochs is None else flags.epochs,
        epsilon=usual.epsilon,
        delta=usual_delta(usual.records) if flags.delta is None else required_delta(flags.delta),
        accept_large_delta=flags.accept_delta,
        methods=tuple(dict.fromkeys(names)),
    )


def _shape(flags: QuestionFlags) -> tuple[tuple[int, ...], int] | None:
    """Shape and classes for a trial; None where no model is named."""
    if flags.model is None:
        given = [name for name in ("data", "record_shape", "classes") if getattr(flags, name) is not None]
        check.require(not given, "--model with --" + " and --".join(given).replace("_", "-"), "none", "name a model")
        return None
    if flags.data is not None:
        from discreet.data.catalogue import known_shapes

        known = known_shapes()
        remedy = "give --record-shape and --classes for your own data"
        check.require(flags.data in known, f"--data to be one of {', '.join(known)}", repr(flags.data), remedy)
        return known[flags.data]
    if flags.record_shape is None or flags.classes is None:
        check.refuse("--data, or --record-shape with --classes", "none", "e.g. --record-shape 1,28,28 --classes 10")
    return shared.listed("record-shape", flags.record_shape, int, "whole numbers", "1,28,28"), flags.classes
