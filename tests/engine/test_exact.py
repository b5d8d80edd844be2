"""Norms, weighted sums and gradients of every supported model, against torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import PROBLEMS, Bare, Problem, floats, losses_of, outputs_of, parameter
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from truths import TOLERANCE, answer, by_autograd, by_func, cast, disagreement, gap, rows, trained, truth_of

from discreet.core.check import Refused
from discreet.engine import known_traces as scripts
from discreet.engine.engine import Engine
from discreet.engine.factors import convolution, gradients
from discreet.engine.factors import linear as outer
from discreet.engine.factors import parts as factors
from discreet.engine.factors.recorded_call import RecordedCall
from discreet.engine.trace.capture import RecordAxis

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's own remark, once a process
each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def summed(engine: Engine, inputs: Any, records: int, weights: Tensor, cuts: list[int]) -> Tensor:
    """The weighted sum of a batch that comes in micro-batches."""
    total, start = engine.zeros(), 0
    for size in cuts:
        args, kwargs = rows(inputs, records, start, start + size)
        engine.begin(size)
        engine.backward(losses_of(engine.model(*args, **kwargs)))
        engine.add_weighted(weights[start : start + size].view(1, 1, -1), total)
        start += size
    return total[0]


@each_dtype
@each_problem
def test_equals_torch_func(problem: Problem, dtype: torch.dtype) -> None:
    """One batch, one record, two and four micro-batches, and two passes of one micro-batch."""
    model = problem.model().to(dtype)
    engine = Engine(model)
    tolerance = TOLERANCE[dtype] * (problem.rounds if dtype == torch.float32 else 1)
    truths = {}
    for records in (7, 1, 2):
        inputs = cast(problem.inputs(records), dtype)
        truths[records] = inputs, truth_of(problem, model, inputs, records)
        weights = torch.rand(records, dtype=torch.float64)
        found = answer(engine, inputs, records, weights)
        assert disagreement(found, truths[records][1], weights) < tolerance
        assert found.norms.dtype == torch.float64
        assert found.total.dtype == dtype
    inputs, truth = truths[7]
    weights = torch.rand(7, dtype=torch.float64)
    for cuts in ([4, 3], [2, 2, 1, 2]):
        assert gap(summed(engine, inputs, 7, weights, cuts), weights.to(dtype) @ truth) < tolerance
    others = cast(problem.inputs(7), dtype)
    both = truth + truth_of(problem, model, others, 7)
    engine.begin(7)
    first, second = (losses_of(model(*args, **kwargs)) for args, kwargs in (inputs, others))
    engine.backward(first + second)
    assert gap(engine.per_sample(0, 7), both) < tolerance
    assert gap(engine.norms()[0].unsqueeze(1), both.double().norm(dim=1, keepdim=True)) < 2 * tolerance
    assert all(p.grad is None for p in trained(model).values())


STRATEGIES: dict[str, list[tuple[Any, str, Any]]] = {
    "nothing is kept": [(factors, "KEEP_ELEMENTS", 100)],
    "no room": [(factors, "KEEP_IN_ALL", 0)],
    "gram": [(outer, "GRAM_RATIO", float("inf"))],
    "no gram": [(outer, "GRAM_RATIO", 0.0)],
    "no gram, nothing is kept": [(outer, "GRAM_RATIO", 0.0), (factors, "KEEP_ELEMENTS", 100)],
    "no gram, made twice": [
        (outer, "GRAM_RATIO", 0.0),
        (outer, "TWICE_RATIO", float("inf")),
        (gradients, "KEEP_ANYWAY", 0),
    ],
    "grouped convolutions": [(convolution, "GROUPED_CHANNEL_PAIRS", 1 << 60), (convolution, "FEW_POSITIONS", 0)],
    "patches": [(convolution, "GROUPED_CHANNEL_PAIRS", 0)],
    "patches, nothing is kept": [(convolution, "GROUPED_CHANNEL_PAIRS", 0), (factors, "KEEP_ELEMENTS", 100)],
    "all summed apart": [(factors, "CANCELLATION", float("inf")), (factors, "KEEP_ELEMENTS", 100)],
}
KINDS = (
    *("linear 3-D", "linear, long sequence", "linear, wide", "conv1d", "conv2d, stride", "conv2d, same"),
    *("conv2d, dilation", "conv2d, many channels", "conv3d", "conv2d over frames", "conv2d, depthwise"),
    *("conv_transpose2d", "conv_transpose2d, many", "embedding, repeated tokens", "two scales"),
    *("tied, transposed", "layer norm", "bare parameters"),
)


@pytest.mark.parametrize("name", KINDS)
def test_every_strategy_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS[name]
    for dtype in (torch.float64, torch.float32):
        model = problem.model().to(dtype)
        inputs = cast(problem.inputs(7), dtype)
        truth = truth_of(problem, model, inputs, 7)
        weights = torch.rand(7)
        engine = Engine(model)
        engine.script(*inputs, 7)
        for strategy in STRATEGIES.values():
            with monkeypatch.context() as patched:
                for module, constant, value in strategy:
                    patched.setattr(module, constant, value)
                found = answer(engine, inputs, 7, weights)
            assert disagreement(found, truth, weights) < TOLERANCE[dtype] * problem.rounds


@pytest.mark.parametrize("records", [3, 5, 6])
@pytest.mark.parametrize("name", ["linear 3-D", "time-major rows", "attention, time-major", "gpt", "addmm"])
def test_sizes_that_coincide(name: str, records: int) -> None:
    """As many records as the probe has, or as there are positions (5 and 6 here): no axis is mistaken."""
    problem = PROBLEMS[name]
    model = problem.model().double()
    inputs = cast(problem.inputs(records), torch.float64)
    weights = torch.rand(records)
    found = answer(Engine(model), inputs, records, weights)
    assert disagreement(found, truth_of(problem, model, inputs, records), weights) < 1e-10


def test_lengths_that_vary_between_batches() -> None:
    problem = PROBLEMS["gpt"]
    model = problem.model().double()
    engine = Engine(model)
    for length in (6, 2, 1, 4, 6):
        inputs = ((torch.randint(0, 10, (7, length)),), {})
        weights = torch.rand(7)
        assert disagreement(answer(engine, inputs, 7, weights), by_func(model, inputs, 7), weights) < 1e-10


def test_a_constant_with_as_many_rows_as_records_is_known_from_earlier_batches() -> None:
    problem = PROBLEMS["constants beside the batch"]
    model = problem.model().double()
    engine = Engine(model)
    for records in (7, 6, 1, 6):
        inputs = cast(problem.inputs(records), torch.float64)
        weights = torch.rand(records)
        truth = by_autograd(model, inputs)
        assert disagreement(answer(engine, inputs, records, weights), truth, weights) < 1e-10


def test_inputs_by_place_and_by_name_are_learned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learned, learn = list[Any](), scripts.KnownTraces._learn

    def counted(self: Any, inputs: Any, batched: tuple[bool, ...], views: int) -> Any:
        learned.append(batched)
        return learn(self, inputs, batched, views)

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, table: Tensor, x: Tensor, *, scale: float = 1.0) -> Tensor:
            return (self.net(x) @ table).mul(scale)

    monkeypatch.setattr(scripts.KnownTraces, "_learn", counted)
    model = Scored().double()
    engine, table, x = Engine(model), torch.randn(3, 5).double(), torch.randn(7, 4).double()
    named: dict[str, Tensor] = {"x": x, "table": table}
    for inputs in ((table, x), {}), ((), named), ((table,), {"x": x}), ((table, x), {"scale": 2.0}):
        weights, truth = torch.rand(7), by_autograd(model, inputs)
        assert disagreement(answer(engine, inputs, 7, weights), truth, weights) < 1e-10
    assert learned == [(False, True)] * 2  # the last has an argument more


def test_a_flag_that_changes_the_axis_has_a_script_of_its_own() -> None:
    """Six records of six positions: the wrong script would fit, and group the wrong rows."""

    def run(own: Bare, x: Tensor, time_major: bool = False) -> Tensor:
        return own.net(x.transpose(0, 1)).transpose(0, 1) if time_major else own.net(x)

    model = Bare(run, net=nn.Linear(4, 3)).double()
    engine, x = Engine(model), torch.randn(6, 6, 4).double()
    for flag in (False, True, False):
        inputs, weights = ((x,), {"time_major": flag}), torch.rand(6)
        truth = by_autograd(model, inputs)
        assert disagreement(answer(engine, inputs, 6, weights), truth, weights) < 1e-10


@pytest.mark.parametrize("name", ["dropout", "encoder layer", "lstm", "attention with a bias", "checkpointed"])
def test_dropout_in_training_mode(name: str) -> None:
    """The same seed before each pass: the engine's pass draws the masks that autograd's pass draws."""
    models: dict[str, Callable[[], nn.Module]] = {
        "dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 3), nn.Dropout(0.2)),
        "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True),
        "lstm": lambda: Bare(
            lambda own, x: own.net(x)[0], net=nn.LSTM(8, 5, num_layers=2, dropout=0.3, batch_first=True)
        ),
        "attention with a bias": lambda: Bare(
            lambda own, x: F.scaled_dot_product_attention(x, own.net(x), x, attn_mask=own.bias, dropout_p=0.4),
            net=nn.Linear(8, 8),
            bias=parameter(5, 5),
        ),
        "checkpointed": lambda: Bare(
            lambda own, x: checkpoint(own.net, own.first(x), use_reentrant=False),
            first=nn.Linear(8, 8),
            net=nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 3), nn.Dropout(0.2)),
        ),
    }
    model = models[name]().double().train()
    inputs, weights = cast(floats(5, 8)(7), torch.float64), torch.rand(7)
    engine = Engine(model)
    engine.script(*inputs, 7)
    torch.manual_seed(5)
    truth = by_autograd(model, inputs)
    torch.manual_seed(5)
    found = answer(engine, inputs, 7, weights)
    assert disagreement(found, truth, weights) < 1e-10
    torch.manual_seed(6)
    assert gap(answer(engine, inputs, 7, weights).per_sample, truth) > 1e-2  # other masks, other gradients


@pytest.mark.parametrize("name", ["linear 3-D", "conv2d", "gpt", "experts", "attention", "layer norm", "vit"])
def test_autocast_keeps_norms_and_sums_in_float32(name: str) -> None:
    """bfloat16 has 8 bits: activations are off by some 2^-8, the norm still bounds what is summed."""
    problem = PROBLEMS[name]
    model = problem.model()
    inputs, weights = problem.inputs(7), torch.rand(7)
    truth = by_autograd(model, inputs)
    engine = Engine(model)
    args, kwargs = inputs
    engine.begin(7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(*args, **kwargs)
    engine.backward(losses_of([tensor.float() for tensor in outputs_of(output)]))
    total = engine.zeros()
    engine.add_weighted(weights.view(1, 1, -1), total)
    norms, per_sample = engine.norms()[0], engine.per_sample(0, 7)
    assert total.dtype == torch.float32
    assert norms.dtype == torch.float64
    assert gap(per_sample, truth) < 0.2
    assert bool((norms >= per_sample.double().norm(dim=1) * (1 - 2**-17)).all())
    assert gap(total[0], weights @ per_sample) < 1e-5


def test_a_model_in_half_precision() -> None:
    model = PROBLEMS["linear 3-D"].model()
    inputs = floats(6, 4)(7)
    truth = by_autograd(model, inputs)
    engine = Engine(model.bfloat16())
    engine.begin(7)
    engine.backward(losses_of(model(inputs[0][0].bfloat16()).float()))
    assert engine.zeros().dtype == torch.float32
    assert gap(engine.per_sample(0, 7), truth) < 0.1


def test_views_of_a_record_count_as_one() -> None:
    """Rows 2i and 2i + 1 are copies of record i; its loss is their mean."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(14, 4).double()
    rows_of = by_func(model, ((x,), {}), 14)
    truth = rows_of.view(7, 2, -1).mean(1)
    engine = Engine(model)
    engine.begin(7, views=2)
    engine.backward(losses_of(model(x)))
    assert gap(engine.per_sample(0, 7), truth) < 1e-10
    assert gap(engine.norms()[0].unsqueeze(1), truth.norm(dim=1, keepdim=True)) < 1e-10


