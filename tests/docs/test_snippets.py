"""Every block of Python on a page runs, in the order of the page; a page that no test runs is found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import written
from discreet import data
from fixed_keys import fix_keys

# Pages that need something of their own: tests/test_examples.py and tests/test_add_a_method.py run them.
ELSEWHERE = {"README.md", "docs/getting-started.md", "docs/moving-from-opacus.md", "docs/add-a-method.md"}
ELSEWHERE |= {str(path.relative_to(written.ROOT)) for path in (written.ROOT / "docs" / "methods").glob("*.md")}


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(written.ROOT))


RUN = [page for page in written.PAGES if blocks(page) and name_of(page) not in ELSEWHERE]


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
    return {}


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_code_of_a_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = name_of(page)
    if name.endswith("language-model.md"):
        pytest.importorskip("transformers")
    if name == "docs/datasets.md" and not _has_fashion():
        pytest.skip("Fashion-MNIST is not on this machine")
    names: dict[str, Any] = {"__name__": "page", **prepared(name)}
    for code in blocks(page):
        exec(compile(code, name, "exec"), names)
    if "accuracy" in names:  # of a tutorial: well above a coin
        assert names["accuracy"] > 0.75
    if "private" in names:
        assert names["private"].spent().certified.epsilon <= names["plan"].certificate().epsilon
        names["private"].close()


def _has_fashion() -> bool:
    try:
        data.load("fashion-mnist", data_dir="data")
    except data.MissingDataset:
        return False
    return True


def test_the_pages_that_run_elsewhere_exist() -> None:
    assert not {page for page in ELSEWHERE if not (written.ROOT / page).is_file()}
    assert len(RUN) > 20
