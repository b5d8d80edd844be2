"""The examples, and the code of the README and of the documentation, run as they are written."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import discreet
from fixed_keys import fix_keys
from research import notebooks

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _fixed_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples take keys from the operating system, and their accuracies vary; here each run is the same."""
    fix_keys(request.node.nodeid, monkeypatch)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_users(capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = example("users").main(steps=30)
    assert min(accuracies.values()) > 0.6
    assert "add/remove of one author" in capsys.readouterr().out


def test_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = example("own_model").main(records=2000, epochs=4)
    assert accuracy > 0.75  # a coin gives 0.5; 4 standard errors of 1000 answers are 0.06
    assert "certified 3.00 (PLD, add/remove, delta=1e-05) · claimed none" in capsys.readouterr().out


def test_sequences_go_on_after_a_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = example("sequences").main
    main(tmp_path, records=2500, epochs=2, stop_after=7)
    assert "7 charged of 20 planned" in (tmp_path / "privacy-statement.md").read_text()
    accuracy = main(tmp_path, records=2500, epochs=2)
    assert accuracy > 0.5  # a guess gives 0.33; 4 standard errors of 1000 answers are 0.06
    statement = (tmp_path / "privacy-statement.md").read_text()
    assert "**epsilon 3.00** at delta 1e-05" in statement
    assert "| protected | the sensors' readings |" in statement
    assert "dp-sgd (FlatClip(clip=0.5))" in statement
    assert "20 charged of 20 planned" in statement
    assert capsys.readouterr().out.count("certified 3.00") == 1


def test_several_processes_in_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = example("several_processes").main
    assert main(tmp_path, records=1000, epochs=4) > 0.7  # a coin gives 0.5; 4 standard errors of 1000 answers are 0.06
    assert "certified 3.00" in capsys.readouterr().out
    main(tmp_path, records=1000, epochs=4)  # resumes, with no step left
    assert "certified 3.00" in capsys.readouterr().out


@pytest.mark.slow
def test_several_processes_under_torchrun(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    local = ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command = [*launcher, *local, "examples/several_processes.py", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 processes" in done.stdout
    assert "certified 3.00" in done.stdout


def test_the_slurm_script_is_a_shell_script_for_the_example() -> None:
    """SLURM is not here: the shell reads it, and it starts the example with torchrun."""
    script = ROOT / "examples" / "several_processes.slurm"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    assert "torchrun" in text
    assert "examples/several_processes.py" in text


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


def test_smollm2_e2e(tmp_path: Path) -> None:
    """On a tiny model with a few texts: the adapters move, and the budget holds."""
    pytest.importorskip("gguf", reason="needs the extra research")
    pytest.importorskip("sacrebleu", reason="needs the extra research")
    import small_llama

    module = example("smollm2_e2e")
    known = small_llama.small()
    facts = {f"name[Cafe {number}]": [f"the tea at Cafe {number}"] for number in range(40)}
    room = max(len(known.prompt(module.e2e.request(about))) for about in facts) - 1
    texts = module.Texts(module.e2e.encoded(known, facts, room=room))
    trainer = module.main(known, texts, folder=str(tmp_path), public_records=40, batch=20, epochs=1)
    assert trainer.state.global_step == 2
    assert trainer.spent().certified.epsilon <= 8.0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("peer", ["opacus", "dice-e2e"])
def test_smollm2_e2e_beside_its_peers(peer: str) -> None:
    pytest.importorskip("gguf", reason="needs the extra research")
    pytest.importorskip("opacus", reason="the comparison needs opacus (pip install opacus)")
    import small_llama

    from research import e2e_peers
    from research.tasks import e2e
    from research.tasks.smollm2 import Tail

    known = small_llama.small()
    facts = {f"name[Cafe {number}]": [f"the tea at Cafe {number}"] for number in range(40)}
    room = max(len(known.prompt(e2e.request(about))) for about in facts) - 1
    before = {name: p.detach().clone() for name, p in known.model.named_parameters() if p.requires_grad}
    records = e2e.Examples(e2e.encoded(known, facts, room=room))
    found = e2e_peers.PEERS[peer](Tail(known), records, epsilon=8.0, public_records=40, batch=20, epochs=1)
    assert found["steps"] == 2
    assert found["epsilon"] == pytest.approx(8.0, rel=0.01)  # Opacus's accountant rounds at other places
    now = dict(known.model.named_parameters())
    assert all(bool((now[name] != old).any()) for name, old in before.items())


@pytest.mark.slow
def test_minilm_reviews(tmp_path: Path) -> None:
    """On a tiny encoder with made-up words: one of them means yes."""
    pytest.importorskip("pandas", reason="needs the extra research")
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=30, num_labels=2, **sizes))
    words = torch.randint(3, 30, (240, 8))
    words[:, 1] = torch.where(torch.arange(240) % 2 == 0, 1, 2)
    mask = torch.ones(8, dtype=torch.long)
    rows = [{"input_ids": row, "attention_mask": mask, "labels": 2 - row[1]} for row in words]
    module = example("minilm_reviews")
    found = module.main(model, rows[:200], rows[200:], folder=str(tmp_path), epsilon=20.0, batch=64, epochs=2)
    assert found["epsilon"] <= 20.0
    assert 0.0 <= found["eval_accuracy"] <= 1.0


def test_adult_sklearn() -> None:
    """Rows that are made up; the test of the real table is slow."""
    module = example("adult_sklearn")
    rich = "39, Private, 77516, Masters, 14, Married-civ-spouse, Exec-managerial, Husband, White, Male, 7000, 0, 50, "
    poor = "25, Private, 77516, 10th, 6, Never-married, Other-service, Own-child, White, Female, 0, 0, 20, "
    rows = (f"{rich}United-States, >50K\n" + f"{poor}Mexico, <=50K\n" * 2) * 100
    parts = {"adult.data": rows.encode(), "adult.test": rows.replace("K\n", "K.\n").encode()}
    found = module.main(parts, epsilon=50.0, repeats=1, delta=1e-5, batch=4096, steps=20)
    assert found["accuracy"] > 0.9
    assert found["epsilon"] <= 50.0
    assert found["logistic_regression"]["accuracy"] == 1.0


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_images_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs the extra lightning")
    assert example("images_lightning").main(steps=60, folder=tmp_path) > 0.6  # a guess gives 0.1


@pytest.mark.parametrize("name", notebooks.CALLS)
def test_notebooks_are_those_of_the_examples(name: str) -> None:
    written = (ROOT / "examples" / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert written == notebooks.made(name), "run python -m research.notebooks"
    cells = json.loads(written)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for text in code:
        compile(text, name, "exec")
    assert "__main__" not in "".join(code)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", notebooks.CALLS)
def test_the_cells_of_a_notebook_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports and definitions, in the folder of the notebooks; the tests above call what they define."""
    for extra in ("transformers", "peft", "gguf", "pandas", "lightning"):
        pytest.importorskip(extra, reason="needs the extras of the examples")
    folder = ROOT / "examples" / "notebooks"
    monkeypatch.chdir(folder)
    cells = json.loads((folder / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    *parts, call = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "notebook"}
    for text in parts:
        exec(compile(text, name, "exec", dont_inherit=True), names)
    assert callable(names[call.partition("(")[0]])


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_code_of_getting_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and data that the README does not mention, then each variation of the loop."""
    monkeypatch.chdir(tmp_path)
    example, own_loader, crash, statement = python_blocks("docs/getting-started.md")
    names: dict[str, Any] = {"__name__": "example", "Path": Path}
    exec(example.replace("epochs=20", "epochs=1"), names)
    assert names["private"].spent().certified.epsilon <= 3.0
    assert [swap.was for swap in names["swaps"]] == ["BatchNorm1d(24)"]
    assert (tmp_path / "pulse-ledger.jsonl").is_file()
    assert torch.load(tmp_path / "pulse.pt", weights_only=True)

    names["private"].close()
    names["loader"] = DataLoader(names["Pulse"](3000), batch_size=256, drop_last=True)
    plan = names["plan"]
    exec(own_loader, names)
    assert names["private"].spent().certified.epsilon <= 8.0

    names["private"].close()
    names |= {"plan": plan, "dataset": names["Pulse"](3000)}
    names["scheduler"] = torch.optim.lr_scheduler.LambdaLR(names["optimizer"], lambda step: 1.0)
    exec(crash, names)
    assert (tmp_path / "run.pt").is_file()
    exec(statement, names)
    assert "the visits of 2024" in (tmp_path / "privacy-statement.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs" / "methods").glob("*.md")))
def test_the_code_of_the_method_pages(page: str) -> None:
    """Every recipe that a page shows can be built and calibrated."""
    names: dict[str, Any] = {}
    for code in python_blocks(f"docs/methods/{page}"):
        exec(code, names)
    if "plan" in names:
        assert names["plan"].certificate().epsilon <= 5.0


def test_the_code_for_users_of_opacus() -> None:
    _, ours = python_blocks("docs/moving-from-opacus.md")
    data = TensorDataset(torch.randn(300, 1, 28, 28), torch.randint(0, 10, (300,)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    names = {"discreet": discreet, "methods": discreet.methods, "torch": torch, "F": nn.functional, "model": model}
    exec(ours.replace("epochs=20", "epochs=1"), names | {"loader": DataLoader(data)})


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
