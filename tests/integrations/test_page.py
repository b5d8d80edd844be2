"""The code of docs/trainers.md runs as it is written, on small models and data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import discreet
import loop

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The block of each section."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    found = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return dict(found)


def small_run() -> dict[str, Any]:
    model = loop.model()
    optimizer = loop.sgd(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    run = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "plan": loop.plan(), "dataset": loop.data()}
    return {**run, "F": nn.functional}


def test_every_section_is_tested(code: dict[str, str]) -> None:
    assert set(code) == {
        "Hugging Face",
        "TRL",
        "Accelerate",
        "Lightning",
        "scikit-learn",
        "Your own trainer",
        "Loggers",
    }


def test_hugging_face(code: dict[str, str]) -> None:
    small = pytest.importorskip("small_llama_trainer", reason="needs the extra huggingface")
    text = code["Hugging Face"].replace("num_train_epochs=10", "max_steps=2, use_cpu=True, report_to=[]")
    names = {"model": small.llama(), "dataset": small.records(1100)}
    exec(text, names)
    assert names["trainer"].spent().certified.epsilon <= 8.0


def test_the_example_of_the_readme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = pytest.importorskip("small_llama_trainer", reason="needs the extra huggingface")
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (text,) = [one for one in found if "PrivateTrainer" in one]
    names = {"model": small.llama(), "dataset": small.records(1100)}
    exec(text.replace("num_train_epochs=10", "max_steps=2, use_cpu=True, report_to=[]"), names)
    assert names["trainer"].spent().certified.epsilon <= 8.0


def test_trl(code: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="needs the extra trl")
    import small_llama_trainer as small
    import small_texts

    text = code["TRL"].replace("bf16=False", "bf16=False, max_steps=2, use_cpu=True, report_to=[]")
    text = text.replace("steps=64", "steps=2").replace("max_length=128", "max_length=6")
    adapters = "LoraConfig(r=4, target_modules=['q_proj'])"
    names = {"model": small.llama(), "texts": small_texts.texts(), "tokenizer": small_texts.tokenizer()}
    exec(text.replace("LoraConfig(r=4)", adapters), names)
    assert names["trainer"].spent().certified.epsilon <= 8.0


def test_accelerate(code: dict[str, str]) -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    names = small_run()
    exec(code["Accelerate"].replace("Accelerator()", "Accelerator(cpu=True)"), names)
    assert names["private"].updates == loop.STEPS
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_lightning(code: dict[str, str]) -> None:
    pytest.importorskip("lightning", reason="needs the extra lightning")
    names = small_run()
    options = "max_epochs=20, accelerator='cpu', logger=False, enable_checkpointing=False, enable_progress_bar=False"
    exec(code["Lightning"].replace("max_epochs=20", options), names)
    assert names["net"].private.updates == loop.STEPS


def test_scikit_learn(code: dict[str, str]) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    drawn = np.random.default_rng(0)
    cities = drawn.choice(["Delft", "Leiden"], 300)
    table = pandas.DataFrame({"age": drawn.integers(17, 90, 300), "city": cities})
    labels = np.where(cities == "Delft", "no", "yes")
    names = {"table": table, "labels": labels, "public_table": table, "public_labels": labels}
    exec(code["scikit-learn"], names)
    assert names["classifier"].epsilon_ <= 1.0


def test_own_trainer_and_loggers(code: dict[str, str], tmp_path: Path) -> None:
    names = small_run()
    names["private"] = discreet.Private(names["model"], names["optimizer"], names["plan"], names["dataset"])
    exec(code["Your own trainer"], names)
    assert names["private"].updates == loop.STEPS
    pytest.importorskip("tensorboard", reason="needs the extra loggers")
    exec(code["Loggers"], names)
    assert list((tmp_path / "runs" / "a").iterdir())
