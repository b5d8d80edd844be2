"""The model must be as `step` left it when the next batch comes, and refused losses leave the batch watched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import discreet
import loop
from discreet import methods
from discreet.core.check import Refused
from discreet.engine.model import state
from discreet.engine.model.state import Snapshot
from discreet.engine.proof.lineage import ExistingTensors
from discreet.stages.sampling import OwnLoader
from discreet.training.private import Private

CHANGED = "as private.step left them, got {}.* changed before the next batch"


class Centred(nn.Module):
    """A model with a buffer, a frozen parameter, and statistics that only training mode updates."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = loop.model()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("centre", torch.zeros(4))
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
        self.norm.requires_grad_(False)
        self.norm.eval()

    def train(self, mode: bool = True) -> Centred:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.norm(x - self.centre) * self.scale)


def run_of(net: nn.Module | None = None, **options: Any) -> Private:
    return loop.private(net or Centred(), optimizer=lambda p: loop.sgd(q for q in p if q.requires_grad), **options)


def nothing(model: Any, x: Tensor) -> None:
    pass


Change = Callable[[Any, Tensor], None]


def train_with(
    change: Change = nothing,
    *,
    before_pass: Change = nothing,
    before_step: Change = nothing,
    own: Any = None,
    **options: Any,
) -> int:
    """The user's loop, with `change(model, x)` after every step."""
    run = run_of(**options)
    for x, y in run if own is None else run.over(own):
        before_pass(run.model, x)
        losses = loop.losses(run.model, x, y)
        before_step(run.model, x)
        run.step(losses)
        change(run.model, x)
    return run.updates


# Refused --------------------------------------------------------------------------------------------------


@torch.no_grad()
def _written(model: Any, x: Tensor) -> None:
    model.centre.mul_(0.9).add_(0.1 * x.mean(0))


def _by_numpy(model: Any, x: Tensor) -> None:
    model.centre.numpy()[:] = x.numpy().mean(0)


def _by_data(model: Any, x: Tensor) -> None:
    model.inner[0].bias.data.add_(x.mean())


def _other_memory(model: Any, x: Tensor) -> None:
    model.inner[0].bias.data = model.inner[0].bias.data + x.mean()


def _other_buffer(model: Any, x: Tensor) -> None:
    model.centre = x.mean(0)


@torch.no_grad()
def _frozen(model: Any, x: Tensor) -> None:
    model.scale.copy_(x.mean(0))


@torch.no_grad()
def _statistics(model: Any, x: Tensor) -> None:
    model.norm.train()
    model(x)
    model.norm.eval()


def _second_optimizer(model: Any, x: Tensor) -> None:
    second = torch.optim.SGD(model.inner.parameters(), lr=0.5)
    model(x).sum().backward()
    second.step()
    second.zero_grad()


def _new_buffer(model: Any, x: Tensor) -> None:
    model.register_buffer("memory", x.mean(0))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_written, "centre"),
        (_by_numpy, "centre"),
        (_by_data, "inner.0.bias"),
        (_other_memory, "inner.0.bias"),
        (_other_buffer, "centre"),
        (_frozen, "scale"),
        (_statistics, "norm.running_mean"),
        (_second_optimizer, "inner.0.weight"),
        (_new_buffer, "memory"),
    ],
)
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_writing_to_the_model_after_step_is_refused(change: Any, name: str, micro_batch: int | None) -> None:
    with pytest.raises(Refused, match=CHANGED.format(name)):
        train_with(change, micro_batch=micro_batch)


def test_writing_before_an_empty_batch_is_refused() -> None:
    which = loop.plan(records=60_000, batch=60, noise=9.0)  # nearly every batch is empty
    run = run_of(which=which, dataset=loop.data(400))
    batches = iter(run)
    x, y = next(batches)
    run.step(loop.losses(run.model, x, y))
    _written(run.model, x)
    before = run.progress.step
    with pytest.raises(Refused, match=CHANGED.format("centre")):
        next(batches)
    assert run.progress.step == before


