"""Every block of Python on a page runs, in the order of the page; a page that no test runs is found."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cli_runner import run

import discreet
import written
from discreet import data, methods
from fixed_keys import fix_keys

# Pages that need something of their own: tests/test_examples.py and tests/test_add_a_method.py run them.
ELSEWHERE = {"README.md", "docs/getting-started.md", "docs/moving-from-opacus.md", "docs/add-a-method.md"}
ELSEWHERE |= {"docs/federated.md"}  # tests/integrations/test_flower.py runs the program that it shows
ELSEWHERE |= {"docs/trainers.md"}  # tests/integrations/test_page.py
ELSEWHERE |= {str(path.relative_to(written.ROOT)) for path in (written.ROOT / "docs" / "methods").glob("*.md")}


def name_of(page: Path) -> str:
    return str(page.relative_to(written.ROOT))


SMALLER = {
    "docs/features.md": (('"fashion-mnist"', '"digits"'), (', "patches"', ""), ('"cifar10"', '"mnist"')),
    "docs/tuning.md": (('data="adult"', 'data="digits", model="softmax", steps=4'), ("runs=3", "runs=2, workers=1")),
}
"""Words of a page that a test replaces, so that it takes seconds."""


def blocks(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    for word, other in SMALLER.get(name_of(page), ()):
        assert word in text, (page, word)
        text = text.replace(word, other)
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


RUN = [
    pytest.param(page, marks=[pytest.mark.slow] if name_of(page) in SMALLER else [], id=name_of(page))
    for page in written.PAGES
    if blocks(page) and name_of(page) not in ELSEWHERE
]


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with known keys, as the only process of a group."""
    monkeypatch.chdir(tmp_path)
    fix_keys(request.node.nodeid, monkeypatch)
    init = dist.init_process_group
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda backend: init(backend, init_method=f"file://{tmp_path}/meet", rank=0, world_size=1),
    )


def prepared(page: str) -> dict[str, Any]:
    """What a page takes for granted."""
    if page == "docs/command-line.md":
        Path("runs/own").mkdir(parents=True)
        torch.save(data.build("mlp", shape=(8, 8), classes=3).state_dict(), "runs/own/model.pt")
    if page == "docs/datasets.md":
        x, y = np.zeros((30, 4), np.float32), np.arange(30) % 3
        return {"np": np, "x": x, "y": y, "u": x, "v": y}
    if page == "docs/tuning.md":
        discreet.Budget.create("visits-2024.json", discreet.BudgetLimit(epsilon=8.0, delta=1e-5))
        model = torch.nn.Linear(4, 2)
        plan = methods.dp_sgd().for_budget(epsilon=1.0, delta=1e-6, records=300, batch=100, epochs=1)
        optimizer, dataset = torch.optim.SGD(model.parameters(), lr=0.1), (torch.randn(300, 4), torch.zeros(300))
        return {"model": model, "plan": plan, "optimizer": optimizer, "dataset": dataset}
    return {}


@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = name_of(page)
    if name.endswith("language-model.md"):
        pytest.importorskip("transformers")
    names: dict[str, Any] = {"__name__": "page", **prepared(name)}
    try:
        for code in blocks(page):
            exec(compile(code, name, "exec"), names)
    except data.MissingDataset as missing:
        pytest.skip(str(missing))
    if "accuracy" in names:  # of a tutorial: well above a coin
        assert names["accuracy"] > 0.75
    if "private" in names:
        assert names["private"].spent().certified.epsilon <= names["plan"].certificate().epsilon
        names["private"].close()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["tabular", "text", "images"])
def test_the_commands_of_a_tutorial(page: str) -> None:
    """Every command of a page runs, in its order, on the files that its code writes."""
    path = written.ROOT / "docs" / "tutorials" / f"{page}.md"
    names: dict[str, Any] = {"__name__": "page"}
    for code in blocks(path):
        if any(word in code for word in ("open(", "write_text", "savez", ".save(file)")):
            exec(compile(code, page, "exec"), names)
    text = path.read_text(encoding="utf-8")
    for schema in re.findall(r"^```json\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        Path("schema.json").write_text(schema)
    lines = re.findall(r"^    discreet (.*)$", text, re.MULTILINE)
    assert len(lines) > 2
    for line in lines:
        if line.startswith("compare"):  # trains every method
            continue
        told = run(*shlex.split(line))
        if told.code == 2 and "MNIST" in told.err:  # its files are not on this machine
            pytest.skip(told.err)
        assert told.code == 0, (line, told.err)


def test_the_pages_that_run_elsewhere_exist() -> None:
    assert not {page for page in ELSEWHERE if not (written.ROOT / page).is_file()}
    assert len(RUN) > 20
