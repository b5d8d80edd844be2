"""What the engine refuses, each with a reason and a remedy; and what must leave no trace."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from problems import Bare, losses_of, parameter
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import discreet
from discreet.core.check import Refused
from discreet.engine import custom_backward, record_watch
from discreet.engine.engine import Engine
from discreet.engine.trace import unscripted


def refused(model: nn.Module, *args: Any, match: str, losses: Callable[[Any], Tensor] = losses_of) -> None:
    """The model is refused by the first pass at the latest, with a remedy, and no mode stays on."""

    def train() -> None:
        engine = Engine(model)
        try:
            opened(engine, args)
            engine.backward(losses(model(*args)))
        finally:
            engine.discard()

    with pytest.raises(Refused, match=match) as caught:
        train()
    assert "Remedy: " in str(caught.value)
    assert _get_current_function_mode_stack() == []
    assert all(p.grad is None for p in model.parameters())


def x(*shape: int) -> Tensor:
    return torch.randn(shape)


def opened(engine: Engine, batch: Any) -> None:
    """Open a batch as `Private` does: every call on it is watched."""
    records = len(batch[0])
    engine.begin(records)
    engine.follow(batch, records, public=[tensor for tensor in batch if len(tensor) != records])


# Layers and wrappers ----------------------------------------------------------------------------------------


def test_spectral_norm_is_refused_in_training_mode_by_name() -> None:
    layer = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    refused(nn.Sequential(layer), x(6, 4), match=r"spectral_norm at 0,(.|\n)*eval\(\)")
    engine = Engine(nn.Sequential(layer).eval())
    opened(engine, [x(6, 4)])
    engine.close()


def test_a_layer_that_is_built_in_the_forward_pass_is_named() -> None:
    def forward(own: Any, given: Tensor) -> Tensor:
        scores: Tensor = nn.LayerNorm(3)(given @ own.weight)
        return scores

    refused(Bare(forward, weight=parameter(4, 3)), x(6, 4), match=r"one that is built at (.|\n)*__init__")


class OwnNorm(nn.BatchNorm1d):
    """A subclass, as libraries make them."""


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm1d(4, affine=False),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.SyncBatchNorm(4),
        OwnNorm(4),
        nn.BatchNorm1d(4).requires_grad_(False),
    ],
    ids=lambda norm: repr(norm)[:60],
)
def test_batch_norm_in_training_mode(norm: nn.Module) -> None:
    refused(nn.Sequential(nn.Linear(4, 4), nn.Sequential(norm)), x(7, 4), match="BatchNorm.*at 1.0")


def test_batch_norm_that_is_switched_to_training_later() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    engine = Engine(model)
    model.train()
    engine.begin(7)
    with pytest.raises(Refused, match=r"F.batch_norm with training=True"):
        model(x(7, 4))


def test_batch_norm_without_statistics_uses_the_batch_even_in_evaluation() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)).eval()
    refused(model, x(7, 4), match=r"F.batch_norm with training=True")


@pytest.mark.parametrize("by", ["F", "torch"])
def test_batch_norm_as_a_function(by: str) -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        hidden = own.net(batch)
        if by == "F":
            return F.batch_norm(hidden, None, None, training=True)
        return torch.batch_norm(hidden, None, None, None, None, True, 0.1, 1e-5, False)

    refused(Bare(run, net=nn.Linear(4, 3)), x(7, 4), match="BatchNorm in training mode")


def test_batch_norm_by_hand() -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        return own.net((batch - batch.mean(0)) / batch.std(0))

    refused(Bare(run, net=nn.Linear(4, 3)), x(7, 4), match="keep the records apart")


def test_instance_norm_with_running_statistics() -> None:
    model = nn.Sequential(nn.InstanceNorm1d(3, affine=True, track_running_stats=True))
    refused(model, x(7, 3, 5), match="running statistics")


@pytest.mark.parametrize("frozen", [False, True])
def test_embedding_with_max_norm(frozen: bool) -> None:
    layer = nn.Embedding(10, 4, max_norm=1.0).requires_grad_(not frozen)
    refused(nn.Sequential(layer, nn.Linear(4, 2)), torch.randint(0, 10, (7, 3)), match="max_norm")


def test_embedding_bag_with_max_norm() -> None:
    refused(nn.EmbeddingBag(10, 4, max_norm=1.0), torch.randint(0, 10, (7, 3)), match="max_norm")


def test_a_frozen_embedding_bag_that_rewrites_its_weights() -> None:
    layer = nn.EmbeddingBag(10, 4, max_norm=0.1).requires_grad_(False)
    refused(
        nn.Sequential(layer, nn.Linear(4, 2)),
        torch.randint(0, 10, (7, 3)),
        match="stay as they are|max_norm|written into",
    )


def test_embedding_that_counts_tokens_over_the_batch() -> None:
    refused(nn.Embedding(10, 4, scale_grad_by_freq=True), torch.randint(0, 10, (7, 3)), match="scale_grad_by_freq")


def test_embedding_with_sparse_gradients() -> None:
    refused(nn.Embedding(10, 4, sparse=True), torch.randint(0, 10, (7, 3)), match="drop sparse")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["DataParallel", "DistributedDataParallel", "OptimizedModule"])
def test_wrappers_are_refused_by_name(kind: str, nested: bool) -> None:
    inner = nn.Linear(4, 4)
    if kind == "DataParallel":
        wrapper: nn.Module = nn.DataParallel(inner)
    elif kind == "OptimizedModule":
        wrapper = torch.compile(inner, backend="eager")  # type: ignore[assignment]
    else:  # no process group here: the name and the module are what counts
        wrapper = object.__new__(nn.parallel.DistributedDataParallel)
        nn.Module.__init__(wrapper)
        wrapper.module = inner
    with pytest.raises(Refused, match=kind):
        Engine(nn.Sequential(wrapper) if nested else wrapper)


def test_a_module_compiled_in_place() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].compile(backend="eager")
    with pytest.raises(Refused, match="compiled module at 0"):
        Engine(model)


def test_lazy_complex_and_missing_parameters() -> None:
    with pytest.raises(Refused, match="lazy"):
        Engine(nn.LazyLinear(3))
    with pytest.raises(Refused, match="complex"):
        Engine(nn.Linear(3, 2, dtype=torch.cfloat))
    with pytest.raises(Refused, match="trainable parameters"):
        Engine(nn.Linear(3, 2).requires_grad_(False))
    with pytest.raises(Refused, match="one device"):
        Engine(nn.Linear(3, 2, device="meta"))


def test_scripted_modules_and_autograd_functions_of_ones_own() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(a, w)
            return a @ w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            a, w = ctx.saved_tensors
            return g @ w.t(), a.t() @ g

    own = Bare(lambda o, b: Product.apply(o.net(b), o.w), net=nn.Linear(4, 5), w=parameter(5, 3))
    refused(own, x(7, 4), match="a use that was not seen of w")


def test_packed_sequences() -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(batch, torch.full((len(batch),), 5), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(own.net(packed)[0], batch_first=True)[0]

    refused(Bare(run, net=nn.LSTM(4, 3, batch_first=True)), x(7, 5, 4), match="PackedSequence")


# Checkpointing ----------------------------------------------------------------------------------------------


def test_a_checkpointed_region_that_computes_something_else() -> None:
    """The second run reads a shift that was set after the first, here a mean over the batch."""
    shift = [torch.zeros(4)]

    def run(own: Bare, batch: Tensor) -> Tensor:
        inner = lambda h: torch.tanh(own.second(h - shift[0]))  # noqa: E731
        return checkpoint(inner, batch, use_reentrant=False)  # type: ignore[no-any-return]

    def losses(output: Tensor) -> Tensor:
        shift[0] = torch.full((4,), 0.5)
        return losses_of(output)

    model = Bare(run, second=nn.Linear(4, 3))
    engine = Engine(model)
    engine.begin(7)
    with pytest.raises(Refused, match="computes the same values when it runs again"):
        engine.backward(losses(model(x(7, 4))))
    engine.close()


def test_reentrant_checkpointing() -> None:
    """The recomputation is not watched."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        inner = lambda h: torch.tanh(own.second(torch.tanh(h)))  # noqa: E731
        return checkpoint(inner, own.first(batch), use_reentrant=True)  # type: ignore[no-any-return]

    model = Bare(run, first=nn.Linear(4, 5), second=nn.Linear(5, 3))
    refused(model, x(7, 4), match="use_reentrant=False")