def test_writing_between_the_users_own_batches_is_refused() -> None:
    which = loop.plan(methods.dp_sgd(clip=0.5).using(sampling=OwnLoader()))
    batches = [loop.data()[:12], loop.data()[12:24]]
    with pytest.raises(Refused, match=CHANGED.format("centre")):
        train_with(_written, own=batches, which=which, dataset=None)


def test_a_new_loop_does_not_forget_a_change() -> None:
    run = run_of()
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            break
    _written(run.model, x)
    with pytest.raises(Refused, match=CHANGED.format("centre")):
        next(iter(run))
    with pytest.raises(Refused, match="left in the middle"):
        next(iter(run))


def test_a_numpy_alias_written_between_losses_and_step_is_refused() -> None:
    with pytest.raises(Refused, match="centre changed"):
        train_with(before_step=_by_numpy)


def test_a_numpy_alias_written_before_a_new_kind_of_pass_is_refused() -> None:
    """Such a pass is learned on random inputs; what was written before it must not be taken as given."""

    def change(model: Any, x: Tensor) -> None:
        model.train(not model.training)
        _by_numpy(model, x)

    with pytest.raises(Refused, match="centre changed"):
        train_with(before_pass=change, which=loop.plan(steps=1))


def test_writing_inside_averaged_is_refused() -> None:
    """Refreshing statistics under averaged weights is a habit from training without privacy."""
    run = run_of(average=0.9)
    batches = iter(run)
    x, y = next(batches)
    run.step(loop.losses(run.model, x, y))
    with pytest.raises(Refused, match=CHANGED.format("norm.running_mean")), run.averaged():
        _statistics(run.model, x)
    with pytest.raises(Refused, match="changed"):  # catching the refusal does not help
        next(batches)


# Accepted -------------------------------------------------------------------------------------------------


def _evaluate(model: Any, x: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.randn(7, 4))
    model.train()


def _read(model: Any, x: Tensor) -> None:
    {name: value.clone() for name, value in model.state_dict().items()}
    model.centre.numpy()


def _same_values(model: Any, x: Tensor) -> None:
    model.centre = model.centre.clone()  # as after model.cpu() and back


@pytest.mark.parametrize("change", [_evaluate, _read, _same_values])
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_evaluation_and_reading_are_accepted(change: Any, micro_batch: int | None) -> None:
    assert train_with(change, micro_batch=micro_batch) == loop.STEPS


@torch.no_grad()
def _clamped(model: Any, x: Tensor) -> None:
    for parameter in model.inner.parameters():
        parameter.clamp_(-0.1, 0.1)


@pytest.mark.parametrize("declare", [lambda model: model, lambda model: model.inner, lambda model: None])
def test_a_declared_change_is_accepted(declare: Callable[[Any], Any]) -> None:
    net = Centred()
    declared = discreet.public(declare(net))
    if declared is not None:
        assert train_with(_clamped, net=net) == loop.STEPS
        return
    with pytest.raises(Refused, match=CHANGED.format("inner.0.weight")):
        train_with(_clamped, net=net)


def test_the_refusal_of_a_change_proposes_its_tensor() -> None:
    """A declared model would let every other buffer change, too: 3.0 clips."""
    with pytest.raises(Refused, match=r"declare the tensor: discreet\.public\(model\.inner\[0\]\.weight\)"):
        train_with(_clamped)


def test_weights_may_be_loaded_before_the_first_batch() -> None:
    run = run_of()
    run.model.load_state_dict({name: value + 1 for name, value in run.model.state_dict().items()})
    assert loop.train(run) == loop.STEPS


def test_averaged_and_save_keep_working_between_steps(tmp_path: Path) -> None:
    run = run_of(average=0.9, ledger=tmp_path / "ledger.jsonl")
    with run.averaged():  # before the first batch
        run.model(torch.zeros(2, 4))
    for x, y in run:
        run.step(loop.losses(run.model, x, y))
        with run.averaged():
            _evaluate(run.model, x)
        with pytest.raises(KeyError), run.averaged():
            raise KeyError
        run.save(tmp_path / "state.pt")
        if run.progress.step == 4:
            break
    run.close()
    again = run_of(average=0.9, ledger=tmp_path / "ledger.jsonl", resume=tmp_path / "state.pt", seed=8)
    assert loop.train(again) == loop.STEPS - 4


