"""The benchmark: what it times is what it says, and what is missing is said."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from discreet.methods import METHODS
from research.benchmarks import page, peak, peers, rows, scaling, table, timing
from research.benchmarks.__main__ import main
from research.benchmarks.methods import compare_methods
from research.benchmarks.models import MODELS, Model, Task, images, in_jax, perceptron, transformer

HAS_JAX = importlib.util.find_spec("jax_privacy") is not None
needs_jax = pytest.mark.skipif(
    not HAS_JAX, reason="needs the bench extra: pip install -c constraints.txt -e '.[bench]'"
)


def small() -> Task:
    torch.manual_seed(0)
    return perceptron(8, 6, 5, 10)


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(
        "research.benchmarks.models.MODELS", one := {"mlp": Model(about="small", kind="perceptron", make=small)}
    )
    monkeypatch.setattr(timing, "MODELS", one)
    monkeypatch.setattr("research.benchmarks.methods.MODELS", one)
    return "mlp"


def clipped_step(task: Task) -> list[Tensor]:
    """What a private step without noise moves the parameters by, from autograd, record by record."""
    model, totals = task.model, [torch.zeros_like(p) for p in task.model.parameters()]
    for inputs, label in zip(task.inputs, task.labels, strict=True):
        loss = torch.nn.functional.cross_entropy(model(inputs.unsqueeze(0)), label.unsqueeze(0))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.stack([grad.norm() for grad in grads]).norm()
        for total, grad in zip(totals, grads, strict=True):
            total += grad * min(1.0, float(rows.CLIP / norm))
    return [-rows.RATE * total / task.batch for total in totals]


@pytest.mark.parametrize("name", ["discreet", "opacus", "opacus-ghost", "torch.func"])
def test_private_rows_do_the_same_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise every private row takes the clipped step; the plain row does not."""
    for module in (rows, peers):
        monkeypatch.setattr(module, "NOISE", 0.0)
    row = {row.name: row for row in peers.ROWS}[name]
    task = small()
    expected, before = clipped_step(task), [p.detach().clone() for p in task.model.parameters()]
    with timing.quiet():
        row.make(task)()
    moved = [p.detach() - old for p, old in zip(task.model.parameters(), before, strict=True)]
    for found, truth in zip(moved, expected, strict=True):
        assert torch.allclose(found, truth, rtol=1e-3, atol=1e-7)


def test_the_plain_row_does_not_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CLIP", 1e-3)
    task = small()
    expected, before = clipped_step(task), [p.detach().clone() for p in task.model.parameters()]
    rows.plain(task)()
    moved = [p.detach() - old for p, old in zip(task.model.parameters(), before, strict=True)]
    assert max(float(a.norm() / b.norm()) for a, b in zip(moved, expected, strict=True)) > 10


@needs_jax
@pytest.mark.parametrize("name", MODELS)
def test_jax_scores_are_those_of_torch(name: str) -> None:
    task = MODELS[name].make()
    try:
        few, forward = task.inputs[:3], in_jax.forward_of(task.model)
    except rows.AbsentError as absent:
        pytest.skip(str(absent))
    with torch.no_grad():
        truth = task.model(few)
    jax = importlib.import_module("jax")
    found = jax.jit(forward)(in_jax.parameters_of(task.model), in_jax.batch_of(few))
    assert torch.allclose(torch.tensor(np.asarray(found)), truth, rtol=0, atol=1e-4)
    assert float((truth - truth.flip(0)).abs().max()) > 5e-4  # control: the scores tell records apart


def jax_tasks() -> dict[str, Task]:
    return {
        "perceptron": small(),
        "convolution": images("cnn-d2p2", (1, 8, 8), 4),
        "transformer": transformer(4, width=8, layers=1, length=5, heads=2),
    }


def jax_step(task: Task) -> peers.JaxStep:
    with timing.quiet():  # JAX Privacy 2.0 calls what optax deprecates
        step = peers.jax_privacy(task)
    assert isinstance(step, peers.JaxStep)
    return step


def gap(step: peers.JaxStep, model: torch.nn.Module) -> float:
    """The largest difference between a parameter of the step and of the model."""
    wanted = in_jax.parameters_of(model)
    return max(float(abs(value - wanted[name]).max()) for name, value in step.parameters.items())


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize("name", jax_tasks())
def test_the_jax_row_clips_every_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rows, peers):
        monkeypatch.setattr(module, "RATE", 1.0)
        monkeypatch.setattr(module, "CLIP", 0.1)
    monkeypatch.setattr(peers, "NOISE", 0.0)
    task = jax_tasks()[name]
    step, expected = jax_step(task), clipped_step(task)
    step()
    assert gap(step, task.model) > 1e-3  # control: it moved
    with torch.no_grad():
        for parameter, move in zip(task.model.parameters(), expected, strict=True):
            parameter += move
    assert gap(step, task.model) < 1e-5
    # control: autograd's sum with another clip is another one
    monkeypatch.setattr(rows, "CLIP", 0.2)
    assert max(float(abs(a - b).max()) for a, b in zip(clipped_step(task), expected, strict=True)) > 1e-3


