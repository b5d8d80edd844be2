"""Draws, tensors and code of the backward pass that no call shows: choices among them by a value of the records.

Each attack behaves in rehearsals, and lets the records decide afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import each, train
from torch import Tensor, nn
from torch.autograd import Variable
from torch.overrides import handle_torch_function, has_torch_function

import discreet
from discreet.core.check import Refused

SAME = "same calls with the same numbers"
Flag = bool  # what a value of the records decides
Make = Callable[[Tensor, Flag], Tensor]


def with_value(make: Make) -> Any:
    """A loop whose inputs are made by `make`, which is told a value of the records."""

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(make(x, not private.is_rehearsal and x.max().item() > 0)), y))

    return body


# Draws -------------------------------------------------------------------------------------------------------


def best_of_two(x: Tensor, flag: Flag) -> Tensor:
    draws = [torch.randn_like(x) for _ in range(2)]
    return x + draws[flag]


def drawn_again(x: Tensor, flag: Flag) -> Tensor:
    noise = torch.randn(6)
    if flag:
        noise = torch.randn(6)
    return x + noise


def dropped_again(x: Tensor, flag: Flag) -> Tensor:
    kept = F.dropout(x, 0.5)
    return F.dropout(x, 0.5) if flag else kept


def skipped(x: Tensor, flag: Flag) -> Tensor:
    if flag:
        torch.rand(3)
    return x + torch.randn(6)


def rewound(x: Tensor, flag: Flag) -> Tensor:
    state = torch.get_rng_state()
    first = torch.randn(6)
    if flag:
        torch.set_rng_state(state)
    return x + first + torch.randn(6)


def looked_ahead(x: Tensor, flag: Flag) -> Tensor:
    """One of two states after draws of other sizes."""
    with torch.random.fork_rng():
        torch.rand(100)
        ahead = torch.get_rng_state()
    torch.rand(1)
    if flag:
        torch.set_rng_state(ahead)
    return x + torch.randn(6)


def prepared_states(x: Tensor, flag: Flag) -> Tensor:
    with torch.random.fork_rng():
        seeded = torch.default_generator.initial_seed()
        state = torch.Generator().manual_seed(seeded)
        torch.rand(17 if flag else 19, generator=state)
        torch.set_rng_state(state.get_state())
        return x + torch.randn(6)


TWINS = [torch.Generator().manual_seed(3) for _ in range(2)]


def one_of_two_generators(x: Tensor, flag: Flag) -> Tensor:
    if TWINS[0].get_state().equal(TWINS[1].get_state()):
        torch.rand(7, generator=TWINS[1])
    return x + torch.randn(6, generator=TWINS[flag])


GENERATOR = torch.Generator().manual_seed(4)


def generator_set_forward(x: Tensor, flag: Flag) -> Tensor:
    if flag:
        other = torch.Generator().manual_seed(4)
        torch.rand(1001, generator=other)
        GENERATOR.set_state(other.get_state())
    torch.rand(3, generator=GENERATOR)
    torch.rand(3, generator=GENERATOR)
    return x + torch.randn(6, generator=GENERATOR)


DRAWS = [
    *(best_of_two, drawn_again, dropped_again, skipped, rewound, looked_ahead, prepared_states),
    *(one_of_two_generators, generator_set_forward),
]


@pytest.mark.parametrize("make", DRAWS, ids=lambda make: make.__name__)
def test_a_choice_among_draws(make: Make) -> None:
    with pytest.raises(Refused, match=f"{SAME}|set to another state|no two draws share|leave generator= out"):
        train(body=with_value(make), steps=2)


def test_draws_that_vary_apart_from_the_losses_are_accepted() -> None:
    """In `fork_rng`, behind a declared choice, and after the last draw that reaches the losses."""

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        with torch.random.fork_rng():
            torch.rand(len(x) % 5)
            for _ in range(len(x) % 3):
                torch.randperm(len(x))
        if discreet.public(private.progress.step == 2):
            torch.rand(4)
        losses = each(model(F.dropout(x, 0.5) + torch.randn(6)), y)
        torch.rand(1 + len(x) % 7)
        private.step(losses)

    assert train(body=body, fixed=False).updates == 4


SAMPLERS: dict[str, Callable[[Tensor], Tensor]] = {
    "poisson": lambda x: torch.poisson(x.abs() * 5),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 50.0), x.abs().clamp(0.01, 0.99)),
    "gamma": lambda x: torch.distributions.Gamma(x.abs() + 0.1, 1.0, validate_args=False).sample(),
    "dirichlet": lambda x: torch.distributions.Dirichlet(x.abs() + 0.1, validate_args=False).sample(),
    "bernoulli": lambda x: torch.bernoulli(x.abs().clamp(0, 1)),
    "normal": lambda x: torch.normal(x, 1.0),
    "multinomial": lambda x: torch.multinomial(x.abs() + 0.1, 3).float(),
    "replacement": lambda x: torch.multinomial(x.abs() + 0.1, 9, replacement=True).float(),
    "dropout": lambda x: F.dropout(x, 0.5),
    "gumbel": lambda x: F.gumbel_softmax(x),
}


def used_by(sample: Callable[[Tensor], Tensor], x: Tensor) -> bytes:
    """The state that a sampler leaves."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sample(x)
        return bytes(torch.get_rng_state().tolist())


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_behind_a_sampler_that_goes_by_values(name: str) -> None:
    """Records decide how far such a sampler moves the generator: harmless, unless the loop has seen what comes next."""
    sample = SAMPLERS[name]
    by_values = len({used_by(sample, x) for x in (torch.zeros(9, 6), *(torch.randn(9, 6) for _ in range(5)))}) > 1
    looks = False

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        if looks:
            with torch.random.fork_rng():
                torch.rand(100)
        ahead = sample(x).mean(1, keepdim=True)
        private.step(each(model(x + 0.1 * ahead + torch.randn(x.shape)), y))

    assert train(body=body, steps=2).updates == 2
    looks = True
    if by_values:
        with pytest.raises(Refused, match="no two draws share"):
            train(body=body, steps=2)
    else:
        assert train(body=body, steps=2).updates == 2