# The comparison itself ------------------------------------------------------------------------------------


def test_large_buffers_are_compared_by_version_and_at_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_BUFFERS", 20_000)
    model = nn.Module()
    model.register_buffer("small", torch.zeros(4096))
    model.register_buffer("large", torch.zeros(65_536))
    for name, place in (("small", 2048), ("large", 0), ("large", -1)):
        before = Snapshot(model)
        getattr(model, name).numpy()[place] += 1
        with pytest.raises(Refused, match=f"got {name} changed"):
            before.compare_between(model)
    before = Snapshot(model)
    model.large[30_000] = 1  # torch counts this write
    with pytest.raises(Refused, match="got large changed"):
        before.compare_between(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.float64])
def test_every_dtype_shape_and_nan_is_compared(dtype: torch.dtype) -> None:
    model = nn.Module()
    model.register_buffer("one", torch.ones((), dtype=dtype))
    model.register_buffer("none", torch.ones(0, dtype=dtype))
    model.register_buffer("turned", torch.ones(3, 2, dtype=dtype).t())
    model.register_buffer("nan", torch.full((2,), torch.nan).to(dtype))
    before = Snapshot(model)
    before.compare(model)
    before.compare_between(model)
    model.turned.data[1, 2] = 0
    with pytest.raises(Refused, match="got turned changed"):
        before.compare_between(model)


@pytest.mark.parametrize("replaced", [torch.t, lambda weight: weight[:, :3]])
def test_other_data_in_the_same_tensor_is_compared(replaced: Callable[[Tensor], Tensor]) -> None:
    """Torch counts no write where `.data` is replaced: memory is read again only where it is the same."""
    model = nn.Linear(4, 4)
    before = Snapshot(model)
    model.weight.data = replaced(model.weight.data)
    with pytest.raises(Refused, match="got weight changed"):
        before.compare(model)


def test_memory_of_another_type_is_compared() -> None:
    """Address, sizes and strides are the same, but half as many bytes belong to the tensor."""
    model = nn.Module()
    model.register_buffer("one", torch.ones(8))
    before = Snapshot(model)
    model.one.data = model.one.data.view(torch.float16)[:8]
    with pytest.raises(Refused, match="got one changed"):
        before.compare(model)


FORMS: dict[str, tuple[Tensor, Callable[[Tensor], Tensor]]] = {
    "strides": (torch.ones(4, 4), lambda t: t.t().contiguous().t()),
    "alignment": (torch.ones(4, 4), lambda t: torch.ones(17)[1:].view(4, 4)),
    "format of memory": (torch.ones(2, 3, 4, 4), lambda t: t.to(memory_format=torch.channels_last)),
    "type": (torch.zeros(3), lambda t: t.view(torch.int32)),
    "conjugate": (torch.ones(3, dtype=torch.complex64), torch.conj),
    "negative": (torch.ones(3), torch._neg_view),
    "scale": (torch.ones(3), lambda t: torch.quantize_per_tensor(t, 0.2, 0, torch.qint8)),
    "scales": (torch.ones(2, 1), lambda t: _quantised(t, torch.tensor([0.1, 0.2]))),
}