# Mixing records ---------------------------------------------------------------------------------------------


def centred(h: Tensor) -> Tensor:
    return h - h.mean(0)


def softmax_over_the_batch(h: Tensor) -> Tensor:
    return h * h.softmax(0)


def in_batch_negatives(h: Tensor) -> Tensor:
    return h @ h.t()


def statistics_without_gradients(h: Tensor) -> Tensor:
    with torch.no_grad():
        scale = h.abs().max()
    return h / scale


def hidden_statistics(h: Tensor) -> Tensor:
    return h / h.detach().norm()


def sorted_rows(h: Tensor) -> Tensor:
    return h.sort(0).values


def permuted(h: Tensor) -> Tensor:
    return h + 0.5 * h[torch.randperm(len(h))]


def neighbours(h: Tensor) -> Tensor:
    return h + 0.1 * h.roll(1, 0)


def cumulated(h: Tensor) -> Tensor:
    return h.cumsum(0)


def written_into_a_buffer(h: Tensor) -> Tensor:
    room = torch.zeros(h.shape[1])
    room[:] = h.mean(0)
    return h + room


MIXERS = [
    *(centred, softmax_over_the_batch, in_batch_negatives, statistics_without_gradients, hidden_statistics),
    *(sorted_rows, permuted, neighbours, cumulated, written_into_a_buffer),
]


@pytest.mark.parametrize("place", ["first", "between", "last"])
@pytest.mark.parametrize("mix", MIXERS, ids=lambda mix: mix.__name__)
def test_mixing_anywhere(mix: Callable[[Tensor], Tensor], place: str) -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        h = own.first(mix(batch)[:, :3] if place == "first" else batch[:, :3])
        h = own.second(mix(h)[:, :3] if place == "between" else h)
        return mix(h) if place == "last" else h

    model = Bare(run, first=nn.Linear(3, 3), second=nn.Linear(3, 3))
    refused(model, x(7, 3), match="keep the records apart|the same in a batch of any size|moves with the records")


def test_a_permutation_is_found_wherever_the_generator_stands() -> None:
    """Three records come back in order one time in six, five records one time in 120."""
    for drawn in range(20):

        def run(own: Bare, batch: Tensor, drawn: int = drawn) -> Tensor:
            torch.rand(drawn)
            return own.net(permuted(batch))

        refused(Bare(run, net=nn.Linear(3, 3)), x(7, 3), match="keep the records apart")


def test_mixing_in_the_backward_pass_alone() -> None:
    """The values do not show it: h + (m - m) has the value of h and the gradient of a mean."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        h = own.net(batch)
        return h + (h.mean(0) - h.mean(0).detach())

    refused(Bare(run, net=nn.Linear(4, 3)), x(7, 4), match="to equal autograd's")


def test_gradient_hooks_that_mix() -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        h = own.net(batch)
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient / gradient.norm())
        return torch.tanh(h)

    refused(Bare(run, net=nn.Linear(4, 3)), x(7, 4), match="a hook on the graph changes gradients")


@pytest.mark.parametrize("by", ["hook", "prehook"])
@pytest.mark.parametrize("from_the_start", [True, False])
def test_hooks_that_write_into_a_gradient(by: str, from_the_start: bool) -> None:
    """They run after the engine has measured what they then change."""
    writing = from_the_start

    def write(gradient: Any) -> None:
        if writing:
            (gradient if by == "hook" else gradient[0]).mul_(1000.0)

    def run(own: Bare, batch: Tensor) -> Tensor:
        hidden: Tensor = own.net(batch * own.scale)
        if hidden.grad_fn is not None:
            (hidden.register_hook if by == "hook" else hidden.grad_fn.register_prehook)(write)
        return hidden

    model, batch = Bare(run, net=nn.Linear(5, 3), scale=parameter(1)), x(7, 5)
    engine = Engine(model)

    def train() -> None:
        engine.begin(7)
        engine.backward(losses_of(model(batch)))
        engine.add_weighted(torch.ones(1, 1, 7, dtype=torch.float64), engine.zeros())

    if not from_the_start:
        train()  # control
        writing = True
    with pytest.raises(Refused, match=r"stay as they are until they are summed|to equal autograd's"):
        train()


def test_gradients_inside_the_forward_pass() -> None:
    """Forces as gradients of an energy: second derivatives reach the weights by a way that is not watched."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        place = batch.detach().requires_grad_()
        energy = torch.tanh(own.net(place)).sum()
        return torch.autograd.grad(energy, place, create_graph=True)[0]

    refused(Bare(run, net=nn.Linear(4, 3)), x(7, 4), match="to equal autograd's|not seen")