@needs_jax
def test_the_jax_row_adds_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spread of 4,810 moves is within 5 % of the noise's: 5 deviations, false alarms 6e-7 (the key is fixed)."""
    monkeypatch.setattr(peers, "RATE", 1.0)
    monkeypatch.setattr(peers, "CLIP", 1e-6)
    monkeypatch.setattr(peers, "NOISE", 1e6)  # the gradients cannot be seen beside it
    task = perceptron(8, 64, 64, 10)
    step, weights = jax_step(task), [in_jax.parameters_of(task.model)]
    for _ in range(2):
        step()
        weights.append({name: np.array(value) for name, value in step.parameters.items()})
    first, second = (
        np.concatenate([np.ravel(new[name] - old[name]) for name in sorted(new)]) for old, new in pairwise(weights)
    )
    assert first.size == 4810
    for moved in (first, second):
        assert moved.std() == pytest.approx(1 / task.batch, rel=0.05)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1  # fresh in every step


def test_what_is_not_written_for_jax_says_so() -> None:
    for model in (torch.nn.GELU(), torch.nn.Sequential(torch.nn.GELU()), torch.nn.Sequential(torch.nn.MaxPool2d(3))):
        with pytest.raises(rows.AbsentError, match="not written for JAX"):
            in_jax.forward_of(model)


def test_every_model_of_the_table_is_there() -> None:
    assert len(MODELS) == 24
    assert {name: model.kind for name, model in MODELS.items() if name.startswith("mlp")} == {
        "mlp": "perceptron",
        "mlp-2048": "perceptron",
    }


def test_rows_take_turns_and_slow_ones_rest() -> None:
    order: list[str] = []
    clock = iter(range(10_000))
    steps = {"fast": lambda: order.append("fast"), "slow": lambda: order.append("slow")}

    def seconds(step: Any) -> float:
        step()
        return 10.0 if order[-1] == "slow" else float(next(clock) % 2 + 1)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(timing, "_seconds", seconds)
        found = timing.interleave(steps, repeats=6, patience=80.0, hurried=["slow"])
    assert order[2 * timing.WARM_UP :][:6] == ["fast", "fast", "slow", "slow", "fast", "fast"]
    assert found["fast"].repeats == 6  # our own rows are never cut short
    assert found["slow"].repeats == 4
    assert found["fast"].ratio == 1.0


