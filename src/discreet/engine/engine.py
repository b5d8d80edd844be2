"""Per-sample norms and weighted sums of any PyTorch model, from one backward pass (two with checkpointing).

    engine.begin(records); losses = ...model(x)...; engine.backward(losses)
    norms_GN = engine.norms(groups); engine.add_weighted(weights_QGN, totals_Q, groups)

The model is not changed: while a batch is open, a torch function mode watches its forward pass (capture.py),
each call with a parameter leaves its inputs and output gradient, and autograd never computes the gradients of
weights. Index legend: N records (units, if records have owners), Q queries, G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from discreet.core.check import count, refuse, require
from discreet.core.world import World
from discreet.engine.active import Active
from discreet.engine.contributions import Groups, partition
from discreet.engine.custom_backward import run_backward
from discreet.engine.factors.collector import Collector, Settle, let_go
from discreet.engine.factors.gradients import (
    Gradients,
    KeptFactors,
    KeptGradients,
    RepeatedGradients,
    Weighting,
    fill_rows,
)
from discreet.engine.factors.groups import UnitRows
from discreet.engine.factors.lengths import are_finite, root_of_squares
from discreet.engine.factors.parts import GradientBuffer, in_range
from discreet.engine.known_traces import KnownTraces
from discreet.engine.layout import Layout, Mask
from discreet.engine.lazy_zeros import lazy_zeros
from discreet.engine.model.state import Snapshot
from discreet.engine.model.support import Hook, check_trained, fresh_graph, refuse_unsupported, trainable
from discreet.engine.precision import full_precision
from discreet.engine.proof.forbidden import FORBIDDEN
from discreet.engine.proof.lineage import PUBLIC, places_in
from discreet.engine.proof.program import BatchKind
from discreet.engine.record_watch import RecordWatch
from discreet.engine.recorder import Recorder
from discreet.engine.selfcheck import UNSEEN, refuse_reduced, untouched
from discreet.engine.shards.sharding import Sharding
from discreet.engine.shards.sums import Sums, SumsByShard, WholeSums
from discreet.engine.tables import TouchedRows, tables_of
from discreet.engine.trace.capture import CallWatch, ForwardTrace, Tracked
from discreet.engine.trace.decompose import DECOMPOSITIONS
from discreet.engine.trace.unscripted import Unscripted


@dataclass
class _Pass:
    """One watched forward pass."""

    recorder: Recorder
    watching: ExitStack


class Engine:
    """Exact per-sample quantities of one model.

    Guarantee: `norms` are upper bounds on the norms of the contributions that `add_weighted` sums (up to a
    relative 2^-17), and a record whose norm is not finite contributes exact zero. Inputs of the model that do
    not have one row per record are taken to be public constants. `in_double`: sums are in float64 for every model.
    """

    def __init__(self, model: nn.Module, *, in_double: bool = False) -> None:
        refuse_unsupported(model)
        self.model = model
        self._trained: dict[str, Tensor] = dict(trainable(model))
        require(bool(self._trained), "a model with trainable parameters", "none", "unfreeze what should be trained")
        self.sharding = Sharding.of(model)
        wholes = self._trained if self.sharding is None else self.sharding.wholes
        self._roots = [Tracked(name, wholes[name]) for name in self._trained]
        shapes = tuple(tuple(root.tensor.shape) for root in self._roots)
        self.layout = self.held = Layout(tuple(self._trained), shapes, tables_of(model))
        self._sums: Sums = WholeSums(self.layout)
        if self.sharding is not None:
            self.held = self.sharding.held(self.layout, self._trained)
            self._sums = SumsByShard(self.sharding, self.layout, self.held)
        dtypes = {root.tensor.dtype for root in self._roots}
        self.dtype = torch.float64 if in_double or torch.float64 in dtypes else torch.float32
        self.device = self._roots[0].tensor.device
        self._unscripted = Unscripted(model)
        self._scripts = KnownTraces(model, self._roots, self.layout)
        self.watch = RecordWatch(model, () if self.sharding is None else tuple(wholes.values()))
        self._before: Snapshot | None = None
        self._records: int | None = None
        self._views, self._watching, self._is_followed = 1, False, False
        self._units: UnitRows | None = None
        self._open: list[_Pass | None] = []  # one entry for each call of the model that is under way
        self._passes: list[_Pass] = []
        self._recorders: list[Recorder] = []  # of the passes that the losses came from
        self._gradients: Gradients | None = None
        self._room = GradientBuffer()
        self._hooks = [
            model.register_forward_pre_hook(Hook(self._enter), with_kwargs=True, prepend=True),
            model.register_forward_hook(Hook(self._leave), with_kwargs=True, always_call=True),
        ]

    # -- one micro-batch -------------------------------------------------------------------------------

    def begin(self, records: int, views: int = 1, units: UnitRows | None = None) -> None:
        """A micro-batch of `records` follows: watch the model's forward passes until `backward`.

        With `views`, the inputs hold that many rows of each record side by side (augmented copies), and so do
        the losses, which are averaged over them. With `units`, successive records belong to one unit of privacy:
        the gradients of a unit are averaged, and norms, weights and sums have one entry for each unit.
        """
        count("an empty batch has no pass: it is a step of noise alone", records=records, views=views)
        self.discard()
        check_trained(self.model, self._trained)
        left = [f"{name}.grad" for name, parameter in self._trained.items() if parameter.grad is not None]
        remedy = "do not call backward() yourself between private steps, or call zero_grad() after it"
        require(not left, "no gradient left on the parameters", f"{', '.join(left[:1])} is set", remedy)
        require(units is None or units.records == records, "a unit for each record", "others", "name all owners")
        self._records, self._views, self._units, self._watching = records, views, units, True
        self._before = Snapshot(self.model, self._before)

    def follow(
        self,
        batch: Any,
        records: int,
        views: int = 1,
        *,
        private: Any = (),
        public: Sequence[Tensor] = (),
        kind: BatchKind = BatchKind.FREE,
    ) -> None:
        """Watch every torch call on the tensors of `batch` from here to `check`.

        private  what holds records before the first batch, such as the data
        public   tensors of the batch that are the same whatever the records are
        """
        self._is_followed = True
        constants = {id(tensor) for tensor in public}
        places = places_in(batch, records * views)
        self.watch.open([(t, PUBLIC if id(t) in constants else at) for t, at in places], records, private, kind)

    def check(self, losses: Tensor) -> None:
        """Refuse losses in which a record moves another one, call by call; the watch ends where they are accepted.

        Refused losses may be followed by others of the same batch as long as the watch is on.
        """
        require(
            self.watch.is_open,
            "losses of a batch that is still watched",
            "a batch whose losses were accepted before, or whose loop has ended",
            "call private.step once for each batch, inside `for batch in private` (keep the iterator of next(...))",
        )
        self.watch.finish(losses)

    def backward(self, losses: Tensor) -> None:
        """One backward pass from the per-sample losses, shape [records]."""
        records = self._open_records()
        check_trained(self.model, self._trained)
        if self._before is not None:
            self._before.compare(self.model)
        rows = records * self._views
        with torch._C.DisableTorchFunction():  # sizes are no calls to watch
            shape, needs_grad = list(losses.shape), losses.requires_grad
        remedy = 'build the loss with reduction="none" and reduce each record to one number'
        require(shape == [rows], f"per-sample losses of shape [{rows}]", f"shape {shape}", remedy)
        expected, got = "losses computed from the model's forward pass on this batch", "losses that do not depend on it"
        remedy = "call the model on the batch that the iterator gave, outside torch.no_grad()"
        require(bool(self._passes) and needs_grad, expected, got, remedy)
        if self._is_followed:
            self.check(losses)
        each = losses.view(records, self._views).mean(1) if self._views > 1 else losses
        if self._units is not None:  # only here do the records of a unit meet: the watch kept them apart
            each = each * self._units.shares(each)
        self._watching = False
        self._recorders, self._passes = [one.recorder for one in self._passes], []
        is_checkpointed = any(recorder.regions for recorder in self._recorders)
        if self.sharding is not None and is_checkpointed:
            refuse("a sharded model without checkpointed regions", "some", "turn activation checkpointing off")
        comes_again = is_checkpointed and self._units is None  # factors of units are kept
        run = partial(self._run_backward, each, comes_again)
        if comes_again:
            self._gradients = RepeatedGradients(run, self.layout)
        else:
            kept = KeptFactors(self.layout, self._room, self._units)
            run(let_go if self._is_followed and self.watch.kind is BatchKind.REHEARSAL else kept.settle)
            self._gradients = KeptGradients(kept.found, self.layout)

    def _run_backward(self, losses: Tensor, comes_again: bool, settle: Settle) -> None:
        """The backward pass of the sum of the losses."""
        followed = self.watch.backward_pass() if self._is_followed else nullcontext()
        with followed, fresh_graph(), untouched(self._roots, UNSEEN), torch.enable_grad():
            uses = [use for recorder in self._recorders for use in recorder.uses]
            gather = None if self.sharding is None else self.sharding.gather
            collector = Collector(uses, settle, gather, comes_again=comes_again)
            collector.watch()
            run_backward(losses, comes_again=comes_again)
            for recorder in self._recorders:
                recorder.fill()
        with torch.no_grad():
            collector.finish()
        if self.sharding is not None:
            self.sharding.rest()
            refuse_reduced(self._trained)

    def full_precision(self) -> AbstractContextManager[object]:
        """A block in which no product is rounded for the sake of speed: norms must hold for the sums."""
        return full_precision(self.device)

    @torch.no_grad()
    def norms(self, groups: Groups | None = None, mask: Mask | None = None) -> Tensor:
        """Upper bounds on the per-sample gradient norms, float64, shape [G, N]."""
        each = self._each_norm(mask)
        return torch.stack([root_of_squares([each[i] for i in group]) for group in partition(groups, self.layout)])

    @torch.no_grad()
    def add_weighted(
        self,
        weights_QGN: Tensor,
        totals_Q: Tensor,
        groups: Groups | None = None,
        mask: Mask | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        """totals_Q += sum_n weights * g_n, query by query; frozen coordinates stay. A last sum lets go of each g_n."""
        gradients, groups = self._collected(), partition(groups, self.layout)
        shapes = (len(totals_Q), len(groups), self._open_units()), (len(totals_Q), self.held.size)
        require(
            (tuple(weights_QGN.shape), tuple(totals_Q.shape)) == shapes,
            f"weights of shape {list(shapes[0])} for totals of shape {list(shapes[1])}",
            f"{list(weights_QGN.shape)} and {list(totals_Q.shape)}",
            "give one weight per query, group and record",
        )
        index = None if all(map(are_finite, self._each_norm(None))) else self.finite().nonzero().flatten()
        of_groups = in_range(weights_QGN, totals_Q.dtype).unbind(1)  # here for all parameters at once
        by_parameter = [of_groups[0]] * len(self.layout.names)
        for group, weights_QN in zip(groups, of_groups, strict=True):
            for parameter in group:
                by_parameter[parameter] = weights_QN
        if is_last:
            self._gradients = None
        self._sums.add(gradients, Weighting(by_parameter, index, mask, is_last), totals_Q)

    def add_nothing(self, totals_Q: Tensor) -> None:
        """Take part in the sums of a sharded model without a record; other models need nobody else."""
        self._sums.add_nothing(totals_Q)

    def finite(self) -> Tensor:
        """Which records take part: those whose whole gradient is finite, [N]."""
        return torch.stack(self._each_norm(None)).isfinite().all(0)

    @torch.no_grad()
    def touched(self, tables: Sequence[int]) -> TouchedRows:
        """The rows of these tables that the gradient of each record is not zero on."""
        return TouchedRows.of(self._collected().factors(), tables, self.layout, self.finite())

    @torch.no_grad()
    def mapped_sum(self, fn: Callable[[Tensor], Tensor], mask: Mask | None = None, *, chunk: int = 16) -> Tensor:
        """sum over chunks of fn(gradients), where fn takes instantiated gradients [chunk, active coordinates]."""
        total: Tensor | None = None
        for rows in self.rows(mask, chunk=chunk):
            value = fn(rows)
            total = value if total is None else total + value
        assert total is not None
        return total

    def rows(self, mask: Mask | None = None, *, chunk: int = 16) -> Iterator[Tensor]:
        """Instantiated gradients on the active coordinates, `chunk` records at a time; zeros where not finite."""
        self._collected().factors()
        records, bad = self._open_units(), ~self.finite()
        for start in range(0, records, chunk):
            stop = min(start + chunk, records)
            gradients, odd = self.per_sample(start, stop, mask), bad[start:stop]
            yield gradients.masked_fill_(odd.unsqueeze(1), 0) if bool(odd.any()) else gradients

    @torch.no_grad()
    def per_sample(self, start: int, stop: int, mask: Mask | None = None) -> Tensor:
        """Instantiated gradients of records start..stop, flat: [stop - start, d], or as many active coordinates."""
        active = None if mask is None else Active.of(mask, self.layout, self.device)
        sizes = self.layout.sizes if active is None else active.counts
        rows = torch.empty(stop - start, sum(sizes), dtype=self.dtype, device=self.device)
        parts: Sequence[Tensor | None] = [None] * len(sizes) if active is None else active.parts
        fill_rows(self._collected().factors(), rows.split(list(sizes), dim=1), parts, start)
        return rows

    def holders(self, world: World) -> World:
        """The processes of a run that hold the same coordinates as this one: all, unless the model is sharded."""
        return world if self.sharding is None else self.sharding.holders

    def discard(self) -> None:
        """Forget the open micro-batch."""
        self.watch.close()
        if self.sharding is not None and self._open:
            self.sharding.rest()
        for one in reversed(self._open):  # a pass that was interrupted left its watch on
            if one is not None:
                one.watching.close()
        for recorder in self._recorders:
            recorder.forget()
        self._open, self._passes, self._recorders = [], [], []
        self._records, self._watching, self._is_followed, self._gradients, self._units = None, False, False, None, None

    def close(self) -> None:
        """Detach from the model, and give its memory back."""
        self.discard()
        self._room = GradientBuffer()
        for hook in self._hooks:
            hook.remove()
        if self.sharding is not None:
            self.sharding.close()

    def zeros(self, queries: int = 1, size: int | None = None) -> Tensor:
        """Room for sums on the coordinates that this process holds, [Q, d], or for as many vectors of another size."""
        columns = self.held.size if size is None else size
        return lazy_zeros(queries, columns, dtype=self.dtype, device=self.device)

    def script(self, args: Any, kwargs: Any, records: int, views: int = 1) -> ForwardTrace:
        """What a pass on inputs of this shape does, learned and verified on random inputs the first time.

        The processes of a sharded model ask together. If any of them has to learn, all gather the parameters.
        """
        form = args, kwargs, records, views
        whole = nullcontext() if self.sharding is None else self.sharding.whole_if(self._scripts.known(*form) is None)
        with self._unscripted.applied(), whole:
            return self._scripts.find(*form)

    # -- the watched forward pass ----------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        inside = any(one is not None for one in self._open)  # a model that calls itself is one pass
        self._open.append(None)
        if inside or not self._watching or self._scripts.busy or not torch.is_grad_enabled():
            return
        assert self._records is not None
        learned = self._scripts.learned
        if self._before is not None:
            self._before.compare(self.model)
        with torch._C.DisableTorchFunction():  # sizes are no calls to watch
            script = self._scripts.known(args, kwargs, self._records, self._views)
        if script is None or self.sharding is not None:
            with self.watch.paused():
                script = self.script(args, kwargs, self._records, self._views)
        if self._scripts.learned > learned:  # random inputs may have filled a cache
            self._before = Snapshot(self.model)
        watching = ExitStack()
        with torch._C.DisableTorchFunction():
            self.watch.check_inputs(script.records_in((args, kwargs)))
            recorder = Recorder(self._roots, script, self._records, (args, kwargs))
        watching.enter_context(self._unscripted.applied())
        if self.sharding is not None:
            watching.enter_context(self.sharding.watched())
        self._open[-1] = _Pass(recorder, watching)
        if self.watch.is_open:
            calls = CallWatch(recorder, DECOMPOSITIONS, FORBIDDEN, around=self.watch)
            watching.enter_context(self.watch.running(calls.handle, recorder))
            recorder.repeating = self.watch.repeating
        else:
            watching.enter_context(CallWatch(recorder, DECOMPOSITIONS, FORBIDDEN))

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if (one := self._open.pop() if self._open else None) is None:
            return
        one.watching.close()
        if output is None:  # the forward pass raised: its error is the one to show
            return
        one.recorder.finish()
        with torch._C.DisableTorchFunction():
            if self._before is not None:
                self._before.compare(self.model)
        self._passes.append(one)

    # -- inside ----------------------------------------------------------------------------------------

    def _open_records(self) -> int:
        if self._records is None:
            refuse("an open micro-batch", "none", "call begin(records) first")
        return self._records

    def _open_units(self) -> int:
        """The number of units in the open micro-batch: of records, unless the records have owners."""
        records = self._open_records()
        return records if self._units is None else self._units.units

    def _collected(self) -> Gradients:
        """The gradients of the open micro-batch."""
        self._open_records()
        if self._gradients is None:
            refuse("the gradients of a micro-batch", "none", "call backward(losses) first; sum them last, and once")
        return self._gradients

    def _each_norm(self, mask: Mask | None) -> list[Tensor]:
        """The norms of every parameter's gradients, zero where none came."""
        zero = partial(torch.zeros, self._open_units(), dtype=torch.float64, device=self.device)
        return [zero() if own is None else own for own in self._collected().norms(mask)]
