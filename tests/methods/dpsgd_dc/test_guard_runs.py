"""Run directories of which only the last iterate leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from discreet.core.check import Refused
from discreet.core.errors import RunStopped
from discreet.runs import RunConfig, RunFolder
from discreet.runs import train as train_run


def config(tmp_path: Path, **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "delta": 1e-5,
        "out": str(tmp_path / "run"),
        "data": "digits",
        "model": "softmax",
        "method": "dpsgd-dc",
        "parameters": (("link", "softmax"), ("features", 1.0), ("radius", 5.0)),
        "noise": 20.0,
        "steps": 12,
        "sampling": "full-batch",
        "learning_rate": 1.5,
        "weight_decay": 0.001,
        "micro_batch": 2048,
        "eval_every": 2,
        "seed": 1,
    }
    return RunConfig(**(fields | changes))


def test_a_hidden_run_is_evaluated_at_its_end_alone(tmp_path: Path) -> None:
    result = train_run(config(tmp_path))
    assert [point[0] for point in result.curve] == [12]
    assert [line["step"] for line in RunFolder(result.directory).read_metrics()] == [12]
    assert "the final parameters only" in result.statement
    assert "learning_rate=1.5" in result.statement
    assert "weight_decay=0.001" in result.statement
    assert torch.load(RunFolder(result.directory).checkpoint, weights_only=True)["hidden"] is False


def test_a_condition_is_in_the_first_sentence_of_the_statement(tmp_path: Path) -> None:
    word = config(tmp_path, parameters=(("smoothness", 2.0),), model="mlp", steps=2, seed=None, weight_decay=0.0)
    result = train_run(word)
    assert (
        "**If every loss is L-smooth with L = 2**, which has not been checked, the released model" in result.statement
    )
    assert "if every loss is L-smooth with L = 2" in str(result.spent)


def test_run_settings_that_the_certificate_does_not_cover(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="got Poisson"):
        train_run(config(tmp_path, sampling="poisson", batch=100))
    with pytest.raises(Refused, match="no average of parameters"):
        train_run(config(tmp_path, average=0.9))
    with pytest.raises(Refused, match="the only trainable layer"):
        train_run(config(tmp_path, model="mlp", out=str(tmp_path / "other")))
    with pytest.raises(Refused, match="without momentum"):
        train_run(config(tmp_path, momentum=0.5, out=str(tmp_path / "third")))
    stated = (("link", "softmax"), ("learning_rate", 1.0))
    with pytest.raises(Refused, match=r"the learning rate 1\.0 that the certificate states.*got lr=1\.5"):
        train_run(config(tmp_path, parameters=stated, out=str(tmp_path / "fourth"), weight_decay=0.0))


def test_a_crash_after_the_last_evaluation_shows_no_second_iterate(tmp_path: Path) -> None:
    def broken_pipe(news: Any) -> None:
        if news.accuracy is not None:
            raise BrokenPipeError

    asked = config(tmp_path, steps=7, checkpoint_every=4, noise=0.5)
    with pytest.raises(RunStopped, match="BrokenPipeError"):
        train_run(asked, on_progress=broken_pipe)
    result = train_run(asked, resume=True)
    shown = {line["test_accuracy"] for line in RunFolder(result.directory).read_metrics()}
    assert shown == {result.accuracy}
    assert result.lost == 0
