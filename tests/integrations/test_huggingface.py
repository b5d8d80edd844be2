"""Hugging Face's Trainer: the same run as through `Private`, nothing private in its log, nothing charged twice."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs the extra huggingface")
pytest.importorskip("peft", reason="needs the extra huggingface")

import peft
import transformers
from transformers import DataCollatorWithPadding, TrainerCallback

import small_llama_trainer as small
from discreet import Private, Refused, Streams, methods
from discreet.accounting.ledger import read
from discreet.core.secret_draws import SecretDraws
from discreet.engine.proof.probe import PROBE_SEED
from discreet.integrations import huggingface, record_losses

STEPS = 6


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> huggingface.PrivateTrainer:
    """One whole run, with evaluation on public records, checkpoints and a callback."""
    made = small.trainer(
        tmp_path_factory.mktemp("run"),
        eval_dataset=small.records(8, seed=6),
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=2,
        include_num_input_tokens_seen="no",
        average=0.9,
        callbacks=[Seen()],
    )
    made.train()
    return made


class Seen(TrainerCallback):
    """What a callback, and so every logger, is given."""

    logs: list[dict[str, Any]] = []  # noqa: RUF012 - emptied by the first run

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append(dict(logs))


def test_same_certificate_and_weights_as_private(finished: huggingface.PrivateTrainer) -> None:
    model = small.adapted()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.05, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, STEPS)
    private = Private(
        model,
        optimizer,
        finished.plan,
        small.records(),  # type: ignore[arg-type]
        micro_batch=4,
        collate_fn=transformers.default_data_collator,
        inputs=lambda batch: {name: value for name, value in batch.items() if name != "labels"},
        streams=Streams.seeded(7),
    )
    model.train()
    for batch in private:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        if private.step(record_losses.token_losses(logits[:, :-1], batch["labels"][:, 1:])):
            schedule.step()
    assert finished.spent() == private.spent()
    assert finished.spent().certified.epsilon == private.plan.certificate().epsilon
    assert torch.allclose(weights(finished.model), weights(model), rtol=0, atol=1e-6)


def test_only_public_values_are_logged(finished: huggingface.PrivateTrainer) -> None:
    public = {"learning_rate", "epoch", "step", "epsilon"}
    timing = {"train_runtime", "train_samples_per_second", "train_steps_per_second"}
    for entry in (*finished.state.log_history, *Seen.logs):
        names = {name for name in entry if not name.startswith("eval_")}
        assert names <= public | timing
    spent = [entry["epsilon"] for entry in finished.state.log_history if "epsilon" in entry]
    assert spent == sorted(spent)
    assert spent[-1] == finished.plan.certificate().epsilon
    assert sum("eval_loss" in entry for entry in finished.state.log_history) == 2
    assert finished.state.total_flos == 0
    assert finished.state.num_input_tokens_seen == 0


def test_the_loader_of_trainer_holds_no_records(finished: huggingface.PrivateTrainer) -> None:
    loader = finished.get_train_dataloader()
    assert list(loader) == [{}] * (2 * STEPS)
    assert finished.num_examples(loader) == small.RECORDS
    assert finished._get_num_items_in_batch(list(loader), torch.device("cpu")) is None


def test_the_result_has_no_training_loss(finished: huggingface.PrivateTrainer, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished.args.output_dir, folder)
    other = small.trainer(folder, seed=8, ledger=tmp_path / "ledger")
    output = other.train()
    assert math.isnan(output.training_loss)
    assert output.metrics["epsilon"] == other.plan.certificate().epsilon
    assert "train_loss" not in output.metrics


def test_the_log_says_what_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=huggingface.__name__):
        small.trainer(tmp_path, max_steps=2).train()
    assert "would come from records without noise: loss" in caplog.text


def test_logs_of_a_training_batch_are_refused(tmp_path: Path) -> None:
    class Talkative(huggingface.PrivateTrainer):
        def compute_loss_per_record(self, model: Any, inputs: Any) -> Tensor:
            losses = super().compute_loss_per_record(model, inputs)
            self.log({"my_loss": float(losses.detach().mean())})
            return losses

    args = small.arguments(tmp_path)
    run = Talkative(small.adapted(), args, train_dataset=small.records(), streams=Streams.seeded(1), **small.BUDGET)
    with pytest.raises(Refused, match=r"a log of public values, got \['my_loss'\]"):
        run.train()
    assert not run.ledger.exists()  # nothing was charged


@pytest.mark.parametrize(
    "options",
    [pytest.param({"bf16": True}, marks=pytest.mark.slow), {"gradient_checkpointing": True}, {"warmup_steps": 2}],
)
def test_settings_of_trainer(options: dict[str, Any], tmp_path: Path) -> None:
    run = small.trainer(tmp_path, max_steps=4, **options)
    before = weights(run.model)
    run.train()
    assert (weights(run.model) != before).float().mean() > 0.9
    assert read(run.ledger).length == 4


def test_a_seeded_run_says_so_and_a_real_one_is_keyed_by_the_system(tmp_path: Path) -> None:
    runs = [small.trainer(tmp_path / str(number), seed=None, max_steps=2) for number in range(2)]
    for run in runs:
        run.train()
        assert not run.spent().seeded
    assert not torch.equal(weights(runs[0].model), weights(runs[1].model))  # args.seed is the same


# Checkpoints ----------------------------------------------------------------------------------------------


def masks_of_a_run(folder: Path, *, seed: int | None) -> list[Tensor]:
    """What dropout kept of the first record in each pass of a run, under one seed of `TrainingArguments`."""
    model, found = small.adapted(), []

    def note(dropout: nn.Module, given: Any, kept: Tensor) -> None:
        if not 0 <= torch.initial_seed() - PROBE_SEED < 100:  # the probe's passes hold no records
            with torch._C.DisableTorchFunction():  # the test's own calls are not the model's
                found.append(kept.detach()[:1] == 0)

    for part in model.modules():
        if isinstance(part, peft.tuners.lora.Linear):
            part.lora_dropout["default"] = dropout = nn.Dropout(0.5)
            dropout.register_forward_hook(note)
    small.trainer(folder, model=model, seed=seed).train()
    return found


@pytest.mark.parametrize("is_keyed", [True, False])
def test_dropout_is_secret_whatever_trainer_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_keyed: bool
) -> None:
    """Trainer calls `set_seed` with a public number. The control: without keys, the first masks are known."""
    if not is_keyed:
        monkeypatch.setattr(SecretDraws, "_key", lambda self, generator: None)
    runs = [masks_of_a_run(tmp_path / name, seed=None) for name in ("a", "b")]
    equal = [torch.equal(one, other) for one, other in zip(*runs, strict=False)]
    assert len(equal) >= STEPS
    assert equal[:2] == [not is_keyed] * 2
    assert is_keyed != any(equal)


def test_dropout_of_a_seeded_run_repeats(tmp_path: Path) -> None:
    runs = [masks_of_a_run(tmp_path / name, seed=7) for name in ("a", "b")]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_a_run_continues_behind_its_lost_steps(tmp_path: Path) -> None:
    """Stopped after step 5 with a checkpoint of step 4: one step is lost, and none is charged twice."""

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 5:
                raise KeyboardInterrupt

    options = {"save_strategy": "steps", "save_steps": 2}
    first = small.trainer(tmp_path, callbacks=[Stop()], **options)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert read(tmp_path / huggingface.LEDGER).length == 5
    torn = tmp_path / "checkpoint-5"
    torn.mkdir()
    (torn / "trainer_state.json").write_text('{"global_st')  # killed while it was written

    again = small.trainer(tmp_path, seed=8, **options)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == STEPS
    assert set(again.lr_scheduler.get_last_lr()) == {0.0}
    assert [entry.step for entry in read(tmp_path / huggingface.LEDGER).entries] == list(range(STEPS))
    assert again.spent().certified.epsilon <= small.BUDGET["epsilon"]
    with pytest.raises(Refused, match="a run with steps left, got a checkpoint of its last step"):
        small.trainer(tmp_path, seed=9, **options).train(resume_from_checkpoint=True)
    with pytest.raises(Refused, match="a ledger with all of them"):
        small.trainer(tmp_path, seed=9, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_checkpoints_hold_the_plan_and_no_copy_of_the_model(finished: huggingface.PrivateTrainer) -> None:
    folder = Path(finished.args.output_dir, "checkpoint-6")
    assert json.loads((folder / "plan.json").read_text()) == json.loads(json.dumps(finished.plan.to_json()))
    assert (folder / huggingface.STATE).stat().st_size < 20_000
    assert not torch.load(folder / huggingface.STATE)["model"]


def test_a_run_without_charges_leaves_the_ledger_of_another_run(tmp_path: Path) -> None:
    """Both in one folder: the first fails before its first charge, the second trains, the first goes on."""

    class Failing(huggingface.PrivateTrainer):
        def compute_loss_per_record(self, model: Any, inputs: Any) -> Tensor:
            raise RuntimeError("a bug of the user")

    args = small.arguments(tmp_path)
    run = Failing(small.adapted(), args, train_dataset=small.records(), streams=Streams.seeded(1), **small.BUDGET)
    with pytest.raises(RuntimeError, match="a bug of the user"):
        run.train()
    assert not run.ledger.exists()
    assert run.private is None
    other = small.trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    other.train()
    with pytest.raises(Refused):  # another plan
        run.train(resume_from_checkpoint=True)
    assert read(other.ledger).length == 2


def test_a_ledger_in_place_of_that_of_a_failed_run_stays(tmp_path: Path) -> None:
    class Replaced(huggingface.PrivateTrainer):
        def compute_loss_per_record(self, model: Any, inputs: Any) -> Tensor:
            self.ledger.unlink()
            self.ledger.write_bytes(b"of another run")
            raise RuntimeError("a bug of the user")

    args = small.arguments(tmp_path)
    run = Replaced(small.adapted(), args, train_dataset=small.records(), streams=Streams.seeded(1), **small.BUDGET)
    with pytest.raises(RuntimeError, match="a bug of the user"):
        run.train()
    assert run.ledger.read_bytes() == b"of another run"


def test_an_old_ledger_is_not_written_over(finished: huggingface.PrivateTrainer) -> None:
    before = finished.ledger.read_bytes()
    with pytest.raises(Refused, match="the ledger of an earlier one"):
        finished.train()
    assert finished.ledger.read_bytes() == before


def test_a_checkpoint_without_privacy_is_refused(tmp_path: Path) -> None:
    run = small.trainer(tmp_path)
    with pytest.raises(Refused, match="a complete checkpoint"):
        run.train(resume_from_checkpoint=True)
    with pytest.raises(Refused, match="a complete checkpoint"):
        run.train(resume_from_checkpoint=str(tmp_path))


def test_the_model_card_has_the_statement(finished: huggingface.PrivateTrainer) -> None:
    finished.create_model_card(model_name="small")
    card = Path(finished.args.output_dir, "README.md").read_text(encoding="utf-8")
    assert finished.statement() in card
    assert "the training records" in card


def test_the_average_of_the_parameters(finished: huggingface.PrivateTrainer) -> None:
    own = weights(finished.model)
    assert finished.private is not None
    with finished.private.averaged():
        assert not torch.equal(weights(finished.model), own)
    assert torch.equal(weights(finished.model), own)


# What moves -----------------------------------------------------------------------------------------------


def test_adapters_that_do_not_move_are_refused(tmp_path: Path) -> None:
    run = small.trainer(tmp_path, learning_rate=0.0)
    with pytest.raises(Refused, match=r"of 4 at their initial values, such as .*lora_A"):
        run.train()
    assert read(run.ledger).length == 3  # after the first steps


def test_short_runs_are_checked_at_their_end(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="at their initial values"):
        small.trainer(tmp_path, learning_rate=0.0, max_steps=2).train()


def test_a_model_without_trainable_parameters(tmp_path: Path) -> None:
    with pytest.raises((Refused, ValueError), match=r"trainable|empty parameter list"):
        small.trainer(tmp_path, model=small.llama().requires_grad_(False)).train()


# What is refused ------------------------------------------------------------------------------------------

ARGUMENTS = {
    "train_sampling_strategy": "group_by_length",
    "auto_find_batch_size": True,
    "use_liger_kernel": True,
    "include_num_input_tokens_seen": "all",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_leak_are_refused_by_name(name: str, tmp_path: Path) -> None:
    args = small.arguments(tmp_path)
    setattr(args, name, ARGUMENTS[name])
    with pytest.raises(Refused, match=f"{name}={ARGUMENTS[name]!r}"):
        huggingface.check_arguments(args)


def test_packing_is_refused(tmp_path: Path) -> None:
    args = small.arguments(tmp_path)
    args.packing = True
    with pytest.raises(Refused, match="several records into one row"):
        huggingface.check_arguments(args)


class Tokenizer:
    """As much of a tokenizer as a collator needs to be built."""

    padding_side, pad_token_id = "right", 0


def test_padding_to_the_longest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="DataCollatorWithPadding, which pads to the longest record"):
        small.trainer(tmp_path, data_collator=DataCollatorWithPadding(Tokenizer()))  # type: ignore[arg-type]


def test_records_of_different_lengths_are_refused(tmp_path: Path) -> None:
    lengths = torch.randint(2, 7, (small.RECORDS,)).tolist()
    uneven = [
        {name: value[:length] for name, value in one.items()}
        for one, length in zip(small.records(), lengths, strict=True)
    ]
    with pytest.raises(Refused, match="pad every record to one public length"):
        small.trainer(tmp_path, train_dataset=uneven).train()
    assert not (tmp_path / huggingface.LEDGER).exists()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no budget": ({"epsilon": None}, "no epsilon"),
    "two clips": ({"recipe": methods.dp_sgd(clip=0.1), "max_grad_norm": 0.5}, "the clip of the recipe alone"),
    "no clip": ({"max_grad_norm": 0.0}, "max_grad_norm > 0"),
    "its own loss": ({"compute_loss_func": lambda *_, **__: None}, "compute_loss_per_record"),
    "no records": ({"train_dataset": None}, "the records to train on"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str, tmp_path: Path) -> None:
    options, message = BAD[name]
    with pytest.raises(Refused, match=message):
        small.trainer(tmp_path, **options)


def test_a_loss_of_the_batch_is_not_left_out_in_silence(tmp_path: Path) -> None:
    class Weighted(huggingface.PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **others: Any) -> Any:
            return super().compute_loss(model, inputs, *args, **others)

    class Both(Weighted):
        def compute_loss_per_record(self, model: Any, inputs: Any) -> Tensor:
            return super().compute_loss_per_record(model, inputs)

    given = {"train_dataset": small.records(), "streams": Streams.seeded(1), **small.BUDGET}
    with pytest.raises(Refused, match=r"no compute_loss, got one of your own.*compute_loss_per_record"):
        Weighted(small.adapted(), small.arguments(tmp_path), **given)
    Both(small.adapted(), small.arguments(tmp_path), **given)


def test_a_loader_of_records_is_refused(tmp_path: Path) -> None:
    """The number of steps followed its length, which is private."""

    class Loaded(huggingface.PrivateTrainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.train_dataset, batch_size=4)

    with pytest.raises(Refused, match="no get_train_dataloader, got one of your own"):
        Loaded(small.adapted(), small.arguments(tmp_path), train_dataset=small.records(), **small.BUDGET)


def test_an_own_training_step_is_refused(tmp_path: Path) -> None:
    """It trained without a release, a charge or noise, and failed only at the end of the training."""

    class Stepping(huggingface.PrivateTrainer):
        def training_step(self, *args: Any, **others: Any) -> Tensor:
            return super().training_step(*args, **others)

    with pytest.raises(Refused, match="no training_step, got one of your own"):
        Stepping(small.adapted(), small.arguments(tmp_path), train_dataset=small.records(), **small.BUDGET)


def test_evaluation_on_the_records_is_refused(tmp_path: Path) -> None:
    held = small.records()
    for evaluated in (held, {"train": held}):
        with pytest.raises(Refused, match="without protected records"):
            small.trainer(tmp_path, train_dataset=held, eval_dataset=evaluated)


def test_metrics_of_the_records_are_refused_later_too(tmp_path: Path) -> None:
    held = small.records()
    run = small.trainer(tmp_path, train_dataset=held, eval_dataset=small.records(8, seed=6))
    for measured in (lambda: run.evaluate(held), lambda: run.evaluate({"a": held}), lambda: run.predict(held)):
        with pytest.raises(Refused, match="without protected records"):
            measured()
    run.eval_dataset = held
    with pytest.raises(Refused, match="without protected records"):
        run.evaluate()


def test_a_stream_of_records_is_refused(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(small.records())

    with pytest.raises(Refused, match=r"a stream of records.*without streaming=True"):
        small.trainer(tmp_path, train_dataset=Stream(), max_steps=6)


def test_a_plan_must_fit_the_arguments(tmp_path: Path) -> None:
    plan = methods.dp_sgd(clip=0.1).for_budget(epsilon=3.0, delta=1e-3, records=48, batch=8, steps=5)
    with pytest.raises(Refused, match="the plan's batch 8 and 5 steps, got 8 and 6"):
        small.trainer(tmp_path, plan=plan)
    assert small.trainer(tmp_path, plan=plan, max_steps=5).plan is plan


def test_searches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="tune on public data"):
        small.trainer(tmp_path).hyperparameter_search()


def test_the_clip_is_max_grad_norm(tmp_path: Path) -> None:
    assert small.trainer(tmp_path, max_grad_norm=0.25).plan.bounder == methods.dp_sgd(clip=0.25).bounder


# Losses ---------------------------------------------------------------------------------------------------


def heads() -> Iterator[tuple[str, Any, dict[str, Tensor]]]:
    torch.manual_seed(0)
    small_sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert: dict[str, Any] = {"vocab_size": 19, "num_labels": 3, **small_sizes}
    ids = torch.randint(0, 19, (4, 6))
    yield "causal", small.llama(), {"input_ids": ids, "labels": ids.clone()}
    for problem, labels in (
        ("single_label_classification", torch.randint(0, 3, (4,))),
        ("multi_label_classification", torch.randint(0, 2, (4, 3)).float()),
    ):
        config = transformers.BertConfig(**bert, problem_type=problem)
        yield problem, transformers.BertForSequenceClassification(config), {"input_ids": ids, "labels": labels}
    config = transformers.BertConfig(**{**bert, "num_labels": 1})
    yield "regression", transformers.BertForSequenceClassification(config), {"input_ids": ids, "labels": torch.randn(4)}
    tagged = transformers.BertForTokenClassification(transformers.BertConfig(**bert))
    yield "tokens", tagged, {"input_ids": ids, "labels": torch.randint(0, 3, (4, 6))}
    t5 = transformers.T5Config(
        vocab_size=19, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    yield "seq2seq", transformers.T5ForConditionalGeneration(t5), {"input_ids": ids, "labels": ids[:, :4].clone()}


@pytest.mark.parametrize(
    ("name", "model", "inputs"), list(heads()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_losses_of_records_average_to_the_loss_of_the_model(
    name: str, model: Any, inputs: dict[str, Tensor], tmp_path: Path
) -> None:
    """Records with equally many tokens: the mean over records is the model's own mean over the batch."""
    run = small.trainer(tmp_path, model=model)
    model.eval()
    with torch.no_grad():
        losses = run.compute_loss_per_record(model, inputs)
        assert losses.shape == (4,)
        assert float(losses.mean()) == pytest.approx(float(model(**inputs).loss), rel=1e-5)
        alone = run.compute_loss_per_record(model, {key: value[1:2] for key, value in inputs.items()})
    assert torch.allclose(losses[1:2], alone, atol=1e-5)


def test_ignored_tokens_do_not_count() -> None:
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, -100, -100], [-100, -100, -100]])
    losses = record_losses.token_losses(logits, labels)
    assert float(losses[0]) == pytest.approx(float(nn.functional.cross_entropy(logits[0, :1], labels[0, :1])))
    assert float(losses[1]) == 0.0


def test_other_models_need_their_own_loss(tmp_path: Path) -> None:
    run = small.trainer(tmp_path)
    with pytest.raises(Refused, match="override compute_loss_per_record"):
        run.compute_loss_per_record(small.llama(), {"input_ids": torch.zeros(2, 6, dtype=torch.long)})