def _quantised(tensor: Tensor, scales: Tensor) -> Tensor:
    return torch.quantize_per_channel(tensor * scales[:, None] * 10, scales, torch.zeros(2), 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_another_reading_of_the_same_bytes_is_compared(name: str, by_data: bool) -> None:
    """Between two steps, this moved the sum of twenty records by up to 6.6 clips."""
    tensor, change = FORMS[name]
    start = {
        "scale": lambda: torch.quantize_per_tensor(tensor / 2, 0.1, 0, torch.qint8),
        "scales": lambda: _quantised(tensor, torch.full((2,), 0.1)),
    }
    model = nn.Module()
    model.register_buffer("one", start.get(name, tensor.clone)())
    before, existing = Snapshot(model), ExistingTensors([model.one], [])
    before.compare_between(model)
    assert existing.has(one := model.one)
    now = change(tensor)
    if by_data:
        model.one.data = now
    else:
        model.one = now
    with pytest.raises(Refused, match="got one changed"):
        before.compare_between(model)
    assert not existing.has(one) or not by_data


@pytest.mark.parametrize(
    "make",
    [
        Tensor.to_sparse,
        Tensor.to_sparse_csr,
        Tensor.to_mkldnn,
        lambda t: torch.nested.nested_tensor([t, t]),
        lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
    ],
    ids=["sparse", "sparse rows", "mkldnn", "nested", "jagged"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested tensors")
def test_a_buffer_whose_content_cannot_be_compared_is_refused_by_name(make: Callable[[Tensor], Tensor]) -> None:
    net = Centred()
    net.register_buffer("graph", make(torch.eye(3)))
    with pytest.raises(Refused, match=r"dense parameters and buffers.* got graph, "):
        run_of(net)


# Losses after refused ones --------------------------------------------------------------------------------


def _wrong_shape(losses: Tensor) -> Tensor:
    return losses[:, None]


def _detached(losses: Tensor) -> Tensor:
    return losses.detach()


def _mixed(losses: Tensor) -> Tensor:
    return losses / losses.detach().mean()


@pytest.mark.parametrize("first", [_wrong_shape, _detached, _mixed])
def test_mixed_losses_after_refused_ones_are_refused(first: Callable[[Tensor], Tensor]) -> None:
    run = loop.private()
    x, y = next(batches := iter(run))
    losses = loop.losses(run.model, x, y)
    with pytest.raises(Refused):
        run.step(first(losses))
    with pytest.raises(Refused, match="each record stands alone"):
        run.step(_mixed(losses))
    assert run.ledger.length == 0
    del batches


@pytest.mark.parametrize("first", [_wrong_shape, _detached, _mixed])
def test_correct_losses_after_refused_ones_are_accepted(first: Callable[[Tensor], Tensor]) -> None:
    run = loop.private()
    x, y = next(batches := iter(run))
    losses = F.cross_entropy(run.model(x), y, reduction="none")
    with pytest.raises(Refused):
        run.step(first(losses))
    run.step(losses)
    for rows, labels in batches:  # the rest of the first logical batch
        if run.progress.step:
            break
        run.step(loop.losses(run.model, rows, labels))
    assert run.ledger.length == 1


def test_a_step_in_another_thread_is_refused_and_leaves_the_run_usable() -> None:
    """Torch's modes belong to a thread: a step elsewhere would leave the watch on in this one."""
    net = loop.model()
    private = loop.private(net)
    raised: list[str] = []
    for x, y in private:
        losses = loop.losses(net, x, y)

        def elsewhere(losses: Tensor = losses) -> None:
            try:
                private.step(losses)
            except Refused as error:
                raised.append(str(error))

        if not raised:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        private.step(losses)
        if private.progress.step == 2:
            break
    private.close()
    assert len(raised) == 1
    assert "private.step in the thread that took the batch, got another thread" in raised[0]


def _writes_after_each_step(private: Private, net: nn.Module, path: Path | None = None) -> None:
    """Leaves records in the model, and saves it."""
    for x, y in private:
        if private.step(loop.losses(net, x, y)):
            with torch.no_grad():
                net.get_parameter("0.weight")[0].copy_(x[0])
            if path is not None:
                private.save(path)


@pytest.mark.parametrize("steps", [1, 3])
def test_what_the_loop_writes_after_a_step_reaches_no_checkpoint(steps: int, tmp_path: Path) -> None:
    """A checkpoint says that it holds no record."""
    net = loop.model()
    private = loop.private(net, loop.plan(steps=steps))
    with pytest.raises(Refused, match="changed"):
        _writes_after_each_step(private, net, tmp_path / "checkpoint.pt")
    assert not list(tmp_path.iterdir())


def test_what_the_loop_writes_after_its_last_batch_is_refused() -> None:
    net = loop.model()
    private = loop.private(net, loop.plan(steps=1))
    with pytest.raises(Refused, match="changed"):
        _writes_after_each_step(private, net)
    assert private.progress.step == 1
