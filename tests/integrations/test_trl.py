"""TRL: `SFTTrainer` with adapters, every record padded to one public length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("trl", reason="needs the extra trl")

import transformers
from peft import LoraConfig, get_peft_model
from trl import SFTConfig

import small_llama_trainer as small
import small_texts
from discreet import Private, Refused, Streams
from discreet.integrations import huggingface, record_losses
from discreet.integrations.trl import PrivateSFTTrainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

ADAPTERS = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])


def config(folder: Path, **options: Any) -> SFTConfig:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "learning_rate": 0.05,
        "max_length": 6,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    return SFTConfig(**{**settings, **options})


def trainer(folder: Path, **options: Any) -> PrivateSFTTrainer:
    return PrivateSFTTrainer(
        small.llama(),
        config(folder, **options),
        train_dataset=small_texts.texts(),
        processing_class=small_texts.tokenizer(),
        peft_config=ADAPTERS,
        streams=Streams.seeded(7),
        **small.BUDGET,
    )


def test_adapters_are_trained_and_only_public_values_are_logged(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    before = {name: p.detach().clone() for name, p in run.model.named_parameters() if p.requires_grad}
    assert all("lora" in name for name in before)
    run.train()
    now = dict(run.model.named_parameters())
    assert all(not torch.equal(now[name], old) for name, old in before.items())
    assert run.spent().certified.epsilon == run.plan.certificate().epsilon <= 6.0
    timing = {"train_runtime", "train_samples_per_second", "train_steps_per_second"}
    for entry in run.state.log_history:
        assert set(entry) <= {"learning_rate", "epoch", "step", "epsilon"} | timing


def test_same_certificate_and_weights_as_private(tmp_path: Path) -> None:
    """The same adapters, records and random streams, in the loop that users of `Private` write."""
    run = trainer(tmp_path)
    model = get_peft_model(small.llama(), ADAPTERS)
    model.load_state_dict(run.model.state_dict())
    before = weights(model)
    records, collate = huggingface._columns_used(run, run.collate)
    run.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, 4)
    private = Private(
        model,
        optimizer,
        run.plan,
        records,
        micro_batch=4,
        collate_fn=collate,
        inputs=lambda batch: {name: value for name, value in batch.items() if name != "labels"},
        streams=Streams.seeded(7),
    )
    model.train()
    for batch in private:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        if private.step(record_losses.token_losses(logits[:, :-1], batch["labels"][:, 1:])):
            schedule.step()
    assert run.spent() == private.spent()
    assert torch.allclose(weights(run.model), weights(model), rtol=0, atol=1e-6)
    assert not torch.allclose(weights(run.model), before, rtol=0, atol=1e-2)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


def test_every_record_has_the_public_length(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    rows = [run.collate([run.train_dataset[number]]) for number in range(small.RECORDS)]
    assert {tuple(row["input_ids"].shape) for row in rows} == {(1, 6)}
    assert {int(row["attention_mask"].sum()) for row in rows} > {3, 6}


@pytest.mark.parametrize("options", [{"packing": True}, {"padding_free": True}, {"max_length": None}])
def test_what_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Refused, match="a public length for every record"):
        trainer(tmp_path, **options)


def test_evaluation_on_the_records_is_refused(tmp_path: Path) -> None:
    """TRL makes tokenized copies of both, so they were not the same object any more."""
    held = small_texts.texts()
    given = {"train_dataset": held, "processing_class": small_texts.tokenizer(), **small.BUDGET}
    for evaluated in (held, {"train": held}):
        with pytest.raises(Refused, match="without protected records"):
            PrivateSFTTrainer(small.llama(), config(tmp_path), eval_dataset=evaluated, **given)


def test_metrics_of_the_records_are_refused_later_too(tmp_path: Path) -> None:
    """Of the records as they were given, and of the tokenized copy that TRL trains on."""
    held = small_texts.texts()
    given = {"train_dataset": held, "processing_class": small_texts.tokenizer(), **small.BUDGET}
    run = PrivateSFTTrainer(small.llama(), config(tmp_path), peft_config=ADAPTERS, **given)
    for records in (held, run.train_dataset):
        for measure in (run.evaluate, run.predict):
            with pytest.raises(Refused, match="without protected records"):
                measure(records)


def test_a_stream_is_refused(tmp_path: Path) -> None:
    given = {"train_dataset": small_texts.texts().to_iterable_dataset(), "processing_class": small_texts.tokenizer()}
    with pytest.raises(Refused, match="a stream of records"):
        PrivateSFTTrainer(small.llama(), config(tmp_path), **given, **small.BUDGET)