def test_a_parameter_on_a_statistic_of_the_batch() -> None:
    """The statistic has no record axis: its product with a parameter looks like one of parameters alone."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        with torch.no_grad():
            mean = batch.mean(0)
        return own.first(batch) + own.second(mean)

    model = Bare(run, first=nn.Linear(4, 3), second=nn.Linear(4, 3))
    refused(model, x(7, 4), match="moves with the records|keep the records apart")


@pytest.mark.parametrize("where", ["outputs", "inputs", "parameters"])
def test_values_that_move_with_the_size_of_the_batch(where: str) -> None:
    """The size of a batch is private, and dividing by it lets one record move all the others' gradients."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        size = len(batch)
        if where == "parameters":
            return F.linear(batch, own.net.weight / size)
        h = own.net(batch / size if where == "inputs" else batch)
        return h / size if where == "outputs" else h

    refused(Bare(run, net=nn.Linear(4, 3, bias=False)), x(7, 4), match="the same in a batch of any size")


def test_values_that_move_with_the_size_of_the_batch_show_behind_dropout() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), Bare(lambda own, h: h / len(h)), nn.Linear(8, 2))
    refused(model.train(), x(7, 4), match="the same in a batch of any size")


def test_mixing_behind_nan_is_not_missed() -> None:
    """Random normal inputs give NaN under the logarithm; positive ones show the mixing."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        logs = batch.log()
        return own.net(logs - logs.mean(0))

    refused(Bare(run, net=nn.Linear(4, 3)), torch.rand(7, 4), match="keep the records apart")


def test_nan_on_all_random_inputs() -> None:
    model = Bare(lambda own, b: own.net(b * float("nan")), net=nn.Linear(4, 3))
    refused(model, x(7, 4), match="got NaN, in which nothing shows")


def test_positive_inputs_are_found() -> None:
    model = Bare(lambda own, b: own.net(b.log()), net=nn.Linear(40, 3))
    engine = Engine(model)
    engine.begin(7)
    engine.backward(losses_of(model(torch.rand(7, 40))))
    assert bool((engine.norms() > 0).all())


# Control flow and state -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        lambda h: bool(h.max() > 50),
        lambda h: h.mean().item() > 50,
        lambda h: float(h.sum()) > 1e3,
        lambda h: h.detach().tolist()[0][0] > 50,
        lambda h: h.detach().numpy().max() > 50,
        lambda h: torch.equal(h, h + 1),
        lambda h: 77.0 in h,
    ],
)
@pytest.mark.parametrize("quiet", [False, True])
def test_control_flow_on_values_of_the_records(read: Callable[[Tensor], bool], quiet: bool) -> None:
    """No random input is above 50: what happens there could never be learned."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        with torch.set_grad_enabled(not quiet):
            large = read(batch)
        return own.net(centred(batch) if large else batch)

    refused(Bare(run, net=nn.Linear(4, 3)), x(7, 4), match="does not read values of the records")


def test_control_flow_on_parameters_is_allowed() -> None:
    model = Bare(lambda own, b: own.net(b) if float(own.net.weight.norm()) > 0 else b, net=nn.Linear(4, 3))
    engine = Engine(model)
    engine.begin(7)
    engine.backward(losses_of(model(x(7, 4))))
    assert bool((engine.norms() > 0).all())


@pytest.mark.parametrize("extra", [centred, lambda h: h + 1], ids=["mixing", "harmless"])
def test_another_path_than_the_probes(extra: Callable[[Tensor], Tensor]) -> None:
    """A path that a later pass takes for reasons of its own: it was never shown to keep records apart."""
    model = Bare(lambda own, b: own.net(extra(b) if own.switched else b), net=nn.Linear(4, 3))
    model.switched = False
    engine = Engine(model)
    engine.begin(7)
    engine.backward(losses_of(model(x(7, 4))))
    model.switched = True
    engine.begin(7)
    with pytest.raises(Refused, match="the same calls on every batch"):
        model(x(7, 4))
    assert _get_current_function_mode_stack() == []


def test_a_parametrised_call_more_or_less_than_in_the_probe() -> None:
    for first, then in ((1, 2), (2, 1)):
        model = Bare(lambda own, b: sum(own.net(b) for _ in range(own.times)), net=nn.Linear(4, 3))
        model.times = first
        engine = Engine(model)
        engine.begin(7)
        engine.backward(losses_of(model(x(7, 4))))
        model.times = then
        engine.begin(7)
        with pytest.raises(Refused, match="the same calls on every batch"):
            model(x(7, 4))
        engine.close()


def test_a_loop_over_the_records() -> None:
    model = Bare(lambda own, b: torch.stack([own.net(row) for row in b]), net=nn.Linear(4, 3))
    refused(model, x(7, 4), match="the same calls for every batch")


def test_buffers_that_change() -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        own.mean.mul_(0.9).add_(0.1 * batch.detach().mean(0))
        return own.net(batch)

    model = Bare(run, net=nn.Linear(4, 3), mean=torch.zeros(4))
    refused(model, x(7, 4), match="buffer mean changes")
    assert torch.equal(model.mean, torch.zeros(4))  # the probe's own passes are undone


def test_buffers_that_change_later() -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        if own.late:
            with torch.no_grad():
                own.count.add_(1)
        return own.net(batch)

    model = Bare(run, net=nn.Linear(4, 3), count=torch.zeros(()))
    model.late = False
    engine = Engine(model)
    engine.begin(7)
    model(x(7, 4))
    model.late = True
    with pytest.raises(Refused, match="count changed"):
        model(x(7, 4))


def test_a_buffer_that_is_filled_once_is_a_cache() -> None:
    """Rotary tables and causal masks are made in the first pass, from shapes alone."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        if own.table.shape[0] < batch.shape[1]:
            own.table = torch.arange(batch.shape[1]).sin()[:, None]
        return own.net(batch * own.table[: batch.shape[1]])

    model = Bare(run, net=nn.Linear(4, 3), table=torch.zeros(0, 1))
    engine = Engine(model)
    for length in (3, 5):
        engine.begin(7)
        engine.backward(losses_of(model(x(7, length, 4))))


def test_state_that_a_pass_leaves_behind() -> None:
    """A hidden state carried to the next batch carries records along."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        h = own.net(batch + own.last)
        own.last = h.detach().mean()
        return h

    model = Bare(run, net=nn.Linear(4, 3))
    model.last = 0.0
    refused(model, x(7, 4), match="the same values from the same inputs")


