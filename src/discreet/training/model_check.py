"""`discreet.check`: whether a model can be trained privately, and what a private step costs."""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset

from discreet.core import check as validate
from discreet.core.check import Refused
from discreet.core.peak_memory import peak_bytes, resident_bytes, restart_peak
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.engine.model.fix import fix
from discreet.engine.trace.capture import replace, tensors_in
from discreet.methods.dp_sgd.recipes import dp_sgd
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon, OwnLoader
from discreet.training.binding import device_of, records_in
from discreet.training.private import Private

Loss = Callable[[Any, Any], Tensor]
"""From the model's output and its inputs to one loss for each record."""

_STEPS: Final = 5  # timed, after some that are not
_PATIENCE: Final = 6.0  # seconds, after which fewer steps are timed
_BATCH: Final = 256


@final
@dataclass(frozen=True, kw_only=True)
class StepMeasurement:
    """One training step on the given records.

    seconds  of the fastest of a few steps; with one thread, of processor time, which other programs do not change
    bytes    peak memory above that before the step; None where the system does not say
    """

    seconds: float
    bytes: int | None


@final
@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """What `discreet.check` found.

    refusals     why the model cannot be trained as it is; empty if it can. After a BatchNorm, the check goes on with
                 a copy that `discreet.fix` has changed
    parameters   all numbers of the model, and `trained` those that are trained
    records      the number of records in the given inputs
    plain        a step of plain SGD; None if the model does not run
    private      a private step; None if the model is refused
    setup        seconds that Private needs once
    micro_batch  how many records of a batch of `batch` to take at once
    threads      that PyTorch used
    """

    model: str
    refusals: tuple[str, ...]
    parameters: int
    trained: int
    records: int
    plain: StepMeasurement
    private: StepMeasurement | None
    setup: float | None
    micro_batch: int | None
    batch: int
    threads: int

    @property
    def accepted(self) -> bool:
        """Whether the model can be trained privately as it is."""
        return not self.refusals

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The answer as pairs of words."""
        told = [("can be trained privately", "yes" if self.accepted else "no")]
        told += [("refused", refusal) for refusal in self.refusals]
        told += [("parameters", f"{self.parameters:,}, of which {self.trained:,} are trained")]
        told += [("plain step", f"{_told(self.plain)}, {self.records} records, {_counted(self.threads)}")]
        if self.private is not None:
            ratio = self.private.seconds / self.plain.seconds
            told += [("private step", f"{_told(self.private)}, {ratio:.2f} times plain SGD")]
            told += [("set-up, once", f"{self.setup:.1f} s")]
            told += [("micro-batch", f"{self.micro_batch} records of a batch of {self.batch}")]
        return tuple(told)

    def to_json(self) -> dict[str, Any]:
        """For programs: all fields, and `accepted`."""
        return {"accepted": self.accepted, **dataclasses.asdict(self)}

    def __repr__(self) -> str:
        width = max(len(name) for name, _ in self.lines)
        return "\n".join([self.model, *(f"  {name:<{width}}  {text}" for name, text in self.lines)])


def _told(step: StepMeasurement) -> str:
    memory = "" if step.bytes is None else f", {step.bytes / 2**20:.0f} MB"
    return f"{1000 * step.seconds:.1f} ms{memory}"


def _counted(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def check(
    model: nn.Module,
    inputs: Tensor | tuple[Any, ...] | dict[str, Any],
    *,
    loss: Loss | None = None,
    batch: int | None = None,
) -> ModelCheck:
    """Try a few private steps of a model, beside steps of plain SGD; the model is left as it was.

    Use public or random inputs: the answer is not private. The model is tried in its present mode, training or
    evaluation.

    model   the model
    inputs  a tensor, a tuple of arguments or a dictionary of keyword arguments; all tensors have one row per record,
            and there are at least three records
    loss    function from the output of the model and its inputs to one loss for each record; default: the mean of
            the squared entries of the first output
    batch   the public batch size for which a micro-batch is chosen; default: 256

    >>> found = check(nn.Linear(4, 2), torch.zeros(8, 4))
    >>> found.accepted, found.micro_batch
    (True, 256)
    """
    batch = _BATCH if batch is None else batch
    validate.count("the public batch size", batch=batch)
    records = records_in(inputs)
    validate.require(
        records >= 3 and all(t.dim() > 0 and t.shape[0] == records for t in tensors_in(inputs)),
        "inputs of at least 3 records, with one row per record in every tensor",
        f"shapes {[list(tensor.shape) for tensor in tensors_in(inputs)]}",
        "pass more records, and make constants in the model's forward()",
    )
    trial = _Trial(model, inputs, records, loss or _mean_of_entries, batch)
    with _unchanged(model):
        plain = trial.plain()
        refusals, found = trial.tried()
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    private, setup, micro_batch = found or (None, None, None)
    return ModelCheck(
        model=type(model).__name__,
        refusals=tuple(refusals),
        parameters=sum(size for size, _ in sizes),
        trained=sum(size for size, is_trained in sizes if is_trained),
        records=records,
        plain=plain,
        private=private,
        setup=setup,
        micro_batch=micro_batch,
        batch=batch,
        threads=torch.get_num_threads(),
    )


def _mean_of_entries(output: Any, inputs: Any) -> Tensor:
    rows = [t for t in tensors_in(output) if t.requires_grad and t.dim() > 0 and t.shape[0] == records_in(inputs)]
    if not rows:
        validate.refuse(
            "an output with one row per record",
            f"shapes {[list(tensor.shape) for tensor in tensors_in(output)]}",
            "pass loss=, a function from the model's output and its inputs to one loss for each record",
        )
    first = rows[0]
    return first if first.dim() == 1 else first.float().flatten(1).square().mean(1)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Leaves buffers, gradients and torch's generator as they were; steps of size zero leave the parameters alone."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    device = device_of(model)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@final
class _Records(Dataset[Any]):
    """The records of the inputs one by one."""

    def __init__(self, inputs: Any, records: int) -> None:
        self._inputs, self._records = inputs, records

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> Any:
        return replace(self._inputs, lambda tensor: tensor[index])


@final
class _Trial:
    """Plain and private steps of one model on the same records."""

    def __init__(self, model: nn.Module, inputs: Any, records: int, loss: Loss, batch: int) -> None:
        self._model, self._inputs, self._records, self._loss, self._batch = model, inputs, records, loss, batch
        self._device = device_of(model)

    def plain(self) -> StepMeasurement:
        """Steps of plain SGD; a model that does not run at all is refused."""
        optimizer = _optimizer(self._model)

        def step() -> None:
            self._losses(self._model, self._inputs).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        try:
            step()
        except Refused:
            raise
        except Exception as error:  # the model's own
            first = (str(error).splitlines() or [""])[0].rstrip(".")
            validate.refuse(
                "a model that runs on the given inputs",
                f"{type(error).__name__}: {first}",
                "pass inputs that the model takes: a tensor, a tuple or a dictionary of keyword arguments",
            )
        before = self._memory_before()
        step()
        used = self._memory_above(before)
        return StepMeasurement(seconds=self._fastest(step), bytes=used)

    def tried(self) -> tuple[list[str], tuple[StepMeasurement, float, int] | None]:
        """What is refused; and a private step, the seconds of set-up and the micro-batch if nothing is."""
        refusals: list[str] = []
        model = self._model
        try:
            return [], self._private(model)
        except Refused as refused:
            refusals.append(str(refused))
        if any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
            try:
                self._private(fix(copy.deepcopy(model))[0])
            except Refused as refused:
                refusals.append(f"After discreet.fix: {refused}")
        return refusals, None

    def _private(self, model: nn.Module) -> tuple[StepMeasurement, float, int]:
        started = self._clock()
        data = _Records(self._inputs, self._records)
        private = Private(model, _optimizer(model), self._plan(), data, inputs=_arguments, streams=Streams.seeded(0))
        with closing(private):
            batches = private.over(self._copies())
            while not private.step(self._losses(model, next(batches))):  # rehearsals come first
                pass
            setup, before = self._clock() - started, self._memory_before()

            def step() -> None:
                private.step(self._losses(model, next(batches)))

            step()
            used = self._memory_above(before)
            measured = StepMeasurement(seconds=self._fastest(step), bytes=used)
            return measured, setup, min(private.micro_batch, self._batch)

    def _plan(self) -> Plan:
        horizon = Horizon.of(records=self._batch, batch=self._batch, steps=_STEPS + 2)
        recipe = dp_sgd().using(sampling=OwnLoader(), relation=Neighbouring.REPLACE_ONE)  # for batches without end
        return recipe.bind(noise=1.0, horizon=horizon, delta=1e-5)

    def _copies(self) -> Iterator[Any]:
        while True:
            yield replace(self._inputs, Tensor.clone)

    def _losses(self, model: nn.Module, inputs: Any) -> Tensor:
        args = _arguments(inputs)
        output = model(**args) if isinstance(args, dict) else model(*args)
        return self._loss(output, inputs)

    def _clock(self) -> float:
        """Seconds; of processor time with one thread, which other programs do not change."""
        is_alone = self._device.type == "cpu" and torch.get_num_threads() == 1
        return time.process_time() if is_alone else time.perf_counter()

    def _fastest(self, step: Callable[[], None]) -> float:
        """Seconds of the fastest of a few steps, as many as patience allows."""
        timed: list[float] = []
        while len(timed) < _STEPS and sum(timed) < _PATIENCE:
            started = self._clock()
            step()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            timed.append(self._clock() - started)
        return min(timed)

    def _memory_before(self) -> int | None:
        """Bytes in use now; the peak is counted from here on."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return torch.cuda.memory_allocated(self._device)
        before = resident_bytes()
        restart_peak()
        return before

    def _memory_above(self, before: int | None) -> int | None:
        is_cuda = self._device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self._device) if is_cuda else peak_bytes()
        return None if before is None or peak is None else max(peak - before, 0)


def _arguments(inputs: Any) -> Any:
    """A dictionary of keyword arguments, or a tuple; a dataset's batches are lists."""
    return inputs if isinstance(inputs, dict) else (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    validate.require(bool(trained), "a model with trainable parameters", "none", "unfreeze what should be trained")
    return torch.optim.SGD(trained, lr=0.0)
