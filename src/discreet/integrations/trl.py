"""Supervised fine-tuning with TRL's `SFTTrainer`, and differential privacy.

    trainer = PrivateSFTTrainer(
        model, SFTConfig(max_length=128, bf16=False), train_dataset=texts, processing_class=tokenizer,
        peft_config=LoraConfig(r=4), epsilon=8.0, delta=1e-6, records=40_000,
    )

TRL tokenizes the records one by one and keeps the result in the cache of `datasets`, on disk: protect that folder.
"""

import copy
from typing import Any

from trl import SFTConfig, SFTTrainer

from discreet.integrations.huggingface import PrivateTraining
from discreet.integrations.refusal import require


class PrivateSFTTrainer(PrivateTraining, SFTTrainer):
    """TRL's `SFTTrainer` with differential privacy; see `PrivateTraining` for the arguments that it adds.

    Every record is padded to `args.max_length`, which is public. Packing and padding-free batches are refused.
    """

    def __init__(self, model: Any, args: SFTConfig, *rest: Any, **others: Any) -> None:
        super().__init__(model, _of_one_length(args), *rest, **others)


def _of_one_length(args: SFTConfig) -> SFTConfig:
    """The same arguments; the collator pads every record to the public length."""
    remedy = "pass SFTConfig(max_length=128, packing=False): a public length for every record"
    require(isinstance(args, SFTConfig), "an SFTConfig", type(args).__name__, remedy)
    require(args.max_length is not None, "a public max_length", "none", remedy)
    joined = args.packing or args.padding_free
    require(not joined, "one record in each row", "packing or padding_free", remedy)
    require(args.loss_type == "nll", 'loss_type="nll"', f"loss_type={args.loss_type!r}", "leave it out")
    own = copy.copy(args)
    own.pad_to_multiple_of = args.max_length  # records are cut there, so every one has this length
    return own