def test_randomness_from_elsewhere() -> None:
    import random

    model = Bare(lambda own, b: own.net(b) * random.random(), net=nn.Linear(4, 3))
    refused(model, x(7, 4), match="the same values from the same inputs")


def test_in_place_changes_of_recorded_inputs() -> None:
    """relu_ after a layer changes what the layer saw; autograd cannot object, for it never keeps the input."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        h = own.first(batch)
        out = own.second(h)
        h.relu_()
        return out + h.mean(1, keepdim=True)

    model = Bare(run, first=nn.Linear(4, 5), second=nn.Linear(5, 3))
    refused(model, x(7, 4), match="changed in place")


def test_in_place_changes_of_parameters() -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        return batch * own.scale.add_(1.0)

    refused(Bare(run, scale=parameter(4)), x(7, 4), match="no in-place change of a parameter")


def test_in_place_changes_of_what_parameters_made() -> None:
    def by_records(own: Bare, batch: Tensor) -> Tensor:
        scale = own.scale * 2
        scale[0] = batch.flatten()[0]
        return batch * scale

    def after_a_use(own: Bare, batch: Tensor) -> Tensor:
        scale = own.scale * 2
        view = scale.view(2, 2).t()
        outputs = batch + scale
        view.mul_(3.0)
        return outputs

    refused(Bare(by_records, scale=parameter(4)), x(7, 4), match="none by records")
    refused(Bare(after_a_use, scale=parameter(4)), x(7, 4), match="changed in place")


def test_batch_norm_of_records_and_with_running_statistics() -> None:
    """Weights may be standardised with F.batch_norm; records may not, nor may statistics be kept."""

    def run(own: Bare, batch: Tensor, form: str) -> Tensor:
        spread, weight = own.scale.expand(len(batch), 4) * 2, own.net.weight
        kept = (own.mean, own.var)
        normed = {
            "records": lambda: F.batch_norm(batch, None, None, training=True),
            "hidden": lambda: torch.batch_norm(own.net(batch), None, None, None, None, True, 0.1, 1e-5, False),
            "spread": lambda: F.batch_norm(spread, None, None, training=True),
            "kept": lambda: F.linear(batch, F.batch_norm(weight, *kept, training=True)),
            "kept by torch": lambda: F.linear(
                batch, torch.batch_norm(weight, None, None, *kept, True, 0.1, 1e-5, False)
            ),
        }[form]()
        return own.net(batch) + normed

    for form in ("records", "hidden", "spread", "kept", "kept by torch"):
        parts = {"net": nn.Linear(4, 4), "scale": parameter(4), "mean": torch.zeros(4), "var": torch.ones(4)}
        own = Bare(lambda own, batch, form=form: run(own, batch, form), **parts)
        refused(own, x(7, 4), match="no BatchNorm in training mode")


def test_a_parameter_written_into_the_batch() -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        h = own.net(batch)
        h[:, 0] = own.token
        return h

    refused(Bare(run, net=nn.Linear(4, 3), token=parameter()), x(7, 4), match="__setitem__ with parameter token")


# Inputs and outputs -----------------------------------------------------------------------------------------


def test_outputs_in_an_object_of_ones_own() -> None:
    class Result:
        def __init__(self, scores: Tensor) -> None:
            self.scores = scores

    model = Bare(lambda own, b: Result(own.net(b)), net=nn.Linear(4, 3))
    refused(model, x(7, 4), match="no differentiable tensor", losses=lambda r: losses_of(r.scores))


def test_inputs_without_a_record_axis() -> None:
    model = Bare(lambda own, b: own.net(b).transpose(0, 1), net=nn.Linear(4, 3))
    engine = Engine(model)
    engine.begin(7)
    with pytest.raises(Refused, match="first axis is the record, of 7 rows"):
        model(x(5, 7, 4))


def test_another_number_of_rows_than_before() -> None:
    model = nn.Linear(4, 3)
    engine = Engine(model)
    engine.begin(7)
    engine.backward(losses_of(model(x(7, 4))))
    engine.begin(7)
    with pytest.raises(Refused, match="7 rows, one per record"):
        model(x(8, 4))


def test_a_constant_that_looks_like_records_is_refused_and_named() -> None:
    """Six prototypes beside six records: nothing tells them from in-batch negatives."""
    model = Bare(lambda own, b, prototypes: own.net(b) @ prototypes.t(), net=nn.Linear(4, 4))
    refused(model, x(6, 4), x(6, 4), match="must not have one row per record")


def test_a_model_that_fails_on_random_inputs_shows_its_own_error() -> None:
    def run(own: Bare, batch: Tensor) -> Tensor:
        raise KeyError("no such thing")

    engine = Engine(Bare(run, net=nn.Linear(4, 3)))
    engine.begin(7)
    with pytest.raises(KeyError, match="no such thing"):
        engine.model(x(7, 4))
    assert _get_current_function_mode_stack() == []


# Losses -----------------------------------------------------------------------------------------------------


def linear_losses(mixed: Callable[[Tensor], Tensor]) -> None:
    model = nn.Linear(4, 3)
    engine, batch = Engine(model), x(8, 4)
    opened(engine, [batch])
    try:
        engine.backward(mixed(losses_of(model(batch))))
    finally:
        engine.discard()


@pytest.mark.parametrize(
    "mixed",
    [
        lambda losses: losses / losses.sum(),
        lambda losses: losses - losses.mean(),
        lambda losses: losses.sort().values.flip(0),
        lambda losses: torch.cat([losses[:3], losses[3:5].flip(0), losses[5:]]),
        lambda losses: losses + 1e-6 * losses.roll(4),
    ],
    ids=["normalised", "centred", "sorted", "two of them", "far away"],
)
def test_losses_that_mix_records(mixed: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(Refused, match="each record stands alone, call by call"):
        linear_losses(mixed)


def test_losses_of_hidden_values_that_mix_records() -> None:
    """The outputs do not show it: the loss reads an attribute that the pass left."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        own.hidden = own.first(batch)
        return own.second(own.hidden)

    model = Bare(run, first=nn.Linear(4, 4), second=nn.Linear(4, 3))
    model.hidden = None
    refused(
        model, x(7, 4), match="mean at", losses=lambda output: losses_of(output) + centred(model.hidden).square().sum(1)
    )