def test_a_gradient_of_the_callers_own_leaves_no_trace() -> None:
    """Adversarial training: a gradient for the inputs, by a pass of its own, inside the micro-batch."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    engine, x = Engine(model), torch.randn(7, 4).double()
    engine.begin(7)
    attacked = x.clone().requires_grad_()
    direction = torch.autograd.grad(losses_of(model(attacked)).sum(), attacked)[0].sign()
    engine.backward(losses_of(model(x + 0.1 * direction)))
    assert gap(engine.per_sample(0, 7), by_func(model, ((x + 0.1 * direction,), {}), 7)) < 1e-10


def test_inputs_that_need_a_gradient() -> None:
    model = nn.Linear(4, 3).double()
    x = torch.randn(7, 4).double().requires_grad_()
    found = answer(Engine(model), ((x,), {}), 7, torch.ones(7))
    assert gap(found.per_sample, by_autograd(model, ((x,), {}))) < 1e-10


def test_a_pass_that_feeds_the_next() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    engine, x = Engine(model), torch.randn(7, 4).double()

    def twice(first: Tensor) -> Tensor:
        return losses_of(model(first))

    engine.begin(7)
    engine.backward(twice(model(x)))
    found = engine.per_sample(0, 7)
    engine.close()
    assert gap(found, by_autograd(model, ((x,), {}), twice)) < 1e-10


def test_a_model_that_calls_itself_is_one_pass() -> None:
    def run(own: Bare, x: Tensor, depth: int = 2) -> Tensor:
        x = torch.tanh(own.net(x))
        return x if depth == 0 else own(x, depth=depth - 1)

    model = Bare(run, net=nn.Linear(4, 4)).double()
    inputs, weights = cast(floats(4)(7), torch.float64), torch.rand(7)
    assert disagreement(answer(Engine(model), inputs, 7, weights), by_autograd(model, inputs), weights) < 1e-10


def test_unused_parameters_have_no_signal_and_a_place() -> None:
    model = PROBLEMS["frozen and unused"].model()
    engine = Engine(model)
    engine.begin(3)
    engine.backward(losses_of(model(torch.randn(3, 4))))
    total = engine.zeros()
    engine.add_weighted(torch.ones(1, 1, 3), total)
    views = dict(zip(engine.layout.names, engine.layout.views(total[0]), strict=True))
    assert "0.weight" not in views
    assert torch.equal(views["unused"], torch.zeros(3, 2))
    assert float(views["2.weight"].norm()) > 0


def test_groups_and_queries() -> None:
    """Norms of groups of parameters, and two sums with weights of their own for each group."""
    model = PROBLEMS["linear"].model().double()
    inputs = cast(floats(4)(7), torch.float64)
    truth = by_func(model, inputs, 7)
    engine = Engine(model)
    answer(engine, inputs, 7, torch.ones(7))
    groups = [[2, 0], [1, 3]]
    sizes = engine.layout.sizes
    columns = [torch.cat([torch.full((size,), i in group) for i, size in enumerate(sizes)]) for group in groups]
    expected = torch.stack([truth[:, own].norm(dim=1) for own in columns])
    assert gap(engine.norms(groups), expected) < 1e-10
    weights = torch.rand(2, 2, 7).double()
    totals = engine.zeros(2)
    engine.add_weighted(weights, totals, groups)
    for query in range(2):
        sums = sum(weights[query, g] @ (truth * columns[g]) for g in range(2))
        assert gap(totals[query], sums) < 1e-10  # type: ignore[arg-type]


def test_mapped_sums_see_every_record_once_and_silent_ones_as_zero() -> None:
    model = nn.Linear(4, 3).double()
    x = torch.randn(7, 4).double()
    truth = by_func(model, ((x,), {}), 7)
    truth[3] = 0
    x[3, 0] = float("nan")
    engine = Engine(model)
    answer(engine, ((x,), {}), 7, torch.ones(7))
    for chunk in (1, 3, 7, 100):
        found = engine.mapped_sum(lambda grads: grads.tanh().sum(0), chunk=chunk)
        assert gap(found, truth.tanh().sum(0)) < 1e-10


# The comparison finds a broken engine -----------------------------------------------------------------------


def no_cross_terms(patched: pytest.MonkeyPatch) -> None:
    def measure(self: Any) -> tuple[Tensor, Tensor]:
        norms = torch.stack([part.measure()[0] for part in self.parts]).square().sum(0).sqrt()
        return norms, norms

    patched.setattr(outer.Sum, "measure", measure)


def only_the_first_use(patched: pytest.MonkeyPatch) -> None:
    whole = gradients.merge
    patched.setattr(gradients, "merge", lambda parts, *rest: whole(parts[:1], *rest))


def another_record_axis(patched: pytest.MonkeyPatch) -> None:
    """Rows of batch * time taken for rows of time * batch."""

    def split(axis: RecordAxis, tensor: Tensor, records: int) -> Tensor:
        return RecordAxis(axis.axis, not axis.minor).split(tensor, records)

    patched.setattr(RecordedCall, "by_record", lambda self, tensor: split(self.axes[id(tensor)], tensor, self.records))
    gradient = property(lambda self: split(self.output_axis, self.gradient, self.records))
    patched.setattr(RecordedCall, "gradient_by_record", gradient)


def norms_without_the_bias(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(factors.FormedGradients, "norms", property(lambda self: torch.zeros(self.records).double()))


def weights_of_the_wrong_records(patched: pytest.MonkeyPatch) -> None:
    whole = factors.in_range
    patched.setattr(factors, "in_range", lambda weights, dtype: whole(weights.flip(-1), dtype))


BROKEN = [
    (no_cross_terms, "gpt"),
    (only_the_first_use, "gpt"),
    (only_the_first_use, "two scales"),
    (another_record_axis, "addmm"),
    (norms_without_the_bias, "linear"),
    (weights_of_the_wrong_records, "linear"),
]


@pytest.mark.parametrize(("breaks", "name"), BROKEN)
def test_a_broken_engine_is_found(breaks: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS[name]
    model = problem.model().double()
    inputs, weights = cast(problem.inputs(7), torch.float64), torch.rand(7)
    truth = truth_of(problem, model, inputs, 7)
    sound = answer(Engine(model), inputs, 7, weights)
    assert disagreement(sound, truth, weights) < 1e-10
    monkeypatch.setattr(scripts, "verify", lambda *_: None)
    engine = Engine(model)
    engine.script(*inputs, 7)
    breaks(monkeypatch)
    assert disagreement(answer(engine, inputs, 7, weights), truth, weights) > 1e-3


@pytest.mark.parametrize(("breaks", "name"), BROKEN)
def test_a_broken_engine_refuses_by_itself(breaks: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry run on random inputs catches the same faults before any private record is seen."""
    problem = PROBLEMS[name]
    model = problem.model().double()
    breaks(monkeypatch)
    with pytest.raises(Refused, match="to equal autograd's"):
        Engine(model).script(*cast(problem.inputs(7), torch.float64), 7)


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that forgets a factor of two, in one op of one model."""
    from discreet.engine.factors import rules

    def halved(use: Any, first: Any, second: Any) -> Any:
        for argument, part in rules._mul(use, first, second):
            yield argument, factors.FormedGradients(part.instantiate(0, part.records) / 2)

    monkeypatch.setitem(rules.RULES, Tensor.mul, halved)
    model = Bare(lambda own, x: own.net(x) * own.scale, net=nn.Linear(4, 3), scale=parameter(3))
    with pytest.raises(Refused, match="gradients of scale to equal autograd's"):
        Engine(model).script((torch.randn(4, 4),), {}, 4)


def test_evaluation_is_left_alone() -> None:
    """No gradient mode, no micro-batch, or a closed engine: the model is an ordinary one."""
    model = nn.Linear(4, 3)
    x, y = torch.randn(7, 4), torch.randn(7, 3)
    engine = Engine(model)
    F.mse_loss(model(x), y).backward()
    expected = model.weight.grad
    model.zero_grad()
    engine.begin(7)
    with torch.no_grad():
        assert not model(x).requires_grad
    engine.close()
    F.mse_loss(model(x), y).backward()
    assert torch.equal(model.weight.grad, expected)  # type: ignore[arg-type]
