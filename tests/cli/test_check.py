"""`discreet check` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import refused, run

MODULE = """
import torch
from torch import nn

def good():
    return nn.Linear(4, 2), torch.randn(8, 4)

def own_loss():
    return nn.Linear(4, 2), torch.randn(8, 4), lambda output, x: output.sum(1) - output.mean()

def normed():
    return nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), torch.randn(8, 4)

def alone():
    return nn.Linear(4, 2)

def broken():
    raise KeyError("weights")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"checked_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_good_model(module: str) -> None:
    shown = run("check", f"{module}:good")
    assert (shown.code, shown.err) == (0, "")
    for part in ("Linear", "can be trained privately", "yes", "times plain SGD", "256 records of a batch of 256"):
        assert part in shown.out
    answer = run("check", f"{module}:good", "--batch", 40, "--json").json
    assert (answer["accepted"], answer["refusals"], answer["micro_batch"]) == (True, [], 40)
    assert answer["private"]["seconds"] > 0


@pytest.mark.parametrize(("factory", "part"), [("normed", "discreet.fix"), ("own_loss", "mean")])
def test_a_refused_model_is_no_error_of_the_command(module: str, factory: str, part: str) -> None:
    shown = run("check", f"{module}:{factory}", "--json")
    assert (shown.code, shown.err) == (1, "")
    assert part in json.loads(shown.out)["refusals"][0]


@pytest.mark.parametrize(
    ("factory", "parts"),
    [
        (":alone", ["to return (model, inputs)", "Linear"]),
        (":broken", ["KeyError", "weights"]),
        (":none", ["no such function"]),
        ("", ["MODULE:FACTORY"]),
        ("_absent:make", ["ModuleNotFoundError"]),
    ],
)
def test_bad_input_is_one_line(module: str, factory: str, parts: list[str]) -> None:
    refused(run("check", f"{module}{factory}"), *parts)


def test_a_bad_batch(module: str) -> None:
    refused(run("check", f"{module}:good", "--batch", 0), "batch")