def passes_of(sizes: tuple[int, ...], scaled: Callable[[Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    engine = Engine(model)
    try:
        for records in sizes:
            batch = x(records, 4)
            opened(engine, [batch])
            engine.backward(scaled(losses_of(model(batch))))
    finally:
        engine.discard()


BY_THE_SIZE: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda losses: losses / len(losses),
    lambda losses: losses * (1 / len(losses)),
    lambda losses: 10 * losses.div(torch.tensor(float(len(losses)))) + 1,
    lambda losses: losses * len(losses),
    lambda losses: losses.div_(len(losses)),
    lambda losses: losses / torch.tensor([float(len(losses))]),
    lambda losses: torch.div(losses, len(losses), rounding_mode=None),
)


@pytest.mark.parametrize("scaled", BY_THE_SIZE)
@pytest.mark.parametrize("sizes", [(7, 12), (1, 7, 7, 1, 30)])
def test_losses_divided_by_the_number_of_records(scaled: Callable[[Tensor], Tensor], sizes: tuple[int, ...]) -> None:
    """That number is private: one record more would move the gradients of all others."""
    with pytest.raises(Refused, match="same calls with the same numbers"):
        passes_of(sizes, scaled)


@pytest.mark.parametrize("sizes", [(7, 12, 7, 12), (7, 7, 7), (1, 7, 1)])
def test_losses_divided_by_a_number_that_a_batch_happens_to_have(sizes: tuple[int, ...]) -> None:
    passes_of(sizes, lambda losses: losses / 7 * 12)


@pytest.mark.parametrize("scale", [10.0, 0.5, -3.0])
def test_losses_divided_by_a_multiple_of_the_number_of_records(scale: float) -> None:
    with pytest.raises(Refused, match="same calls with the same numbers"):
        passes_of((7, 14, 9), lambda losses: losses * (scale / len(losses)))


def test_an_output_divided_in_place_by_the_number_of_records() -> None:
    """The output's own node is another then."""
    model = nn.Linear(4, 3)
    engine = Engine(model)

    def step(records: int) -> None:
        batch = x(records, 4)
        opened(engine, [batch])
        output = model(batch)
        output /= records
        engine.backward(losses_of(output))

    step(7)
    with pytest.raises(Refused, match="same calls with the same numbers"):
        step(12)
    engine.discard()


def test_factors_of_losses_that_are_not_real() -> None:
    passes_of((7, 12, 9), lambda losses: (torch.complex(losses, losses) * 1j).real)


class Mul(torch.autograd.Function):
    """Its node is called MulBackward."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor) -> Tensor:
        return 2 * losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


def test_losses_by_a_function_of_their_own() -> None:
    passes_of((7, 12, 9), Mul.apply)


def test_losses_whose_weight_falls_with_the_steps() -> None:
    weights = iter((1.0, 0.5, 0.25))
    passes_of((7, 14, 28), lambda losses: losses * discreet.public(next(weights) ** 2 * 7))


def test_losses_divided_by_the_size_of_every_batch_there_is() -> None:
    """Batches of one size have a public size."""
    passes_of((7, 7, 7), lambda losses: losses / len(losses))


def test_losses_of_the_wrong_form() -> None:
    model = nn.Linear(4, 3)
    engine = Engine(model)
    for wrong in (lambda s: s.sum(), lambda s: s, lambda s: s.sum(1)[:5], lambda s: s.sum(1, keepdim=True)):
        engine.begin(7)
        with pytest.raises(Refused, match=r'per-sample losses of shape \[7\].*reduction="none"'):
            engine.backward(wrong(model(x(7, 4))))
    engine.begin(7)
    with pytest.raises(Refused, match="do not depend on it"):
        engine.backward(model(x(7, 4)).sum(1).detach())
    engine.begin(7)
    with pytest.raises(Refused, match="do not depend on it"):
        engine.backward(torch.ones(7, requires_grad=True) * 1)


def test_parameters_used_outside_the_forward_pass() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    refused(model, x(7, 4), match="not seen of 0.weight", losses=lambda o: losses_of(o) + model[0].weight.norm())
    refused(model, x(7, 4), match="not seen of 0.bias", losses=lambda o: losses_of(o + model[0].bias))


def test_a_layer_called_beside_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    engine, batch = Engine(model), x(7, 4)
    engine.begin(7)
    with pytest.raises(Refused, match=r"not seen of 0.weight"):
        engine.backward(losses_of(model(batch)) + losses_of(model[0](batch)))


# The order of calls -----------------------------------------------------------------------------------------


def test_calls_out_of_order() -> None:
    model = nn.Linear(4, 3)
    engine = Engine(model)
    for call in (engine.norms, lambda: engine.per_sample(0, 1), lambda: engine.backward(torch.ones(7))):
        with pytest.raises(Refused, match=r"begin\(records\) first"):
            call()
    engine.begin(7)
    losses = losses_of(model(x(7, 4)))
    for call in (engine.norms, lambda: engine.add_weighted(torch.ones(1, 1, 7), engine.zeros())):
        with pytest.raises(Refused, match=r"backward\(losses\) first"):
            call()
    engine.backward(losses)
    with pytest.raises(Refused, match="do not depend on it"):
        engine.backward(losses)
    engine.discard()
    with pytest.raises(Refused, match=r"begin\(records\) first"):
        engine.norms()


@pytest.mark.parametrize("records", [0, -1, 2.0, True])
def test_a_number_of_records_that_is_none(records: Any) -> None:
    with pytest.raises(Refused, match="records to be a whole number"):
        Engine(nn.Linear(4, 3)).begin(records)


def test_a_gradient_that_is_left_on_a_parameter() -> None:
    model = nn.Linear(4, 3)
    engine = Engine(model)
    model(x(7, 4)).sum().backward()
    with pytest.raises(Refused, match=r"weight\.grad is set"):
        engine.begin(7)
    model.zero_grad()
    engine.begin(7)


def test_a_backward_pass_of_the_callers_own_in_the_middle() -> None:
    """It leaves no gradient, for the parameters are not in the graph; the losses cannot be used twice."""
    model = nn.Linear(4, 3)
    engine = Engine(model)
    engine.begin(7)
    losses = torch.tanh(losses_of(model(x(7, 4))))
    losses.sum().backward()
    assert model.weight.grad is None
    with pytest.raises(Refused, match="no backward pass has used"):
        engine.backward(losses)


@pytest.mark.parametrize("change", ["freeze", "unfreeze", "replace", "add"])
def test_another_set_of_trained_parameters(change: str) -> None:
    """An unfrozen or new parameter would get a plain gradient: neither clipped nor noised."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    engine = Engine(model)
    if change == "freeze":
        model[1].bias.requires_grad_(False)
    elif change == "unfreeze":
        model[0].bias.requires_grad_(True)
    elif change == "replace":
        model[1] = nn.Linear(4, 3)
    else:
        model.append(nn.Linear(3, 3))
    with pytest.raises(Refused, match="the same trainable parameters"):
        engine.begin(7)


def test_freezing_between_the_pass_and_the_step() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    engine = Engine(model)
    engine.begin(7)
    losses = losses_of(model(x(7, 4)))
    model[0].requires_grad_(False)
    with pytest.raises(Refused, match="the same trainable parameters"):
        engine.backward(losses)


def test_a_loss_whose_backward_was_called_already() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    engine = Engine(model)
    for _ in range(2):  # the second time the losses were checked already
        engine.begin(7)
        losses = losses_of(model(x(7, 4)))
        losses.mean().backward()
        with pytest.raises(Refused, match="leave backward"):
            engine.backward(losses)
        engine.begin(7)
        engine.backward(losses_of(model(x(7, 4))))


@pytest.mark.parametrize("groups", [[[0]], [[0, 1], [1]], [[0], [1], [2]], []])
def test_groups_that_are_no_partition(groups: list[list[int]]) -> None:
    model = nn.Linear(4, 3)
    engine = Engine(model)
    engine.begin(2)
    engine.backward(losses_of(model(x(2, 4))))
    with pytest.raises(Refused, match="every parameter lies once"):
        engine.norms(groups)
    with pytest.raises(Refused, match="every parameter lies once"):
        engine.add_weighted(torch.ones(1, len(groups), 2), engine.zeros(), groups)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 8), (2, 1, 7), (1, 2, 7), (7,)])