# Tensors ------------------------------------------------------------------------------------------------------


def by_thread(make: Callable[[], Tensor]) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()


ALIASES: dict[str, Callable[[Tensor], Tensor]] = {
    "nn.Parameter": nn.Parameter,
    "torch.Tensor": torch.Tensor,
    "a subclass": lambda h: Tensor._make_subclass(Tensor, h),  # type: ignore[attr-defined]
    "a view of another thread": lambda h: by_thread(lambda: h.view(-1).view(h.shape)),
    "a tensor that another thread detached": lambda h: by_thread(h.detach),
    "a parameter of another class": lambda h: nn.Buffer(h),
}


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES.keys())
def test_a_tensor_that_no_call_made(alias: Callable[[Tensor], Tensor]) -> None:
    """It has the values of a known one, and another graph."""

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        flag = not private.is_rehearsal and x.max().item() > 0
        private.step(each(model(x) + (alias(outputs) if flag else outputs), y))

    with pytest.raises(Refused, match=f"each record stands alone|{SAME}"):
        train(body=body, steps=2)


class Weighted(nn.Module):
    """Uses its weight through a tensor of the step."""

    def __init__(self, alias: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)
        self.alias, self.flag = alias, False

    def forward(self, x: Tensor) -> Tensor:
        doubled = self.weight * 2
        return self.head(x * (self.alias(doubled) if self.flag else doubled))


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES.keys())
def test_a_weight_that_no_call_made(alias: Callable[[Tensor], Tensor]) -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        model.flag = not private.is_rehearsal
        private.step(each(model(x), y))

    with pytest.raises(Refused, match=f"{SAME}|each record stands alone|to make the same calls|not seen"):
        train(Weighted(alias), body, steps=2)


# The backward pass --------------------------------------------------------------------------------------------

KEPT: dict[str, Any] = {}


