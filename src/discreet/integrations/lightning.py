"""Lightning modules with differential privacy.

    class Net(PrivateModule, LightningModule):
        def losses(self, batch):
            x, y = batch
            return F.cross_entropy(self(x), y, reduction="none")

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    net = Net().privately(plan, dataset)
    Trainer(max_epochs=20).fit(net)
    print(net.spent())

The loader that Lightning sees holds no records, so prefetching, progress bars and loggers get none.
"""

import tempfile
from pathlib import Path
from typing import Any, Final, Self, cast

import torch
from lightning import Callback, LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import Tensor
from torch.utils.data import DataLoader

import discreet
from discreet.integrations.refusal import refuse, require

_STATE: Final = "discreet"  # the key in Lightning's checkpoints


class PrivateModule:
    """A mixin for a `LightningModule` that has `losses(batch)` in place of `training_step`.

    Guarantee: the gradients that the optimizer sees are releases of the plan. `losses` may not log, because its values
    come from records without noise.

    Automatic optimization needs nothing else. With `automatic_optimization = False`, write a `training_step` that calls
    `self.release()` and then `self.optimizers().step()`.
    """

    private: discreet.Private | None = None
    _plan: discreet.Plan | None = None
    _saved: bytes | None = None  # the state of a checkpoint that is being continued
    _is_releasing = False

    def privately(
        self,
        plan: discreet.Plan,
        data: Any,
        *,
        micro_batch: int | None = None,
        collate_fn: Any = None,
        num_workers: int = 0,
        inputs: Any = None,
        average: float | None = None,
        ledger: str | Path | None = None,
        streams: discreet.Streams | None = None,
        unit: Any = None,
    ) -> Self:
        """Train with this plan on these records; the arguments are those of `discreet.Private`.

        Each call is a run of its own, with its own charges.
        """
        if self.private is not None:
            self.private.close()
            self.private = None
        self._saved = None  # of an earlier run, or of the checkpoint that the module was loaded from
        self._plan, self._data, self._ledger = plan, data, ledger
        self._options = {
            "micro_batch": micro_batch,
            "collate_fn": collate_fn,
            "num_workers": num_workers,
            "inputs": inputs,
            "average": average,
            "streams": streams,
            "unit": unit,
        }
        return self

    def losses(self, batch: Any) -> Tensor:
        """One loss for each record of a micro-batch. Write it in your module, and call the module: `self(x)`."""
        refuse("a module with losses(batch)", type(self).__name__, "return one loss for each record of the batch")

    def release(self) -> None:
        """Draw a batch and write its released gradient to `.grad`."""
        assert self.private is not None
        self._is_releasing = True
        try:
            left = self.private.release(self.losses)
        finally:
            self._is_releasing = False
        require(left, "a step that is left of the plan", "none", "end the loop when all steps are charged")

    def spent(self) -> Any:
        """The privacy spent so far, certified and claimed."""
        if self.private is None:
            refuse("a run that has begun", "none", "call Trainer().fit(module) first")
        return self.private.spent()

    # -- hooks of Lightning ----------------------------------------------------------------------------

    def train_dataloader(self) -> DataLoader[Any]:
        """What Lightning counts: the steps of an epoch by the public numbers."""
        if self._plan is None:
            refuse("a plan and records", "none", "call module.privately(plan, dataset) before fit")
        return DataLoader(range(self._plan.horizon.steps_per_epoch))  # type: ignore[arg-type]

    def on_train_start(self) -> None:
        me = cast(LightningModule, self)
        got, remedy = me.trainer.accumulate_grad_batches, "pass micro_batch= to privately(): it limits memory"
        require(got == 1, "accumulate_grad_batches=1", got, remedy)
        later = [one for one in me.trainer.callbacks if isinstance(one, GradientAccumulationScheduler)]
        got = "one, which changes what an optimizer step is while the plan is charged"
        require(not later, "no GradientAccumulationScheduler", got, f"leave it out, and {remedy}")
        require(
            me.trainer.world_size == 1, "one process", me.trainer.world_size, "call discreet.Private under torchrun"
        )
        assert self._plan is not None
        _check_no_records(me.trainer.train_dataloader, self._plan.horizon.steps_per_epoch)
        optimizers = me.trainer.optimizers
        require(len(optimizers) == 1, "one optimizer", len(optimizers), "give it all trainable parameters")
        if self.private is not None:
            self.private.close()  # of a fit that was interrupted
            expected, got = "a new run", f"a module that has spent {self.private.ledger.length} steps of its plan"
            remedy = "to continue, pass ledger= to privately() and ckpt_path= to fit; for another run, call privately()"
            require(self._saved is not None or self.private.ledger.length == 0, expected, got, remedy)
        with tempfile.TemporaryDirectory() as folder:
            resume = None
            if self._saved is not None:
                resume = Path(folder, _STATE)
                resume.write_bytes(self._saved)
            self.private = discreet.Private(
                cast(Any, self),
                optimizers[0],
                self._plan,
                self._data,
                ledger=self._ledger,
                resume=resume,
                **self._options,
            )
        super().on_train_start()  # type: ignore[misc]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """End the training after the last step of the plan, also if some steps of a continued run were lost."""
        assert self._plan is not None
        assert self.private is not None
        if self.private.progress.step < self._plan.horizon.steps:
            return None
        cast(LightningModule, self).trainer.should_stop = True
        return -1

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """A loss for Lightning's loop: the true one is private."""
        return torch.zeros((), device=cast(LightningModule, self).device, requires_grad=True)

    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """Release instead of a backward pass, after Lightning has cleared the gradients."""
        self.release()

    def on_train_end(self) -> None:
        if self.private is not None:
            self.private.close()
        super().on_train_end()  # type: ignore[misc]

    def configure_callbacks(self) -> Any:
        return [*super().configure_callbacks(), _ClosedOnError()]  # type: ignore[misc]

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Log a public value. While training, tensors and metrics are refused: they may hold what `losses` saw."""
        remedy = "log values of public data in validation_step: those of a training batch are not paid for"
        require(not self._is_releasing, "a log of public values", f"{name!r} inside losses()", remedy)
        is_training = self.private is not None and cast(LightningModule, self).trainer.training
        got = f"{name!r}, a {type(value).__name__}, in a hook of the training"
        remedy = f"{remedy}; log float(value) of what was computed from parameters or public data"
        require(not is_training or isinstance(value, (int, float)), "a log of public numbers", got, remedy)
        super().log(name, value, *args, **options)  # type: ignore[misc]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.private is not None:
            with tempfile.TemporaryDirectory() as folder:
                self.private.save(Path(folder, _STATE), with_model=False)
                checkpoint[_STATE] = Path(folder, _STATE).read_bytes()
        super().on_save_checkpoint(checkpoint)  # type: ignore[misc]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._saved = checkpoint.get(_STATE)
        super().on_load_checkpoint(checkpoint)  # type: ignore[misc]


class _ClosedOnError(Callback):
    """Frees the ledger of a training that failed, so that another module of this process can continue the run."""

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if pl_module.private is not None:
            pl_module.private.close()


def _check_no_records(loader: Any, steps: int) -> None:
    """Refuse a training loader other than that of `PrivateModule`, which counts the steps of an epoch.

    From another one Lightning would take the number of steps, which follows the private number of records, and give its
    batches to `training_step`, callbacks and loggers.
    """
    dataset: object = loader.dataset if isinstance(loader, DataLoader) else None
    is_own = dataset == range(steps)
    expected, got = "no training loader besides the records of privately()", f"a {type(loader).__name__} of yours"
    remedy = (
        "call fit(module) without train_dataloaders= or a datamodule that has them, and write no train_dataloader()"
    )
    require(is_own, expected, got, remedy)
