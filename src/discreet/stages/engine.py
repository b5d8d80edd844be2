"""Per-sample norms and weighted sums of any PyTorch model, from one backward pass.

    engine.begin(records); losses = ...model(x)...; engine.backward(losses)
    norms_GN = engine.norms(groups); engine.add_weighted(weights_QGN, totals_Q, groups)

The model is not changed: while a batch is open, a torch function mode watches its forward pass (capture.py),
each call with a parameter leaves its inputs and output gradient, and the weight gradients of autograd are never
computed. Index legend: N records, Q queries, G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from discreet.core.check import refuse, require
from discreet.stages.capture import Tracked, Watch, tensors_in
from discreet.stages.decompose import DECOMPOSITIONS
from discreet.stages.factors import Dense, Factors, Outer, merge
from discreet.stages.ops import FORBIDDEN
from discreet.stages.probe import Probe, Script
from discreet.stages.recorder import Recorder, pull_back
from discreet.stages.support import refuse_unsupported
from discreet.stages.values import Layout, Lines, Mask

Groups = Sequence[Sequence[int]]


class Engine:
    """Exact per-sample quantities of one model.

    Guarantee: `norms` are upper bounds on the norms of the contributions that `add_weighted` sums (up to a
    relative 2^-18), and a record whose norm is not finite contributes exact zero.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_unsupported(model)
        self.model = model
        self._roots = [Tracked(name, p) for name, p in model.named_parameters() if p.requires_grad]
        require(
            bool(self._roots), "a model with trainable parameters", "none", "unfreeze what should be trained"
        )
        self.layout = Layout(
            tuple(root.name for root in self._roots), tuple(tuple(root.tensor.shape) for root in self._roots)
        )
        dtypes = {root.tensor.dtype for root in self._roots}
        self.dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        self.device = self._roots[0].tensor.device
        self._scripts: dict[Any, Script] = {}
        self._records: int | None = None
        self._views, self._watching = 1, False
        self._probing = False
        self._passes: list[tuple[Recorder, Script, Any]] = []
        self._watch: Watch | None = None
        self._factors: list[Factors | None] = []
        self._hooks = [
            model.register_forward_pre_hook(self._enter, with_kwargs=True),
            model.register_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]

    # -- one micro-batch -------------------------------------------------------------------------------

    def begin(self, records: int, views: int = 1) -> None:
        """A micro-batch of `records` follows: watch the model's forward passes until `backward`.

        With `views`, the inputs hold that many rows of each record side by side (augmented copies), and so do the
        losses, which are averaged over them: the record stays the unit.
        """
        self.discard()
        for root in self._roots:
            require(
                root.tensor.grad is None,
                "no gradient left on the parameters",
                f"{root.name}.grad is set",
                "do not call backward() yourself between private steps; call zero_grad() after your own backward",
            )
            require(
                root.tensor.requires_grad,
                "the same trainable parameters as at construction",
                f"{root.name} was frozen",
                "build a new Private after freezing parameters",
            )
        self._records, self._views, self._watching = records, views, True

    def backward(self, losses: Tensor) -> None:
        """One backward pass from the per-sample losses, shape [records]."""
        records = self._open_records()
        rows = records * self._views
        require(
            losses.dim() == 1 and losses.shape[0] == rows,
            f"per-sample losses of shape [{rows}]",
            f"shape {list(losses.shape)}",
            'build the loss with reduction="none" and reduce each record to one number',
        )
        require(
            bool(self._passes) and losses.requires_grad,
            "losses computed from the model's forward pass on this batch",
            "losses that do not depend on it",
            "call the model on the batch that the iterator gave, outside torch.no_grad()",
        )
        losses = losses.view(records, self._views).mean(1) if self._views > 1 else losses
        for _, script, outputs in self._passes:
            if not script.loss_checked:
                self._check_loss(losses, script, outputs)
        self._watching = False
        losses.sum().backward()  # type: ignore[no-untyped-call]
        touched = [root.name for root in self._roots if root.tensor.grad is not None]
        for root in self._roots:
            root.tensor.grad = None
        require(
            not touched,
            "every use of a parameter to happen inside the model's forward pass",
            f"a use that was not seen of {', '.join(touched[:3])}",
            "move the computation into forward(); replace reentrant checkpointing and DataParallel wrappers",
        )
        self._factors = self._collect()
        self._passes = []

    @torch.no_grad()
    def norms(self, groups: Groups | None = None, mask: Mask | None = None) -> Tensor:
        """Upper bounds on the per-sample gradient norms, float64, shape [G, N]."""
        records = self._open_records()
        squares: list[Tensor] = []
        for index, factors in enumerate(self._factors):
            if factors is None or (mask is not None and mask.pieces[index] is False):
                squares.append(torch.zeros(records, dtype=torch.float64, device=self.device))
                continue
            square, slack = self._square(index, factors, mask)
            squares.append((square.sqrt() + slack).square())
        per_parameter = torch.stack(squares)
        groups = groups if groups is not None else [range(len(squares))]
        return torch.stack([per_parameter[list(group)].sum(0) for group in groups]).sqrt()

    @torch.no_grad()
    def add_weighted(
        self, weights_QGN: Tensor, totals_Q: Tensor, groups: Groups | None = None, mask: Mask | None = None
    ) -> None:
        """totals_Q += sum_n weights * g_n, query by query; frozen coordinates stay as they are."""
        self._silence_non_finite()
        groups = groups if groups is not None else [range(len(self._factors))]
        views = self.layout.views(totals_Q)
        for group, weights_QN in zip(groups, weights_QGN.unbind(1), strict=True):
            for index in group:
                factors = self._factors[index]
                if factors is None or (mask is not None and mask.pieces[index] is False):
                    continue
                active = None if mask is None else mask.of(index, views[index][0])
                if active is None:
                    factors.add_weighted(weights_QN, views[index])
                else:
                    fresh = torch.zeros_like(views[index])
                    factors.add_weighted(weights_QN, fresh)
                    views[index].add_(fresh.masked_fill_(~active, 0))

    @torch.no_grad()
    def mapped_sum(self, fn: Callable[[Tensor], Tensor], *, chunk: int = 16) -> Tensor:
        """sum over chunks of fn(gradients), where fn takes instantiated gradients [chunk, d]."""
        self._silence_non_finite()
        records = self._open_records()
        total: Tensor | None = None
        for start in range(0, records, chunk):
            value = fn(self.per_sample(start, min(start + chunk, records)))
            total = value if total is None else total + value
        assert total is not None
        return total

    @torch.no_grad()
    def per_sample(self, start: int, stop: int) -> Tensor:
        """Instantiated gradients of records start..stop, flat: [stop - start, d]."""
        rows = torch.zeros(stop - start, self.layout.size, dtype=self.dtype, device=self.device)
        for view, factors in zip(self.layout.views(rows), self._factors, strict=True):
            if factors is not None:
                view.copy_(factors.instantiate(start, stop))
        return rows

    def discard(self) -> None:
        """Forget the open micro-batch."""
        self._records, self._watching, self._passes, self._factors = None, False, [], []

    def close(self) -> None:
        """Detach from the model."""
        self.discard()
        for hook in self._hooks:
            hook.remove()

    def zeros(self, queries: int = 1) -> Tensor:
        """Room for the sums of a logical batch, shape [Q, d]."""
        return torch.zeros(queries, self.layout.size, dtype=self.dtype, device=self.device)

    # -- the watched forward pass ----------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._watching or self._records is None or self._probing or not torch.is_grad_enabled():
            return
        script = self.script(args, kwargs, self._records, self._views)
        recorder = Recorder(self._roots, script.calls, self._records)
        self._passes.append((recorder, script, None))
        self._watch = Watch(recorder, DECOMPOSITIONS, FORBIDDEN)
        self._watch.__enter__()

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._watch is None:
            return
        self._watch.__exit__(None, None, None)
        self._watch = None
        if output is None:  # the forward pass raised: its error is the one to show
            self._passes.pop()
            return
        recorder, script, _ = self._passes[-1]
        recorder.finish()
        self._passes[-1] = (recorder, script, [t for t in tensors_in(output) if t.requires_grad])

    def script(self, args: Any, kwargs: Any, records: int, views: int = 1) -> Script:
        """What a pass on inputs of this shape does, learned on random inputs the first time."""
        rows = records * views
        shapes = [
            (t.dtype, tuple(t.shape[1:]), views) if t.dim() > 0 and t.shape[0] == rows else (t.dtype, tuple(t.shape))
            for t in tensors_in((args, kwargs))
        ]
        key = (self.model.training, tuple(shapes))
        if key not in self._scripts:
            self._probing = True
            try:
                self._scripts[key] = Probe(self.model, self._roots, (args, kwargs), rows, views).learn()
            finally:
                self._probing = False
        return self._scripts[key]

    # -- inside ----------------------------------------------------------------------------------------

    def _open_records(self) -> int:
        if self._records is None:
            refuse("an open micro-batch", "none", "call begin(records) first")
        return self._records

    def _check_loss(self, losses: Tensor, script: Script, outputs: Sequence[Tensor]) -> None:
        """A record's loss may depend on that record's outputs alone."""
        records = self._open_records()
        if records < 2:
            return
        for record in (0, records - 1):
            moved = torch.autograd.grad(losses[record], outputs, retain_graph=True, allow_unused=True)
            for gradient, axis in zip(moved, script.outputs, strict=True):
                if gradient is None or axis is None:
                    continue
                by_record = axis.split(gradient, records)
                others = torch.arange(records, device=by_record.device) != record
                require(
                    not bool((by_record[others] != 0).any()),
                    "each loss to depend on its own record only",
                    "a loss that moves with other records' outputs",
                    "do not normalise or compare over the batch; divide by a number of the record itself",
                )
        script.loss_checked = True

    @torch.no_grad()
    def _collect(self) -> list[Factors | None]:
        parts: dict[str, list[Factors]] = {root.name: [] for root in self._roots}
        for recorder, _, _ in self._passes:
            for use in recorder.uses:
                if use.gradient is None:
                    continue
                for target, factors in use.parts():
                    for root, pulled in pull_back(target, factors):
                        parts[root.name].append(pulled)
        return [
            merge(parts[name], shape) if parts[name] else None
            for name, shape in zip(self.layout.names, self.layout.shapes, strict=True)
        ]

    def _square(self, index: int, factors: Factors, mask: Mask | None) -> tuple[Tensor, Tensor]:
        piece = True if mask is None else mask.pieces[index]
        if piece is True:
            return factors.square_norms()
        if isinstance(factors, Outer):
            if isinstance(piece, Lines):
                return factors.lines(piece.rows, piece.columns).square_norms()
            if factors.left_NPA.shape[1] == 1 and isinstance(piece, Tensor):
                return factors.masked_square(piece), torch.zeros(factors.records, dtype=torch.float64)
        assert mask is not None
        grads = factors.instantiate(0, factors.records)
        active = mask.of(index, grads[0])
        assert active is not None
        square, underflow = Dense(grads * active).square_norms()
        return square, underflow + factors.square_norms()[1]

    def _silence_non_finite(self) -> None:
        bad = ~torch.isfinite(self.norms()[0])
        if bool(bad.any()):
            self._factors = [None if factors is None else factors.silence(bad) for factors in self._factors]