def test_weights_of_another_shape(shape: tuple[int, ...]) -> None:
    """One weight would broadcast to all records, whatever their norms."""
    model = nn.Linear(4, 3)
    engine = Engine(model)
    engine.begin(7)
    engine.backward(losses_of(model(x(7, 4))))
    with pytest.raises(Refused, match=r"weights of shape \[1, 1, 7\]"):
        engine.add_weighted(torch.ones(shape), engine.zeros())
    with pytest.raises(Refused, match="totals of shape"):
        engine.add_weighted(torch.ones(1, 1, 7), torch.zeros(1, 3))


def test_hooks_of_the_users_own_are_part_of_the_pass() -> None:
    """A hook that was there before the engine runs inside its watch: here one that makes the weight."""
    model = nn.Linear(4, 3)
    weight = model.weight
    del model.weight
    model.register_parameter("root", nn.Parameter(weight.detach().sqrt().nan_to_num(0.1)))
    model.register_forward_pre_hook(lambda own, _: setattr(own, "weight", own.root.square()))
    engine, batch = Engine(model), x(7, 4)
    engine.begin(7)
    engine.backward(losses_of(model(batch)))
    found = engine.per_sample(0, 7).sum(0)
    engine.close()
    losses_of(model(batch)).sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()])  # type: ignore[union-attr]
    assert torch.allclose(found, expected, atol=1e-5)


def test_an_exception_in_the_forward_pass_leaves_no_mode_on() -> None:
    model = Bare(lambda own, b: own.net(b) if own.fine else 1 / 0, net=nn.Linear(4, 3))
    model.fine = True
    engine = Engine(model)
    engine.begin(7)
    model(x(7, 4))
    model.fine = False
    with pytest.raises(ZeroDivisionError):
        model(x(7, 4))
    assert _get_current_function_mode_stack() == []
    model.fine = True
    engine.begin(7)
    engine.backward(losses_of(model(x(7, 4))))
    assert bool((engine.norms() > 0).all())


def test_an_interrupt_in_the_forward_pass_is_cleared_by_the_next_batch() -> None:
    """Torch runs no hook after a KeyboardInterrupt: the mode stays on until the engine is used again."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        h = own.net(batch)
        if not own.fine:
            raise KeyboardInterrupt
        return h

    model = Bare(run, net=nn.Linear(4, 3))
    model.fine = True
    engine = Engine(model)
    for clear in (lambda: engine.begin(7), engine.discard, engine.close):
        engine.begin(7)
        model(x(7, 4))
        model.fine = False
        with pytest.raises(KeyboardInterrupt):
            model(x(7, 4))
        model.fine = True
        clear()
        assert _get_current_function_mode_stack() == []


@pytest.mark.parametrize("step", ["push_mode", "watch_scripts", "watch_nodes", "unwatch_nodes", "remove_mode"])
def test_an_interrupt_while_the_watch_is_put_on_or_removed_leaves_nothing(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    def watched() -> None:
        engine.follow((x(7, 4),), 7)
        engine.discard()

    engine, told, watches = Engine(nn.Linear(4, 3)), len(unscripted._told), len(custom_backward._watches)
    engine.begin(7)
    with monkeypatch.context() as patch:
        patch.setattr(record_watch, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            watched()
    engine.discard()
    assert _get_current_function_mode_stack() == []
    assert (len(unscripted._told), len(custom_backward._watches)) == (told, watches)


def test_copies_and_files_of_the_model_hold_nothing_private() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    engine = Engine(model)
    engine.begin(500)
    engine.backward(losses_of(model(x(500, 4))))
    file = io.BytesIO()
    torch.save(model, file)
    assert len(file.getvalue()) < 5_000  # 500 records' gradients alone take 30,000
    other = copy.deepcopy(model)
    other(x(500, 4)).sum().backward()
    assert other[0].weight.grad is not None  # an ordinary model
    assert model[0].weight.grad is None
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded(x(2, 4)).sum().backward()
    assert loaded[0].weight.grad is not None


def test_the_callers_random_state_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    engine = Engine(model)
    engine.script((torch.zeros(7, 4),), {}, 7)
    assert torch.equal(torch.rand(3), expected)


def test_the_probe_never_sees_the_records() -> None:
    """The first pass on a shape runs on random inputs: were they the records', an error there would tell."""
    seen = []

    def run(own: Bare, batch: Tensor) -> Tensor:
        seen.append(batch)
        return own.net(batch)

    model = Bare(run, net=nn.Linear(4, 3))
    engine = Engine(model)
    engine.begin(7)
    model(torch.full((7, 4), 1e30))
    assert len(seen) > 5
    assert all(float(batch.abs().max()) < 100 for batch in seen[:-1])
    assert float(seen[-1].max()) > 1e29


