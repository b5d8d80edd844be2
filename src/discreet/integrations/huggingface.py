"""Hugging Face's `Trainer` with differential privacy.

    trainer = PrivateTrainer(model, args, train_dataset=records, epsilon=8.0, delta=1e-6, records=40_000)
    trainer.train()
    print(trainer.spent())

`Trainer` keeps its optimizer, scheduler, callbacks, evaluation and checkpoints. Its training step is replaced:
`Private` draws the batch, takes one loss for each record, and leaves the released gradient on `.grad`. The loader that
`Trainer` sees holds no records, so nothing that it counts or logs comes from them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

import discreet
from discreet.integrations.movement import Movement
from discreet.integrations.record_losses import record_losses
from discreet.integrations.refusal import refuse, require
from discreet.integrations.training_arguments import (
    check_apart,
    check_arguments,
    check_stored,
    check_trainer,
    plan_of,
    training_collator,
)

STATE: Final = "privacy.pt"  # in each checkpoint: how far the ledger was, and the state of the method
_FIRST: Final = ("model", "args", "data_collator", "train_dataset", "eval_dataset")  # arguments of every trainer
LEDGER: Final = "ledger.jsonl"  # beside the checkpoints

logger = logging.getLogger(__name__)


class PrivateTraining:
    """Makes a `Trainer` private: `class Mine(PrivateTraining, Seq2SeqTrainer)`.

    Guarantee: the weights, the checkpoints and the log of a run are functions of its releases and of public values. The
    charge of a step is in the ledger before its release.

    epsilon, delta  the budget of the whole run
    records         a public number close to the number of records
    recipe          the method; default: methods.dp_sgd(clip=args.max_grad_norm)
    plan            a complete plan, instead of the four above; its batch and steps must be those of `args`
    ledger          file of the charges; default: ledger.jsonl in args.output_dir
    average         decay of a moving average of the parameters (`trainer.private.averaged()`)
    unit            if the recipe protects users: the owner of each record, in the order of train_dataset
    data            what the records are, in words, for the privacy statement
    streams         random streams for tests; default: seeded by the operating system, whatever args.seed says

    The logical batch is per_device_train_batch_size * gradient_accumulation_steps; the first factor alone is the number
    of records in memory at once. Override `compute_loss_per_record` for a loss of your own.
    """

    unlogged: ClassVar[frozenset[str]] = frozenset(
        {"loss", "train_loss", "grad_norm", "total_flos", "num_input_tokens_seen", "train_tokens_per_second"}
        | {"num_tokens", "mean_token_accuracy", "entropy"}
    )
    """What a trainer computes from the records of a batch: never computed here, and left out of the log."""

    def __init__(
        self,
        *args: Any,
        epsilon: float | None = None,
        delta: float | None = None,
        records: int | None = None,
        recipe: discreet.Recipe | None = None,
        plan: discreet.Plan | None = None,
        ledger: str | Path | None = None,
        average: float | None = None,
        data: str = "the training records",
        streams: discreet.Streams | None = None,
        unit: Any = None,
        **others: Any,
    ) -> None:
        given = dict(zip(_FIRST, args, strict=False)) | others
        self._given = given.get("train_dataset")
        check_stored(self._given)
        check_apart([self._given], given.get("eval_dataset"))  # before TRL makes copies of both
        own_collator = given.get("data_collator") is not None
        super().__init__(*args, **others)
        me = cast(Trainer, self)
        check_arguments(me.args)
        check_trainer(me)
        self.plan = plan_of(me.args, recipe, plan, {"epsilon": epsilon, "delta": delta, "records": records})
        self.collate = training_collator(me.data_collator, is_own=own_collator)
        self.ledger = Path(me.args.output_dir, LEDGER) if ledger is None else Path(ledger)
        self.private: discreet.Private | None = None
        self._average, self._data, self._streams, self._unit = average, data, streams, unit
        self._resume: Path | None = None
        self._made: bytes | None = None  # the ledger as this trainer made it, without charges
        self._is_releasing = False  # while records are in hand
        self._movement: Movement | None = None

    # -- what is spent ---------------------------------------------------------------------------------

    def spent(self) -> Any:
        """The privacy spent so far, certified and claimed."""
        return self._begun().spent()

    def statement(self) -> str:
        """The privacy statement of the run, as a Markdown page."""
        return discreet.statement(self._begun(), data=self._data)

    def _begun(self) -> discreet.Private:
        if self.private is None:
            refuse("a run that has begun", "none", "call trainer.train() first")
        return self.private

    # -- training --------------------------------------------------------------------------------------

    def compute_loss_per_record(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """One loss for each record of a micro-batch. Override it for a loss of your own.

        A record's loss may depend on that record alone: no mean over the batch, no count over the batch.
        """
        me = cast(Trainer, self)
        labels = {name: inputs[name] for name in me.label_names if name in inputs}
        outputs = model(**self.model_inputs(inputs))
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        return record_losses(_inside(model), logits, labels, me.args.label_smoothing_factor)

    def model_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the model: without labels, because its own loss is a mean over the batch."""
        me = cast(Trainer, self)
        given = {name: value for name, value in inputs.items() if name not in me.label_names}
        inside = _inside(me.model)
        if "labels" in inputs and "decoder_input_ids" not in given and _is_encoder_decoder(inside):
            given["decoder_input_ids"] = inside.prepare_decoder_input_ids_from_labels(labels=inputs["labels"])
        return given

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **others: Any) -> TrainOutput:
        """Train, or continue a run. A step that was charged is not run again."""
        me = cast(Trainer, self)
        trial = args[0] if args else others.get("trial")
        require(trial is None, "one run", "a trial of a hyperparameter search", _TUNING)
        self._resume = self._checkpoint(resume_from_checkpoint)
        self._close()
        self.private = self._movement = None
        try:
            path = None if self._resume is None else str(self._resume)
            output = super().train(path, *args, **others)  # type: ignore[misc]
            got, remedy = "a checkpoint of its last step", "use its model: the whole budget is spent"
            require(self.private is not None, "a run with steps left", got, remedy)
            if self._movement is not None:
                self._movement.check(me.model)
        finally:
            self._close()
        metrics = {name: value for name, value in output.metrics.items() if name not in self.unlogged}
        return TrainOutput(output.global_step, math.nan, {**metrics, "epsilon": self.spent().certified.epsilon})

    def get_train_dataloader(self) -> DataLoader[Any]:
        """What `Trainer` counts: as many empty batches as an epoch has micro-batches by the public numbers."""
        per_step = cast(Trainer, self).args.gradient_accumulation_steps
        return DataLoader(range(self.plan.horizon.steps_per_epoch * per_step), collate_fn=_empty)  # type: ignore[arg-type]

    def evaluate(self, eval_dataset: Any = None, *args: Any, **others: Any) -> dict[str, float]:
        """Metrics of records that need no protection."""
        held: Any = cast(Trainer, self).eval_dataset
        named = held[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        self._check_apart(held if named is None else named)  # here, because TRL copies them
        return super().evaluate(eval_dataset, *args, **others)  # type: ignore[misc,no-any-return]

    def predict(self, test_dataset: Any, *args: Any, **others: Any) -> Any:
        """Predictions for records that need no protection, with their metrics."""
        self._check_apart(test_dataset)
        return super().predict(test_dataset, *args, **others)  # type: ignore[misc]

    def _check_apart(self, evaluated: Any) -> None:
        check_apart([self._given, cast(Trainer, self).train_dataset], evaluated)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The public number of records; of any other data the number of examples."""
        if dataloader.collate_fn is _empty:
            return self.plan.horizon.size.records
        return int(super().num_examples(dataloader))  # type: ignore[misc]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Release the gradient of a logical batch to `.grad`, when `Trainer` is about to step the optimizer."""
        me = cast(Trainer, self)
        if me.accelerator.sync_gradients:
            me.model.train()
            private = self._begin() if self.private is None else self.private
            assert self._movement is not None
            self._movement.look(me.model, private.progress.step)
            left = private.release(self._losses)
            got, remedy = "a ledger with all of them", "use the model of the checkpoint: the whole budget is spent"
            require(left, "a run with steps left", got, remedy)
        return torch.zeros((), device=me.args.device)  # the loss of a batch is private

    def _losses(self, batch: Any) -> Tensor:
        self._is_releasing = True
        try:
            return self.compute_loss_per_record(cast(Trainer, self).model, batch)
        finally:
            self._is_releasing = False

    def _begin(self) -> discreet.Private:
        """Start or continue the private run, now that model, optimizer and scheduler are what they will be."""
        me = cast(Trainer, self)
        records, collate = _columns_used(me, self.collate)
        self.ledger.parent.mkdir(parents=True, exist_ok=True)
        self.private = discreet.Private(
            me.model,
            me.optimizer,
            self.plan,
            records,
            micro_batch=me.args.per_device_train_batch_size,
            collate_fn=collate,
            num_workers=me.args.dataloader_num_workers,
            inputs=self.model_inputs,
            average=self._average,
            ledger=self.ledger,
            streams=self._streams,
            resume=None if self._resume is None else self._resume / STATE,
            unit=self._unit,
        )
        self._made = self.ledger.read_bytes() if self._resume is None else None
        # Steps that were charged after the checkpoint are lost: the schedule goes on behind them.
        lost = self.private.progress.step - me.state.global_step
        for _ in range(lost):
            me.lr_scheduler.step()
        me.state.global_step += lost
        self._movement = Movement(me.model, self.private.progress.step)
        return self.private

    def _close(self) -> None:
        """End the private run. If it has charged nothing, its ledger is removed, and it may begin again.

        Another run may have put its own ledger in this place. Every ledger has an identity in its first line, so a file
        with other bytes is another one, or has charges.
        """
        if self.private is None:
            return
        if self.private.ledger.length:
            self.private.close()
            return
        if self._made is not None and self.ledger.is_file() and self.ledger.read_bytes() == self._made:
            self.ledger.unlink()  # before it is closed: until then no other run can write to it
        self.private.close()
        self.private = self._made = None

    def _clip_grad_norm(self, model: Any) -> None:
        """Do nothing: every record is clipped already."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> None:
        """Nothing is logged, and the released gradient stays as it is."""

    # -- log, checkpoints, model card ------------------------------------------------------------------

    def log(self, logs: dict[str, float], *args: Any, **others: Any) -> None:
        """Log public values: the certified epsilon so far instead of what `Trainer` says about training batches."""
        remedy = "log metrics of public data: values of a training batch are not paid for"
        require(not self._is_releasing, "a log of public values", f"{sorted(logs)} of a training batch", remedy)
        left_out = sorted(self.unlogged & set(logs))
        if left_out and self.private is not None:
            logger.info("not logged, because it would come from records without noise: %s", ", ".join(left_out))
            logs["epsilon"] = self.spent().certified.epsilon
        for name in left_out:
            del logs[name]
        super().log(logs, *args, **others)  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the state of the method too. `Trainer` writes its own state afterwards, which completes a checkpoint."""
        super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        if self.private is not None:
            Path(output_dir, "plan.json").write_text(json.dumps(self.plan.to_json(), indent=1), encoding="utf-8")
            self.private.save(Path(output_dir, STATE), with_model=False)

    def _checkpoint(self, wanted: str | bool | None) -> Path | None:
        """The checkpoint to continue from; for True the newest complete one."""
        if not wanted:
            remedy = "train(resume_from_checkpoint=True), or pass another ledger=: the charges in this one still count"
            require(not self.ledger.exists(), "a new run", f"the ledger of an earlier one, {self.ledger}", remedy)
            return None
        if isinstance(wanted, str):
            expected, remedy = f"a complete checkpoint with {STATE}", "pass one that PrivateTrainer has written"
            require(_is_complete(Path(wanted)), expected, wanted, remedy)
            return Path(wanted)
        folder = Path(cast(Trainer, self).args.output_dir)
        found = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _is_complete(path)]
        remedy = "begin a new run, with another ledger= if this one has charges: they still count"
        require(bool(found), f"a complete checkpoint in {folder}", "none", remedy)
        return max(found, key=lambda path: int(path.name.rpartition("-")[2]))

    def create_model_card(self, *args: Any, **others: Any) -> None:
        """Add the privacy statement to the model card."""
        super().create_model_card(*args, **others)  # type: ignore[misc]
        me = cast(Trainer, self)
        card = Path(me.args.output_dir, "README.md")
        if self.private is not None and me.is_world_process_zero() and card.is_file():
            with card.open("a", encoding="utf-8") as file:
                file.write(f"\n\n{self.statement()}")

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        refuse("one run", "a hyperparameter search", _TUNING)


