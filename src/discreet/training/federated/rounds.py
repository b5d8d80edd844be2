"""`PrivateRounds`: training by contributions that others computed, such as the clients of a federation."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor, nn

from discreet.accounting.ledger import Ledger
from discreet.core import check
from discreet.core.streams import Indices, Streams
from discreet.core.world import World
from discreet.engine.active import Active
from discreet.engine.contributions import GivenVectors
from discreet.engine.layout import Layout
from discreet.engine.model.state import ModelBetweenBatches
from discreet.engine.model.support import trainable
from discreet.engine.tables import tables_of
from discreet.stages.participation import FixedBins
from discreet.stages.plan import Plan
from discreet.stages.sampling import FullBatch, Poisson
from discreet.stages.unit import SampledUsers
from discreet.stages.update import unpack
from discreet.stages.values import StepContext
from discreet.training import checkpoint
from discreet.training.binding import check_optimizer, check_public
from discreet.training.federated.round_task import RoundTask
from discreet.training.noise_keys import recalled
from discreet.training.payment import Payment
from discreet.training.spending import Spent
from discreet.training.step import Parameters, PrivateStep, RunState

# Samplers that decide for each client by itself. Where a cap binds, a client takes another's place; what that one sends
# later may depend on it, and no release accounts for this.
_EACH_CLIENT: Final = (Poisson, FullBatch, FixedBins)
ASSUMED: Final = (
    "one client for each person",
    "when rounds begin and end, and which other clients are connected, depends on no single client",
    "who was drawn, who replied and what they sent stays private",
)
NAMED: Final = "every client keeps its name for the whole run"  # assumed where it must come back at its own place
_REMEDY: Final = "use a recipe such as methods.dp_sgd(clip=...).using(unit=discreet.SampledUsers(per_user=..., ...))"


@final
class PrivateRounds:
    """Trains one model with differential privacy for every client; clients compute their updates themselves.

        while rounds.left:
            drawn = rounds.draw(len(clients))
            for place in drawn:
                rounds.add(place, clients[place].reply_to(rounds.task))
            rounds.release()

    Guarantee: adding or removing one client, with all of its records, moves the sum of a round by at most the clip,
    whatever the client sends. A client counts if it was drawn, and once; one that drops out adds nothing. The noisy
    sum is divided by the public batch size of the plan, and a round without any reply releases noise. So the
    certificate is that of the plan (docs/proofs/PrivateRounds.md). Who was drawn, who replied and what they sent is
    private: only the model, the task of a round and what `spent` says may leave the server. Threads may share it.
    With correlated noise (`methods.dp_ftrl`) each client joins one round of every epoch, found from its name.

    model, optimizer  the model on the server, and what updates it: SGD with lr=1 averages updates
    plan              a plan for `discreet.SampledUsers`; its `records` and `batch` count clients
    ledger            file to which charges are written before each release; None keeps them in memory only
    streams           the random streams; default: a cryptographic generator seeded by the operating system
    resume            a checkpoint of `save`: continue after the last round in `ledger`, with new keys
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        *,
        ledger: str | Path | None = None,
        streams: Streams | None = None,
        resume: str | Path | None = None,
    ) -> None:
        _check_plan(plan)
        self.model, self.optimizer, self.plan = model, optimizer, plan
        self.streams = Streams.from_os() if streams is None else streams
        self.streams.check_unused()
        self.progress, self._world = RunState(), World.current()
        check.require(
            self._world.size == 1, "one server process", self._world.size, "start the server without torchrun"
        )
        check_optimizer(optimizer, model)
        named = dict(trainable(model))
        check.require(bool(named), "a model with trainable parameters", "none", "unfreeze what should be trained")
        shapes = tuple(tuple(parameter.shape) for parameter in named.values())
        self._vectors = GivenVectors(Layout(tuple(named), shapes, tables_of(model)))
        plan.mechanism.check(self._vectors.layout)
        self._check_masks()
        self._step: PrivateStep | None = None
        self._waiting: set[int] = set()  # drawn clients that have not replied
        self._lock = threading.RLock()  # replies may come in several threads
        self._is_broken = False
        used = checkpoint.keys_of(self.streams, self._world)
        between = ModelBetweenBatches(model)
        self._parameters = Parameters(model, optimizer, plan, self._vectors, None, between)
        with ExitStack() as opened:
            opened.callback(unpack, optimizer)
            opened.enter_context(checkpoint.UnusedRemoved(ledger if resume is None else None))
            begun = checkpoint.new_ledger(ledger, plan, self.streams, _assumed(plan)) if resume is None else None
            self.ledger: Ledger = opened.enter_context(begun or self._resume(resume, ledger, used))
            self._parameters.begin(self.progress.memory, self._world)
            self._pay = Payment(plan, self.ledger, self.streams, used)
            size = self._vectors.layout.size
            self._keys = recalled(plan, ledger, self.ledger, self.progress, self.streams, size)
            self._sampling = self.streams.sampling if self._keys is None else self._keys.sampling
            self.streams.take()
            self._opened = opened.pop_all()

    @property
    def left(self) -> int:
        """How many rounds the plan has left."""
        return self.plan.horizon.steps - self.progress.step

    def draw(self, clients: int | Sequence[int | str]) -> Indices:
        """Begin a round: the places, among the clients that are there now, of those who join it. They are private.

        clients  how many are there, or their names, by which correlated noise finds the rounds of a client
        """
        with self._lock:
            return self._draw(clients)

    def _draw(self, clients: int | Sequence[int | str]) -> Indices:
        check.require(not self._is_broken, "a run without an error", "one that failed", "resume from its checkpoint")
        check.require(self.left > 0, "a round that is left of the plan", "none", "build a plan with more steps")
        remedy = "call release() first, also if no client replied: what was drawn is used once"
        check.require(self._step is None, "a round that has ended", "an open one", remedy)
        drawn = self._joining(clients)
        self._step = PrivateStep(self.plan, self._vectors, self.progress, self.streams, self._pay, self._world)
        self._waiting = set(drawn.tolist())
        return drawn

    def _joining(self, clients: int | Sequence[int | str]) -> Indices:
        sampling, horizon, step = self.plan.sampling, self.plan.horizon, self.progress.step
        if not isinstance(sampling, FixedBins):
            count = clients if isinstance(clients, int) else len(clients)
            return next(sampling.batches(count, horizon, self._sampling, step))
        if isinstance(clients, int):
            remedy = "pass the names of the clients: a client must come back in the same round of every epoch"
            check.refuse("names of clients for correlated noise", f"the number {clients}", remedy)
        names = [str(name) for name in clients]
        apart, remedy = len(set(names)) == len(names), "name every client once"
        check.require(apart, "clients with different names", "a name twice", remedy)
        return sampling.named(names, horizon, self._sampling, step)

    @property
    def task(self) -> RoundTask:
        """What the clients of the open round need."""
        return RoundTask(
            step=self.progress.step,
            steps_per_epoch=self.plan.horizon.steps_per_epoch,
            names=self._vectors.layout.names,
            scale=self.progress.scale,
            mask=self.streams.mask.public_key.hex(),
            stages=RoundTask.stages_of(self.plan),
        )

    def add(self, client: int, values: Tensor, norm: float | None = None) -> bool:
        """Add what a client sent: a `Contribution`. It is bounded here, whatever the client has done.

        Returns False, and adds nothing, for a client that was not drawn or has replied before, and for anything but a
        vector of finite numbers on the active coordinates. The answer is private.

        client  its place among those that `draw` chose from
        norm    the norm before the client bounded its update; only plans that adapt the clipping norm use it
        """
        with self._lock:
            return self._add(client, values, norm)

    def _add(self, client: int, values: Tensor, norm: float | None) -> bool:
        step, layout = self._open(), self._vectors.layout
        if client not in self._waiting:
            return False
        self._waiting.remove(client)
        active = None if step.mask is None else Active.of(step.mask, layout, self._vectors.device).whole
        size = layout.size if active is None else len(active)
        if not values.is_floating_point() or values.shape != (size,) or not bool(values.isfinite().all()):
            return False
        values = values.detach().cpu().double()
        if norm is not None and self.plan.bounder.scalars():
            values = _lengthened(values, norm)
        whole = values if active is None else values.new_zeros(layout.size).scatter_(0, active, values)
        self._vectors.give(whole.unsqueeze(0))
        step.add_given()
        return True

    def release(self) -> None:
        """End the round: record its charge, add noise to the sum, and update the model with it."""
        with self._lock:
            step = self._open()
            self._step, self._waiting, self._is_broken = None, set(), True
            self._parameters.take(step.release())
            self._is_broken = False
            self._discard_keys()

    def spent(self) -> Spent:
        """The privacy spent so far: certified, and for a finished run also claimed."""
        return Spent.of(self.plan, self.progress.step, self.ledger.charge(), self.streams)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint between two rounds. It holds released values and public settings only."""
        with self._lock:
            is_whole = self._step is None and not self._is_broken
            check.require(is_whole, "a checkpoint between two rounds", "one inside a round", "call release() first")
            checkpoint.Checkpoint.of(self.plan, self.ledger, self.progress, self._parameters, ()).write(path)

    def close(self) -> None:
        """Close the ledger."""
        self._discard_keys()
        self._opened.close()

    def _discard_keys(self) -> None:
        """Delete the keys of correlated noise if the run has ended: its noise is not needed again."""
        if self._keys is not None and not self.left:
            self._keys.discard()

    def _open(self) -> PrivateStep:
        if self._step is None:
            check.refuse("an open round", "none", "call draw(clients) first")
        return self._step

    def _resume(self, resume: str | Path | None, ledger: str | Path | None, keys: dict[str, str]) -> Ledger:
        """Restore a checkpoint and return the reopened ledger, which determines the next round."""
        if ledger is None or resume is None:
            check.refuse("the ledger of the resumed run", "none", "pass ledger=, the file of the original run")
        saved = checkpoint.Checkpoint.read(resume)
        saved.check_fits(self.plan, self._parameters, ())
        reopened = checkpoint.reopen(Path(ledger), self.plan, saved, keys, self._world)
        try:
            saved.restore(self._parameters, ())
            step = checkpoint.next_step(self.plan, reopened)
        except BaseException:
            reopened.close()
            raise
        self.progress = RunState(step=step, scale=saved.scale, memory=dict(saved.memory))
        self._parameters.updates = saved.updates
        return reopened

    def _check_masks(self) -> None:
        """Refuse masks that a client cannot draw by itself, such as those that rank earlier releases."""
        horizon, layout = self.plan.horizon, self._vectors.layout
        last = StepContext(
            step=horizon.steps - 1,
            steps_per_epoch=horizon.steps_per_epoch,
            batch=horizon.size.batch,
            layout=layout,
            streams=self.streams,
        )
        mask = self.plan.selection.mask(last)
        drawn, got = mask is None or mask.key is not None, type(self.plan.selection).__name__
        check.require(drawn, "masks that clients draw from a public key", got, "use methods.random_freeze")


def _check_plan(plan: Plan) -> None:
    remedy = "complete a recipe first: recipe.for_budget(epsilon=..., delta=..., records=..., batch=..., steps=...)"
    check.require(isinstance(plan, Plan), "a Plan", f"a {type(plan).__name__}", remedy)
    plan.certificate()  # refuses a plan that cannot be certified
    check_public(plan, None, None)
    unit, sampling, mechanism = plan.unit, plan.sampling, plan.mechanism
    separated = mechanism.remembers and isinstance(sampling, FixedBins)
    for fits, expected, got in (
        (isinstance(unit, SampledUsers), "a plan that protects users, with SampledUsers", type(unit).__name__),
        (isinstance(sampling, _EACH_CLIENT), "a sampler that decides for each client alone", type(sampling).__name__),
        (mechanism.is_independent or separated, "independent or correlated Gaussian noise", type(mechanism).__name__),
        (not plan.has_tests, "updates that are kept without a test", plan.method),
        (plan.analysis.visible, "a certificate for all models that clients see", type(plan.analysis).__name__),
    ):
        check.require(fits, expected, got, _REMEDY)


def _assumed(plan: Plan) -> tuple[str, ...]:
    return (*ASSUMED, NAMED) if isinstance(plan.sampling, FixedBins) else ASSUMED


def _lengthened(values: Tensor, norm: float) -> Tensor:
    """The update before the client bounded it. The server bounds it again, so a false norm gains nothing."""
    own = float(values.norm())
    return values * (norm / own) if 0 < own < norm < math.inf else values
