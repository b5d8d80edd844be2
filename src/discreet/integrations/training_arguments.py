"""Which of Hugging Face's training arguments a private run takes over, and which it refuses by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Final

from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments, default_data_collator

import discreet
from discreet.integrations.refusal import refuse, require

Collator = Callable[[list[Any]], Any]

DEFAULT_CLIP: Final = float(TrainingArguments.max_grad_norm)  # cannot be told from a value that was not given
_PAD: Final = 'pad every record to one public length: padding="max_length", max_length=128'
_UNSUITED: Final[tuple[tuple[str, tuple[Any, ...], str], ...]] = (
    # attribute, the values that are fine, what to do
    ("train_sampling_strategy", ("random",), "leave it out: the plan draws the batches"),
    ("group_by_length", (False,), "leave it out: the plan draws the batches"),
    ("auto_find_batch_size", (False,), "set per_device_train_batch_size: a step must not be run again"),
    ("fp16", (False,), "use bf16=True: loss scaling would change released gradients"),
    ("torch_compile", (False,), "leave it out: compiled models hide their calls"),
    ("use_liger_kernel", (False,), "leave it out: fused losses are means over the batch"),
    ("include_num_input_tokens_seen", ("no", False), "leave it out: the number of tokens is private"),
    ("deepspeed", (None, ""), "train in one process, or call discreet.Private under torchrun"),
    ("fsdp", (None, "", [], False), "train in one process, or call discreet.Private under torchrun"),
    ("packing", (False,), f"leave it out: packing puts several records into one row. {_PAD}"),
    ("padding_free", (False,), f"leave it out: it joins the records of a batch. {_PAD}"),
)


def check_arguments(args: TrainingArguments) -> None:
    """Refuse arguments that would leak, or that contradict the certificate."""
    given = vars(args)
    for name, fine, remedy in _UNSUITED:
        value = given.get(name, fine[0])
        require(value in fine, f"{name}={fine[0]!r}", f"{name}={value!r}", remedy)
    remedy = "train in one process, or call discreet.Private under torchrun"
    require(args.world_size == 1 and args.n_gpu <= 1, "one process and at most one GPU", "several", remedy)


def check_trainer(trainer: Trainer) -> None:
    """Refuse a trainer without records, or with its own loss of a batch, loader or step."""
    remedy = "pass train_dataset=, with __len__ and __getitem__"
    require(trainer.train_dataset is not None, "the records to train on", "none", remedy)
    expected, remedy = "no compute_loss_func", "override compute_loss_per_record(model, inputs)"
    require(trainer.compute_loss_func is None, expected, "one, which sees a whole batch", remedy)
    got = "one of your own, which sees a whole batch and would be left out"
    is_fine = _is_own(trainer, "compute_loss_per_record") or not _is_own(trainer, "compute_loss")
    require(is_fine, "no compute_loss", got, remedy)
    got = "one of your own: its length would decide the number of steps, and callbacks would get its batches"
    remedy = "pass train_dataset= and data_collator=: the plan draws the batches"
    require(not _is_own(trainer, "get_train_dataloader"), "no get_train_dataloader", got, remedy)
    got, remedy = "one of your own, which decides what the optimizer gets", "use a callback, or compute_loss_per_record"
    require(not _is_own(trainer, "training_step"), "no training_step", got, remedy)


def check_stored(records: Any) -> None:
    """Refuse a stream: the plan draws records by their places."""
    is_stored = records is None or (isinstance(records, Sized) and not isinstance(records, IterableDataset))
    remedy = "load the records whole, without streaming=True: a stream has no places to draw from"
    require(is_stored, "a train_dataset with __len__ and __getitem__", "a stream of records", remedy)


def check_apart(records: Sequence[Any], evaluated: Any) -> None:
    """Refuse to evaluate on the protected records: what was given as them, and what the trainer made of it."""
    held = list(evaluated.values()) if isinstance(evaluated, dict) else [evaluated]
    remedy = "evaluate on public records: metrics of the training records are not paid for"
    is_apart = all(one is None or all(one is not other for other in records) for one in held)
    require(is_apart, "an eval_dataset without protected records", "train_dataset itself", remedy)


def _is_own(trainer: Trainer, method: str) -> bool:
    """Whether a method comes from a class of the user's."""
    owner = next(kind for kind in type(trainer).__mro__ if method in vars(kind))
    return owner.__module__.partition(".")[0] not in ("transformers", "trl", "discreet")


def plan_of(
    args: TrainingArguments, recipe: discreet.Recipe | None, plan: discreet.Plan | None, budget: Mapping[str, Any]
) -> discreet.Plan:
    """The plan for these arguments: made for the budget, or the given one if its batch and steps are the same."""
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
    if plan is not None:
        given = [name for name, value in {**budget, "recipe": recipe}.items() if value is not None]
        require(not given, "either a plan or a budget", f"plan and {', '.join(given)}", "leave one of them out")
        size, steps = plan.horizon.size, _steps(args, plan.horizon.steps_per_epoch)
        expected = f"arguments for the plan's batch {size.batch:g} and {plan.horizon.steps} steps"
        remedy = "choose per_device_train_batch_size, gradient_accumulation_steps and num_train_epochs accordingly"
        require((size.batch, plan.horizon.steps) == (batch, steps), expected, f"{batch} and {steps}", remedy)
        return plan
    missing = [name for name, value in budget.items() if value is None]
    remedy = "pass epsilon=, delta= and records=, a public number close to the size of the data; or plan="
    require(not missing, "a privacy budget", f"no {', '.join(missing)}", remedy)
    if recipe is None:
        require(args.max_grad_norm > 0, "max_grad_norm > 0", args.max_grad_norm, "it bounds each record's gradient")
        recipe = discreet.methods.dp_sgd(clip=args.max_grad_norm)
    else:
        expected = "the clip of the recipe alone"
        got, remedy = f"a recipe and max_grad_norm={args.max_grad_norm}", "leave max_grad_norm out"
        require(args.max_grad_norm in (DEFAULT_CLIP, 0, None), expected, got, remedy)
    per_epoch = math.ceil(budget["records"] / batch)
    return recipe.for_budget(**budget, batch=batch, steps=_steps(args, per_epoch))


def _steps(args: TrainingArguments, per_epoch: int) -> int:
    return int(args.max_steps) if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)


def training_collator(collator: Collator, *, is_own: bool) -> Collator:
    """The collator of training records. Padding to the longest record of a batch is refused by name."""
    if getattr(collator, "padding", None) not in (True, "longest"):
        return collator
    if not is_own:  # what Trainer takes if it is given a tokenizer; records of one length need no padding
        alike: Collator = default_data_collator
        return alike
    expected = "records of one public length"
    return refuse(expected, f"{type(collator).__name__}, which pads to the longest record of a batch", _PAD)