class PrivateTrainer(PrivateTraining, Trainer):
    """Hugging Face's `Trainer` with differential privacy; see `PrivateTraining` for its arguments."""


_TUNING: Final = "tune on public data: every trial on the records is a run with an epsilon of its own"


def _inside(model: Any) -> Any:
    """The model without the wrapper of PEFT."""
    is_wrapped = any(
        kind.__name__ == "PeftModel" and kind.__module__.startswith("peft.") for kind in type(model).__mro__
    )
    return model.get_base_model() if is_wrapped else model


def _is_encoder_decoder(model: Any) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))  # any module may be trained


def _columns_used(trainer: Trainer, collate: Callable[[list[Any]], Any]) -> tuple[Any, Callable[[list[Any]], Any]]:
    """The records with the columns that the model takes, and their collator."""
    records = trainer.train_dataset
    if type(records).__module__.startswith("datasets."):  # which may not be installed
        return trainer._remove_unused_columns(records, description="training"), collate
    return records, trainer._get_collator_with_removed_columns(collate, description="training")


def _empty(_: list[Any]) -> dict[str, Any]:
    """A batch that holds no records."""
    return {}


def _is_complete(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end. `Trainer` writes its own state last."""
    try:
        json.loads((checkpoint / TRAINER_STATE_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    return (checkpoint / STATE).is_file()