@pytest.mark.parametrize("how", ["replaced", "changed"])
def test_a_part_without_parameters_that_begins_to_mix_records(how: str) -> None:
    """What was learned of the model before does not hold for another part in the same place."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=1), nn.Linear(4, 3))
    engine = Engine(model)
    engine.begin(7)
    engine.backward(losses_of(model(x(7, 4))))
    engine.discard()
    if how == "replaced":
        model[1] = nn.Softmax(dim=0)
    else:
        model[1].dim = 0
    engine.begin(7)
    with pytest.raises(Refused):
        engine.backward(losses_of(model(x(7, 4))))


class Steered(nn.Module):
    """A part without parameters whose behaviour hangs on what no key of the engine's can hold."""

    def __init__(self, part: Callable[[Tensor, Any], Tensor], value: Any) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 3)
        self.part, self.settings = part, SimpleNamespace(value=value)

    def forward(self, batch: Tensor) -> Tensor:
        return self.outer(self.part(self.inner(batch), self.settings.value))


def passes_with(part: Callable[[Tensor, Any], Tensor], *values: Any, watched: bool = False) -> None:
    model = Steered(part, values[0])
    engine = Engine(model)
    try:
        for value in values:
            model.settings.value = value
            batch = x(7, 4)
            engine.begin(7)
            if watched:
                engine.follow([batch], 7)
            engine.backward(losses_of(model(batch)))
            assert bool(engine.finite().all())
    finally:
        engine.discard()


MIXING_LATER: dict[str, tuple[Callable[[Tensor, Any], Tensor], Any, Any]] = {
    "axis": (lambda h, axis: h.softmax(axis), 1, 0),
    "axis by keyword": (lambda h, axis: torch.softmax(h, dim=axis), -1, 0),
    "shift": (lambda h, shift: h.roll(shift, 0), 0, 1),
    "shift of numpy": (lambda h, shift: h.roll(shift, 0), np.int64(0), np.int64(1)),
    "index in an array": (lambda h, index: h[:, index], np.arange(4), np.arange(4)[::-1].copy()),
    "groups": (lambda h, size: (v := h.view(-1, size, 4)).sub(v.mean(1, keepdim=True)).view(-1, 4), 1, 7),
    "word": (lambda h, how: torch.einsum(how, h, h), "na,nb->na", "na,ma->na"),
    "flag": (lambda h, keep: h - h.mean(1, keepdim=keep).view(-1, 1), True, False),
}


@pytest.mark.parametrize(("part", "before", "after"), MIXING_LATER.values(), ids=MIXING_LATER)
def test_a_setting_that_changes(part: Callable[[Tensor, Any], Tensor], before: Any, after: Any) -> None:
    with pytest.raises(Refused, match=r"on random inputs|apart|move"):
        passes_with(part, before, after)


WARMING_UP: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "mean": lambda h, a: h + a * h.mean(0),
    "lerp": lambda h, a: torch.lerp(h, h.flip(0), a),
    "alpha": lambda h, a: torch.sub(h, h.mean(0), alpha=a),
    "whole": lambda h, a: h + int(a) * h.mean(0),
    "of numpy": lambda h, a: h + np.float64(a) * h.mean(0),
}


@pytest.mark.parametrize("part", WARMING_UP.values(), ids=WARMING_UP)
def test_mixing_that_a_weight_of_zero_hides_at_first(part: Callable[[Tensor, Any], Tensor]) -> None:
    """In the first step: the weight would grow later."""
    with pytest.raises(Refused, match="each record stands alone, call by call"):
        passes_with(part, 0.0, watched=True)


