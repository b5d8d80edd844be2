"""The examples and the README's loop run as they are written."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

ROOT = Path(__file__).resolve().parents[1]


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = example("own_model").main(records=2000, epochs=4)
    assert accuracy > 0.75  # a coin gives 0.5; 4 standard errors of 1000 answers are 0.06
    assert "certified 3.00 (PLD, add/remove, delta=1e-05) · claimed none" in capsys.readouterr().out


def test_opacus_side_by_side() -> None:
    pytest.importorskip("opacus", reason="the comparison needs opacus (pip install opacus)")
    module = example("opacus_side_by_side")
    module.EPOCHS = 2
    task = module.tasks.load("digits")
    ours, certified = module.with_discreet(task)
    theirs, epsilon = module.with_opacus(task)
    assert certified <= epsilon * 1.001
    assert abs(ours - theirs) < 0.2
    assert ours > 0.5


def test_the_loop_of_the_readme() -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    names = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": TensorDataset(torch.randn(300, 1, 28, 28), torch.randint(0, 10, (300,))),
    }
    exec(code[1].replace("epochs=20", "epochs=1"), names)
    assert names["private"].spent().certified.epsilon <= 3.0  # type: ignore[attr-defined]
