"""TRL: `SFTTrainer` with adapters, every record padded to one public length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="needs the extra trl")

from peft import LoraConfig
from trl import SFTConfig

import small_llama_trainer as small
import small_texts
from discreet import Refused, Streams
from discreet.integrations.trl import PrivateSFTTrainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


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
        peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"]),
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


def test_every_record_has_the_public_length(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    rows = [run.collate([run.train_dataset[number]]) for number in range(small.RECORDS)]
    assert {tuple(row["input_ids"].shape) for row in rows} == {(1, 6)}
    assert {int(row["attention_mask"].sum()) for row in rows} > {3, 6}


@pytest.mark.parametrize("options", [{"packing": True}, {"padding_free": True}, {"max_length": None}])
def test_what_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Refused, match="a public length for every record"):
        trainer(tmp_path, **options)