def test_a_weight_of_zero_is_zero_in_what_the_model_keeps() -> None:
    """The pass with another weight comes after, and touches nothing but what is made of records."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        if own.kept is None:
            ones = torch.ones(4, 4).tril()
            own.kept = ones.masked_fill(ones == 0, -1e9).masked_fill(ones == 1, 0.0) * 1.0
            own.seen = 0.0 * torch.ones(4)
        return own.net((batch @ own.kept.exp()).clamp(min=0) + 0.0 * batch + own.seen)

    model = Bare(run, net=nn.Linear(4, 3))
    model.kept = model.seen = None  # type: ignore[assignment]
    engine = Engine(model)
    engine.begin(7)
    engine.backward(losses_of(model(x(7, 4))))
    assert torch.equal(model.kept, torch.ones(4, 4).tril().log().clamp(min=-1e9))
    assert torch.equal(model.seen, torch.zeros(4))


COMPARED_WITH_ZERO: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "records": lambda h, _: torch.where(((h > 0).float() == 0), h.mean(0), h),
    "a constant": lambda h, _: h - torch.tensor(0.0).eq(0) * h.mean(0),
    "clamped": lambda h, _: h + h.clamp(0, 0.1).mean(0),
    "a flag": lambda h, off: h if off else h - (torch.zeros(()) == 0) * h.mean(0),
}


@pytest.mark.parametrize("part", COMPARED_WITH_ZERO.values(), ids=COMPARED_WITH_ZERO)
def test_mixing_beside_a_comparison_with_zero(part: Callable[[Tensor, Any], Tensor]) -> None:
    """What the probe does about hidden weights must not hide others."""
    with pytest.raises(Refused, match="apart"):
        passes_with(part, 0)


SOUND_WITH_ZEROS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "powers": lambda h, _: sum((h.tanh() ** k for k in range(4)), torch.zeros(())),
    "clamped": lambda h, _: h + h.sigmoid().clamp(0, 0.05),
    "a pass of zeros": lambda h, _: h + (0 * h).log1p(),
    "an index": lambda h, _: h + torch.eye(4)[(h * 0).long()].sum(1),
    "noise as a matrix": lambda h, _: h @ torch.linalg.inv(torch.randn(4, 4)),
    "noise that is drawn again": lambda h, _: h * _in_the_circle(),
}


def _in_the_circle() -> Tensor:
    while float((point := 2 * torch.rand(2) - 1).square().sum()) >= 1:
        pass
    return point.square().sum()


@pytest.mark.parametrize("part", SOUND_WITH_ZEROS.values(), ids=SOUND_WITH_ZEROS)
def test_sound_models_with_zeros_and_noise(part: Callable[[Tensor, Any], Tensor]) -> None:
    passes_with(part, 0, 0)


ANNEALED: dict[str, tuple[Callable[[Tensor, Any], Tensor], tuple[Any, ...]]] = {
    "a weight that becomes whole": (lambda h, a: h + a * h.square(), (0.0, 0.2, 0.6, 1)),
    "a whole number": (lambda h, k: h - h * k, (0, 2, 3)),
    "a power": (lambda h, k: h.abs() ** k, (1, 2, 3)),
    "a clamp": (lambda h, k: h.clamp(-k, k), (1, 2.5, 3)),
    "a temperature that becomes whole": (lambda h, t: F.gumbel_softmax(h, tau=t, dim=1), (5.0, 2.5, 1)),
    "a value filled in": (lambda h, v: h.masked_fill(h > 0, v), (0, 0.0, 1)),
}


@pytest.mark.parametrize(("part", "values"), ANNEALED.values(), ids=ANNEALED)
def test_values_may_change_between_passes(part: Callable[[Tensor, Any], Tensor], values: tuple[Any, ...]) -> None:
    """Numbers that are added or multiplied, and fractions everywhere, mix nothing."""
    passes_with(part, *values)


def test_a_whole_number_that_changes_can_be_an_argument() -> None:
    """As the remedy says: arguments of forward() are part of what is learned."""
    model = Bare(lambda own, batch, shift: own.net(batch.roll(shift, 1)), net=nn.Linear(4, 3))
    engine = Engine(model)
    for shift in (0, 1, 2):
        engine.begin(7)
        engine.backward(losses_of(model(x(7, 4), shift)))


def test_records_mixed_in_large_batches_alone() -> None:
    """The probe's batches are small: a setting that is the same for them and another here is refused."""
    model = Bare(lambda own, batch: own.net(batch.roll(len(batch) // 10, 0)), net=nn.Linear(4, 3))
    engine = Engine(model)
    engine.begin(9)
    engine.backward(losses_of(model(x(9, 4))))
    engine.discard()
    engine.begin(20)
    with pytest.raises(Refused, match="roll on the records with 2 where it had 0 on random inputs"):
        model(x(20, 4))


def test_records_mixed_in_batches_of_some_sizes() -> None:
    """A size that follows the number of records has to follow it on a line."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        groups = batch.view(len(batch) // math.gcd(len(batch), 8), -1, 8)
        return own.net((groups - groups.mean(1, keepdim=True) / 2).view(-1, 8))

    model = Bare(run, net=nn.Linear(8, 3))
    engine = Engine(model)
    engine.begin(16)
    with pytest.raises(Refused, match=r"view on the records with 2 where it had 16 on"):
        model(x(16, 8))


def test_settings_that_follow_the_number_of_records_or_the_generator() -> None:
    """Shapes and a crop at random: both are other in every pass, neither mixes records."""

    def run(own: Bare, batch: Tensor) -> Tensor:
        start = int(torch.randint(0, 1000, ())) % 4
        cut = batch.reshape(len(batch), 2, 6)[:, :, start : start + 3]
        return own.net(cut.reshape(len(batch), -1))

    model = Bare(run, net=nn.Linear(6, 3))
    engine = Engine(model)
    for records in (7, 1, 12, 7, 7, 7):
        engine.begin(records)
        engine.backward(losses_of(model(x(records, 12))))
        assert bool(engine.finite().all())


def mixed_up(own: Bare, batch: Tensor) -> Tensor:
    share = torch.where(torch.rand(()) < 0.5, 0.7, 1.0)
    return own.net(share * batch + (1 - share) * batch[torch.randperm(len(batch))])


def shifted(own: Bare, batch: Tensor) -> Tensor:
    return own.net(batch.roll(int(torch.randint(0, 2, ())), 0))


@pytest.mark.parametrize("run", [mixed_up, shifted])
def test_records_mixed_in_some_passes(run: Callable[[Bare, Tensor], Tensor]) -> None:
    """One pass in two mixes, and is refused. That none of 40 does has a probability of 1e-12."""
    engine = Engine(Bare(run, net=nn.Linear(4, 3)))

    def train() -> None:
        for _ in range(40):
            batch = x(7, 4)
            opened(engine, [batch])
            engine.backward(losses_of(engine.model(batch)))

    with pytest.raises(Refused, match=r"apart|each record stands alone|on random inputs"):
        train()
    engine.discard()


def test_a_size_of_the_batch_beside_noise() -> None:
    """Noise is other for every size; with one value in its place the size shows."""
    model = Bare(lambda own, batch: own.net(batch + torch.randn_like(batch)) / len(batch), net=nn.Linear(4, 3))
    refused(model, x(7, 4), match="move with the number of records")
    model = Bare(lambda own, batch: own.net(batch + torch.randn_like(batch)), net=nn.Linear(4, 3))
    engine = Engine(model)
    for records in (7, 12):
        engine.begin(records)
        engine.backward(losses_of(model(x(records, 4))))


def test_a_coin_beside_noise() -> None:
    """A coin that falls alike in one other pass does not show that nothing but noise is drawn."""
    for before in range(8):

        def run(own: Bare, batch: Tensor, before: int = before) -> Tensor:
            torch.rand(before)
            noisy = batch + torch.randn_like(batch)
            return own.net(noisy.flip(1) if int(torch.randint(0, 2, ())) else noisy.flip(()))

        model = Bare(run, net=nn.Linear(4, 3))
        engine = Engine(model)
        for records in (7, 12):
            engine.begin(records)
            engine.backward(losses_of(model(x(records, 4))))


def test_a_slice_up_to_a_public_tensor() -> None:
    model = Bare(lambda own, batch: own.net(batch[:, : own.length]), net=nn.Linear(3, 3))
    model.register_buffer("length", torch.tensor(3))
    engine = Engine(model)
    engine.begin(7)
    engine.backward(losses_of(model(x(7, 4))))


def test_a_slice_up_to_a_value_of_the_records() -> None:
    def run(own: Bare, batch: Tensor, lengths: Tensor) -> Tensor:
        return own.net(batch[:, : lengths.max()].mean(1, keepdim=True))

    refused(Bare(run, net=nn.Linear(1, 3)), x(7, 4), torch.randint(1, 5, (7,)), match="as its bound")