def test_a_missing_peer_says_so(small_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    measured = timing.measure(small_model, peers.ROWS, repeats=1, patience=1.0)
    assert set(measured.timings) == {"plain", "floor", "discreet", "torch.func"}
    assert measured.absent["opacus"] == measured.absent["fastdp"] == "not installed"


def test_a_fault_of_our_own_is_not_hidden(small_model: str) -> None:
    def broken(task: Task) -> Any:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        timing.measure(small_model, [rows.Row(name="x", about="x", make=broken)], repeats=1, patience=1.0)
    peer = rows.Row(name="x", about="x", make=broken, is_peer=True)
    found = timing.measure(small_model, [rows.OWN[0], peer], repeats=1, patience=1.0)
    assert found.absent == {"x": "fails: RuntimeError: broken"}


def test_verdicts_follow_the_bars() -> None:
    def row(ms: float) -> dict[str, Any]:
        return {"ms": ms, "over_plain": ms, "over_floor": ms / 1.5}

    both = {"plain": row(1.0), "floor": row(1.5), "discreet": row(1.25)}
    assert table.verdict("resnet20", both)["met"]
    assert table.verdict("resnet20", {**both, "opacus": row(2.0)})["met"]
    assert not table.verdict("resnet20", {**both, "opacus": row(1.5)})["met"]  # the bar is 1.15 now
    assert table.verdict("mlp", {**both, "discreet": row(2.0)})["met"]
    assert not table.verdict("mlp", {**both, "discreet": row(2.2)})["met"]
    assert table.verdict("lstm", {**both, "opacus": row(2.5)})["peer_over_discreet"] == 2.0


@pytest.mark.slow
def test_methods_are_read_from_the_list(small_model: str) -> None:
    found = compare_methods(small_model, repeats=1, patience=1.0)
    assert set(found) == set(METHODS)
    assert found["dp-sgd"]["over_dp_sgd"] == 1.0
    assert "ms" in found["random-freeze"]


@pytest.mark.slow
def test_peaks_are_measured_in_their_own_process() -> None:
    found = peak.measure_peak("mlp", "plain", threads=1)
    assert isinstance(found, tuple)
    assert all(1e6 < one < 1e9 for one in found)
    assert isinstance(peak.measure_peak("mlp", "jax-privacy", threads=1), tuple if HAS_JAX else str)


def test_scaling_tasks_have_the_size_they_claim() -> None:
    for count in (10_000, 1_000_000):
        task = scaling.AXES["parameters"].task(count)
        found = sum(parameter.numel() for parameter in task.model.parameters())
        assert found == pytest.approx(count, rel=0.05)


def test_the_command_writes_and_merges(
    small_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/some/where/__main__.py", "--first"])
    out = tmp_path / "step-time.json"
    out.write_text(json.dumps({"models": {"mlp": {"rows": {"plain": {"peak_mb": 3.0}}}}}))
    words = ["--models", "mlp", "--rows", "plain,floor,discreet", "--repeats", "2", "--json"]
    assert main([*words, "--out", str(out)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == json.loads(out.read_text())
    plain = answer["models"]["mlp"]["rows"]["plain"]
    assert plain["peak_mb"] == 3.0
    assert plain["over_plain"] == 1.0
    monkeypatch.setattr(sys, "argv", ["/some/where/__main__.py", "--second"])
    assert main([*words, "--no-time", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == answer  # nothing was measured: nothing is signed
    assert main([*words, "--rows", "plain", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["models"]["mlp"]["rows"]
    assert rows["plain"]["timed_by"] == "python -m research.benchmarks --second"
    assert rows["discreet"]["timed_by"] == "python -m research.benchmarks --first"
    assert main(["--models", "nothing"]) == 2


def never(*_: object, **__: object) -> None:
    raise AssertionError("measured")


def test_memory_is_measured_only_when_asked_for(
    small_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak, "measure_peak", lambda *_, **__: (3_000_000, 5_000_000))
    words = ["--models", "mlp", "--rows", "plain", "--repeats", "1", "--json"]
    for more, expected in (([], None), (["--memory"], 3.0)):
        assert main([*words, *more]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["models"]["mlp"]["rows"]["plain"].get("peak_mb") == expected


@pytest.mark.parametrize("place", ["torn.json/below.json", "folder", "torn.json"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "torn.json").write_text("{")
    monkeypatch.setattr(timing, "measure", never)
    words = ["--models", "mlp", "--rows", "plain", "--out"]
    assert main([*words, str(tmp_path / place)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert main([*words, str(tmp_path / "new.json")]) == 70  # control: a usable path gets as far as measuring


def test_the_page_is_filled_from_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "before <!-- steps -->old<!-- end --> <!-- verdicts --><!-- end --> <!-- methods --><!-- end --> after"
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "docs" / "speed.md").write_text(words)
    timed = {"ms": 12.34, "over_plain": 1.25, "over_plain_quartiles": [1.2, 1.3], "over_floor": 1.1}
    own = {"about": "an MLP", "rows": {"discreet": timed, "fastdp": {"absent": "not installed"}}}
    own["verdict"] = {"bar": "1.4 x floor", "met": True, "fastest_peer": "opacus", "peer_over_discreet": 2.5}
    cost = {"ms": 3.0, "over_dp_sgd": 1.04, "over_dp_sgd_quartiles": [1.0, 1.1]}
    answer = {"models": {"mlp": own}, "methods": {"mlp": {"dicesgd": cost, "geodp": {"absent": "refused"}}}}
    (tmp_path / "results" / "step-time.json").write_text(json.dumps(answer))
    (tmp_path / "results" / "memory.json").write_text(json.dumps({"models": {}}))
    monkeypatch.setattr(page, "ROOT", tmp_path)
    page.main()
    text = (tmp_path / "docs" / "speed.md").read_text()
    for part in ("before", "12.3 ms, 1.25x (1.20-1.30)", "not installed", "yes", "2.5", "1.04 (1.00-1.10)", "after"):
        assert part in text
    assert "old" not in text
    page.main()
    assert (tmp_path / "docs" / "speed.md").read_text() == text


def test_every_benchmark_can_be_imported() -> None:
    for name in ("feedback", "freeze", "page", "__main__"):
        assert importlib.import_module(f"research.benchmarks.{name}").__doc__