class Passes(torch.autograd.Function):
    """Gives its input and its gradient on."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 1


def by_value(gradients: Any, *_: Any) -> Any:
    return tuple(one * 0 if KEPT["flag"] else one for one in gradients)


class Hooked(Passes):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.register_hook(by_value)
        return h * 1


class HookedBefore(Passes):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.register_prehook(by_value)
        return h * 1


class HookedByDictionary(Passes):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx._register_hook_dict({0: by_value})
        return h * 1


class HooksItsNeighbour(Passes):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        ctx.next_functions[0][0].register_hook(by_value)
        return gradients[0] * 1


class HooksWhileItRuns(Passes):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        torch._C._current_autograd_node().register_hook(by_value)  # type: ignore[attr-defined]
        return gradients[0] * 1


class Queues(Passes):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        result = gradients[0] * 1
        Variable._execution_engine.queue_callback(lambda: result.mul_(0) if KEPT["flag"] else None)  # type: ignore[attr-defined]
        return result


class QueuesWithoutAFrame(Passes):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        result = gradients[0] * 1
        if KEPT["flag"]:
            Variable._execution_engine.queue_callback(result.zero_)  # type: ignore[attr-defined]
        return result


@pytest.mark.parametrize(
    "function",
    [Hooked, HookedBefore, HookedByDictionary, HooksItsNeighbour, HooksWhileItRuns, Queues, QueuesWithoutAFrame],
    ids=lambda function: function.__name__,
)
def test_code_that_runs_beside_a_backward_pass(function: Any) -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        KEPT["flag"] = not private.is_rehearsal
        private.step(each(function.apply(model(x)), y))

    with pytest.raises(Refused, match=r"a hook on a node|another call of torch"):
        train(body=body, steps=2)


class Writes(torch.autograd.Function):
    """Changes memory through NumPy before another node reads it, or restores it after."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return h * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if KEPT["flag"]:
            KEPT["array"] *= ctx.factor
        return gradients[0] * 1, None


@pytest.mark.parametrize("flag", [False, True])
def test_memory_that_is_changed_and_restored_within_a_backward_pass(flag: bool) -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        KEPT["flag"] = flag and not private.is_rehearsal
        factors = model(x).exp()
        KEPT["array"] = factors.detach().numpy()
        private.step(each(Writes.apply(Writes.apply(model(x), 0.5) * factors, 2.0), y))

    if not flag:
        assert train(body=body, steps=2).updates == 2
        return
    with pytest.raises(Refused, match="written to through NumPy"):
        train(body=body, steps=2)


def test_hooks_on_nodes_are_as_usual_outside_of_steps() -> None:
    train(body=lambda private, model, x, y: private.step(each(Passes.apply(model(x)), y)), steps=1)
    x = torch.ones(2, requires_grad=True)
    y = Passes.apply(x * 2)
    y.grad_fn.register_hook(lambda gradients, _: tuple(3 * one for one in gradients))
    assert y.grad_fn.next_functions
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 6.0]


class Rounded(torch.autograd.Function):
    """Rounds a weight; its gradient goes by what Python kept of the records."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        with torch.enable_grad():  # so that the engine takes it for a tensor that autograd made
            return weight.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (2.0 if KEPT["flag"] else 1.0)


class Quantised(nn.Module):
    def __init__(self, rounded: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.rounded = nn.Parameter(torch.randn(6, 3)), rounded

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.rounded(self.weight)


def test_a_function_on_weights_alone() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        KEPT["flag"] = not private.is_rehearsal and x.max().item() > 0
        private.step(each(model(x), y))

    with pytest.raises(Refused, match=r"Rounded, an autograd.Function on parameters alone at .*test_unseen") as refused:
        train(Quantised(Rounded.apply), body, steps=2)
    assert "weight + (rounded - weight).detach()" in str(refused.value)
    assert train(Quantised(lambda weight: weight + (weight.round() - weight).detach()), body, steps=2).updates == 2


HELD: list[Tensor] = []


def mean_of_records(weight: Tensor) -> Tensor:
    """A function that torch hands to the watch as one call, on a public tensor."""
    if has_torch_function((weight,)):
        made: Tensor = handle_torch_function(mean_of_records, (weight,), weight)
        return made
    return weight * 0 + HELD[0].mean(0)


def test_functions_of_the_users_own_are_not_public() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        HELD[:] = [x]
        private.step(each(model(x - mean_of_records(torch.ones(6))), y))

    with pytest.raises(Refused, match="each record stands alone"):
        train(body=body)
