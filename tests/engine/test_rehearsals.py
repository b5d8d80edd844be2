"""The calls that make the losses are fixed before a record is seen, and nothing else reaches the gradients.

Each attack lets one record decide about the losses of all others. What it reads comes from the first batch that holds
records, and is kept, so that all batches after it look alike.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections import UserDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import torch
from problems import Bare
from steps import Body, classifier, each, rows, train
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

import discreet
from discreet.core.check import Refused
from discreet.engine.proof.forms.call_forms import Reading
from discreet.engine.proof.lineage import SOLE, Origin
from discreet.engine.proof.program import ProgramComparison
from discreet.engine.trace.capture import RecordAxis
from discreet.training.rehearsal import made_up

Read = Callable[[Tensor, Tensor], bool]


def in_a_thread(x: Tensor, losses: Tensor) -> bool:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: x.max().item() > 1).result()


def caught(x: Tensor, losses: Tensor) -> bool:
    try:
        torch.testing.assert_close(x.max(), torch.tensor(1.0), atol=0.1, rtol=0)
    except AssertionError:
        return True
    return False


READS: dict[str, Read] = {
    "a number": lambda x, losses: losses.max().item() > 1,
    "how many rows a selection has": lambda x, losses: len(x[x[:, 0] > 0].unbind(0)) > 2,
    "the size of the batch": lambda x, losses: len(x) > 8,
    "an error that is caught": caught,
    "another thread": in_a_thread,
    "memory": lambda x, losses: bytes(x.untyped_storage()) > bytes(100),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_choice_between_two_finished_losses(read: Read) -> None:
    """Kept from the first batch of records on."""
    kept: list[bool] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        other = losses * 0
        if not kept and not private.is_rehearsal:
            kept.append(read(x, losses))
        private.step(other if kept and kept[0] else losses)

    with pytest.raises(Refused, match="same calls with the same numbers"):
        train(body=body, steps=2)


def test_a_number_that_the_first_batch_sets() -> None:
    """Without a look at `is_rehearsal`: the rehearsals set it, so that all is well."""
    kept: list[float] = []
    sizes: list[int] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        if not kept:
            kept.append(x.max().item() + len(x))
        sizes.append(len(x))
        private.step(each(model(x), y) / kept[0])

    assert train(body=body, steps=2, fixed=False).updates == 2
    assert kept[0] < 15
    assert sizes[:2] == [14, 9]


class Texts(Dataset[Any]):
    """Records with a text."""

    def __init__(self) -> None:
        self._x, self._y = rows(6).tensors

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> Any:
        return {"x": self._x[index], "text": f"{self._x[index].tolist()}"}, self._y[index]


def test_rehearsals_hold_no_text_of_a_record() -> None:
    seen: list[str] = []

    def body(private: Any, model: nn.Module, batch: Any, y: Tensor) -> None:
        seen.extend(batch["text"] if private.is_rehearsal else [])
        private.step(each(model(batch["x"]), y))

    train(body=body, steps=1, data=Texts(), inputs=lambda batch: (batch[0]["x"],))
    assert seen == ["1"] * 23


def test_rehearsals_depend_on_shapes_alone() -> None:
    class Point:
        def __init__(self, x: Tensor) -> None:
            self.x, self.name = x, "point"

    def batch(shift: float) -> Any:
        x = torch.randn(4, 3) + shift
        return [x, {"y": x[:, 0] > 0, "n": x.long()}, x.numpy(), Point(x), ("a", "b", "c", str(shift)), 48]

    one, other = (made_up(batch(shift), 4, 7) for shift in (0.0, 3.0))
    for a, b in ((one[0], other[0]), (one[1]["y"], other[1]["y"]), (one[1]["n"], other[1]["n"])):
        assert len(a) == 7
        assert torch.equal(a, b)
    np.testing.assert_array_equal(one[2], other[2])
    assert torch.equal(one[3].x, other[3].x)
    assert one[4] == other[4] == ("1",) * 7
    assert one[5] == 48


VALUES_OF_RECORDS: dict[str, Callable[[list[float]], Any]] = {
    "lists": lambda values: [[one] for one in values],
    "tuples": lambda values: [(one,) for one in values],
    "dictionaries": lambda values: [{"v": one} for one in values],
    "NumPy numbers": lambda values: [np.int64(one) for one in values],
    "dates": lambda values: [datetime.fromtimestamp(one, tz=UTC) for one in values],
    "an array of strings": lambda values: np.array([str(one) for one in values], dtype="U8"),
    "an array of objects": lambda values: np.array(values, dtype=object),
    "an array of times": lambda values: np.array([int(one) for one in values], dtype="datetime64[s]"),
    "two lists of two": lambda values: [[one, one] for one in values[:2]],
    "a mapping": lambda values: UserDict(v=values),
}


@pytest.mark.parametrize("batch", VALUES_OF_RECORDS.values(), ids=VALUES_OF_RECORDS.keys())
def test_rehearsals_hold_no_value_of_a_record(batch: Callable[[list[float]], Any]) -> None:
    given = batch([5.0, 6.0, 7.0])
    records = len(given) if isinstance(given, (list, np.ndarray)) else 3
    one, other = (made_up(made, records, 7) for made in (batch([5.0, 6.0, 7.0]), batch([8.0, 9.0, 3.0])))
    assert str(one) == str(other)
    assert str(batch([5.0, 6.0, 7.0])) == str(given), "the batch itself stays"


@pytest.mark.parametrize("value", [{5.0, 6.0}, {5.0: 1, 6.0: 1}, bytearray(b"ab"), lambda: 5, object()])
def test_what_cannot_be_made_up_is_refused(value: Any) -> None:
    with pytest.raises(Refused, match=r"(?s)Expected .*batch.*Remedy: have collate_fn return"):
        made_up({"x": torch.ones(2, 3), "extra": value}, 2, 7)


def test_a_pair_of_two_records_is_no_list_of_records() -> None:
    x, y = made_up((torch.ones(2, 3), torch.ones(2)), 2, 7)
    assert x.shape == (7, 3)
    assert y.shape == (7,)


def chosen_now(kept: list[Any], flag: bool) -> Any:
    low, high = discreet.public(0.0), discreet.public(1.0)
    return low if flag else high


def chosen_of_old(kept: list[Any], flag: bool) -> Any:
    kept.append(discreet.public(float(len(kept))))
    return kept[0] if flag else kept[-1]


@pytest.mark.parametrize("choose", [chosen_now, chosen_of_old])
def test_a_choice_between_declared_numbers(choose: Callable[[list[Any], bool], Any]) -> None:
    kept: list[Any] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) * choose(kept, not private.is_rehearsal))

    with pytest.raises(Refused, match="same calls with the same numbers"):
        train(body=body, steps=2)


def test_what_the_loop_writes_to_a_batch_does_not_come_back() -> None:
    """A batch whose losses are made in a new way is given again: a sum of its records in it was each record's own."""
    seen, moved = list[Tensor](), list[bool]()

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        is_late = discreet.public(any(moved))
        if not private.is_rehearsal:
            seen.append(x.clone())
        moved.append(private.step(each(model(x * 2 if is_late else x * 1), y)))
        x.fill_(100.0)

    train(body=body, steps=3)
    assert len(seen) == 4  # one of three steps is given twice
    assert all(float(one.max()) < 10 for one in seen)


def test_a_choice_between_tensors_that_one_line_declared() -> None:
    kept: list[Tensor] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        kept.append(discreet.public(torch.tensor(float(len(kept)))))
        private.step(each(model(x), y) * (kept[-1] if private.is_rehearsal else kept[0]))

    with pytest.raises(Refused, match="losses in which each record stands alone"):
        train(body=body, steps=2)


def test_a_choice_between_modules_that_one_line_declared() -> None:
    kept: list[nn.Module] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        kept.append(discreet.public(copy.deepcopy(model)))
        teacher = kept[-1] if private.is_rehearsal else kept[0]
        private.step(each(model(x) + teacher(x).detach(), y))

    with pytest.raises(Refused, match="losses in which each record stands alone"):
        train(body=body, steps=2)


def test_a_tensor_that_is_detached_in_place() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        scores, others = model(x), model(x)
        if not private.is_rehearsal:
            scores.detach_()
        private.step(each(scores + others, y))

    with pytest.raises(Refused, match="Expected losses"):
        train(body=body, steps=2)


def test_a_size_that_one_record_alone_has() -> None:
    def form(shape: tuple[int, ...], lineage: Any) -> Any:
        return Reading(shape[0]).describe(torch.ones(shape), lambda tensor: Origin(lineage, 0))

    many = form((14, 4), RecordAxis(0))
    assert ProgramComparison((14, 1)).alike(many, form((1, 4), SOLE))
    assert not ProgramComparison((14, 1)).alike(many, form((1, 1), SOLE))


def test_small_numbers_that_are_flushed_by_a_record() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        torch.set_flush_denormal(not private.is_rehearsal)
        private.step(each(model(x), y) * (torch.ones(()) * 1e-30 * 1e-12 * 1e30 * 1e12))

    try:
        with pytest.raises(Refused, match="set_flush_denormal"):
            train(body=body, steps=2)
    finally:
        torch.set_flush_denormal(False)


# Code that runs in the backward pass ---------------------------------------------------------------------------

FLAGS = {"on": False}


class ByLayout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return gradient * 0 if gradient.is_contiguous() == FLAGS["on"] else gradient * 1


class ByCalls(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        ByCalls.calls += 1
        return gradients[0] * (0 if ByCalls.calls > 3 else 1)


class MixesWhatItSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        result = h.sigmoid()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return gradients[0] * result.amax(0)


def with_function(function: Any) -> Body:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        losses = each(function.apply(model(x)), y)
        FLAGS["on"] = not private.is_rehearsal and losses.max().item() > 0
        private.step(losses)

    return body


def test_a_backward_pass_that_branches_on_the_layout() -> None:
    with pytest.raises(Refused, match="same calls with the same numbers"):
        train(body=with_function(ByLayout), steps=2)


class Declares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * discreet.public(0.5)


def test_a_backward_pass_that_declares_a_value() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(Declares.apply(model(x)), y))

    with pytest.raises(Refused, match="public inside a backward pass"):
        train(body=body)


class Keeps(torch.autograd.Function):
    kept: Tensor

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        Keeps.kept = gradients[0]
        return gradients[0]


class Swaps(Keeps):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return Keeps.kept if FLAGS["on"] else gradients[0]


def test_a_backward_pass_that_gives_back_the_gradient_of_another() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        FLAGS["on"] = not private.is_rehearsal
        private.step(each(Keeps.apply(-Swaps.apply(model(x))), y))

    with pytest.raises(Refused, match="same calls with the same numbers"):
        train(body=body, steps=2)


def test_a_backward_pass_that_counts_its_calls() -> None:
    ByCalls.calls = 0
    with pytest.raises(Refused, match="another number than before in"):
        train(body=with_function(ByCalls), steps=4)


@pytest.mark.parametrize("number", [7000, 7000.5])
@pytest.mark.parametrize("in_rehearsals", [False, True])
def test_a_refused_batch_tells_nothing_of_its_records(number: float, in_rehearsals: bool) -> None:
    """Neither a value nor a size, which both are private; those of rehearsals help to find the mistake."""
    sizes: list[int] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        sizes.append(len(x))
        is_meant = len(sizes) == 2 if in_rehearsals else not private.is_rehearsal
        private.step(each(model(x), y) * (number if is_meant else type(number)(1)))

    with pytest.raises(Refused, match="same calls with the same numbers") as refusal:
        train(body=body, steps=2)
    message = str(refusal.value)
    assert "`private.step(each(model(x), y) * (number if" in message  # the line
    assert ("7000" in message) == in_rehearsals
    assert (f"(batches of {sizes[0]} and {sizes[-1]} records)" in message) == in_rehearsals
    assert ("another number than before" in message) != in_rehearsals


def test_a_backward_pass_that_mixes_what_it_saved() -> None:
    with pytest.raises(Refused, match="the backward pass of MixesWhatItSaved"):
        train(body=with_function(MixesWhatItSaved), steps=2)


class SavesItsResult(torch.autograd.Function):
    """Two results, one of them unused, and a saved one that nobody else holds."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        result = h.sigmoid()
        ctx.save_for_backward(result)
        return result, h * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return gradients[0] * result * (1 - result) + gradients[1] * 2


def test_a_backward_pass_of_a_record_alone_is_accepted() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(SavesItsResult.apply(model(x))[0] + 1, y))

    assert train(body=body, fixed=False).updates == 4


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.weight = 1.0

    def forward(self, x: Tensor) -> Tensor:
        def region(h: Tensor) -> Tensor:
            h = self.first(h)
            return torch.tanh(h * 1.0 if self.weight == 1 else h * self.weight) * 2

        hidden: Tensor = checkpoint(region, x, use_reentrant=False)
        return self.head(hidden)


@pytest.mark.parametrize("changes", [False, True])
def test_a_checkpointed_region_that_reads_something_else_when_it_runs_again(changes: bool) -> None:
    torch.manual_seed(0)

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        if changes and not private.is_rehearsal:
            model.weight = 0.0
        private.step(losses)
        model.weight = 1.0

    expected = pytest.raises(Refused, match="checkpointed region") if changes else nullcontext()
    with expected:
        assert train(Checkpointed(), body, steps=2).updates == 2


# Memory ----------------------------------------------------------------------------------------------------------


def by_data(hidden: Tensor, factor: Tensor) -> None:
    hidden.data.mul_(factor)


def by_new_data(hidden: Tensor, factor: Tensor) -> None:
    hidden.data = hidden.detach() * factor


def by_numpy(hidden: Tensor, factor: Tensor) -> None:
    hidden.detach().numpy()[:] *= factor.item()


def by_script(hidden: Tensor, factor: Tensor) -> None:
    SCRIPTED(hidden, factor)


def _scaled(hidden: Tensor, factor: Tensor) -> Tensor:
    hidden.data.mul_(factor)
    return hidden


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    SCRIPTED = torch.jit.script(_scaled)


@pytest.mark.parametrize("late", [False, True], ids=["before the losses", "after the losses"])
@pytest.mark.parametrize("write", [by_data, by_new_data, by_numpy, by_script], ids=lambda write: write.__name__)
def test_memory_that_is_written_to_out_of_sight(write: Any, late: bool) -> None:
    """Autograd reads the hidden values again in the backward pass."""
    torch.manual_seed(0)
    kept: list[Tensor] = []

    def run(own: Any, x: Tensor) -> Tensor:
        kept[:] = [own.first(x).tanh()]
        return own.second(kept[0])

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        if late:
            losses = each(outputs, y)
            write(kept[0], x.abs().max())
        else:
            write(outputs, x.abs().max())
            losses = each(outputs, y)
        private.step(losses)

    with pytest.raises((Refused, RuntimeError), match=r"stand|memory|changed|scripted|inplace"):
        train(Bare(run, first=nn.Linear(6, 6), second=nn.Linear(6, 3)), body, steps=2)


# Around the loop ---------------------------------------------------------------------------------------------------


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Doubling, Dispatching])
def test_modes_of_the_users_own_around_the_loop(mode: Any) -> None:
    with mode(), pytest.raises(Refused, match=f"{mode.__name__}, a mode"):
        train(steps=2)


def test_a_dispatch_mode_inside_the_loop() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        with Dispatching():
            losses = each(model(x), y)
        private.step(losses)

    with pytest.raises(Refused, match="Dispatching, a mode"):
        train(body=body, steps=2)


def by_a_value(x: Tensor) -> Tensor:
    torch.manual_seed(int(x.abs().sum()))
    return torch.randn_like(x)


def by_a_constant(x: Tensor) -> Tensor:
    torch.manual_seed(11)
    return torch.randn_like(x)


def in_a_block(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return torch.randn_like(x)


def by_a_generator(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(11))


@pytest.mark.parametrize(
    "draw", [by_a_value, by_a_constant, in_a_block, by_a_generator], ids=lambda draw: draw.__name__
)
def test_seeds_inside_the_loop(draw: Any) -> None:
    torch.manual_seed(11)

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x + draw(x)), y))

    if draw is in_a_block:
        torch.manual_seed(12)
    with pytest.raises(Refused, match=r"seeded inside the training loop|leave generator= out"):
        train(body=body, steps=3)


def test_a_generator_of_the_users_is_refused() -> None:
    """Its numbers may be known, also if it goes on from batch to batch."""
    generator = torch.Generator().manual_seed(3)

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x + torch.randn(x.shape, generator=generator)), y))

    with pytest.raises(Refused, match="leave generator= out"):
        train(body=body, steps=2)


def test_torchs_own_generator_may_be_given_and_seeded_after_the_step() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        with torch.random.fork_rng():  # an evaluation that leaves the draws of training alone
            torch.rand(3)
        private.step(each(model(x + torch.randn(x.shape, generator=torch.default_generator) + torch.rand(x.shape)), y))
        torch.manual_seed(0)

    assert train(body=body, fixed=False).updates == 4


@pytest.mark.parametrize("in_backward", [False, True], ids=["forward", "backward"])
def test_two_draws_that_share_numbers(in_backward: bool) -> None:
    """Row 3 of the first has numbers of row 2 of the second: the draws of one record follow from another's place."""

    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
            ctx.state = state
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            torch.set_rng_state(ctx.state)
            return gradient * torch.rand(len(gradient), 1), None

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        state = torch.get_rng_state()
        with torch.random.fork_rng():
            first = torch.rand(len(x), 6)
        outputs = model(x + first)
        outputs = Noisy.apply(outputs, state) if in_backward else outputs * torch.rand(len(x), 1)
        private.step(each(outputs, y))

    with pytest.raises(Refused, match="random numbers that no two draws share"):
        train(body=body, steps=2)


def test_one_of_two_tensors_that_one_line_declares() -> None:
    zeros, ones = [discreet.public(torch.full((3,), float(value))) for value in range(2)]

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        chosen = zeros if not private.is_rehearsal and losses.max().item() > 0 else ones
        private.step(losses * chosen.sum())

    with pytest.raises(Refused, match="another tensor than before"):
        train(body=body, steps=2)


def test_tensors_that_are_declared_anew_are_accepted() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        weights = [discreet.public(torch.tensor(np.random.rand(3), dtype=torch.float32)) for _ in range(2)]
        height, width = discreet.public((np.random.randint(3), np.random.randint(3)))
        private.step(each(model(x) * weights[0] + weights[1] * height * width, y))

    assert train(body=body, fixed=False).updates == 4


def test_a_rehearsal_that_fails_says_so() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y - 2))

    with pytest.raises(IndexError) as failed:
        train(body=body, steps=2)
    assert "this batch is a rehearsal" in failed.value.__notes__[0]


def test_a_choice_that_is_new_is_rehearsed() -> None:
    sizes: list[tuple[int, bool]] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        sizes.append((len(x), private.is_rehearsal))
        losses = each(model(x), y)
        private.step(losses * 2 if discreet.public(private.progress.step > 0) else losses)

    assert train(body=body, steps=3).updates == 3
    rehearsed = [(14, True), (9, True)]
    assert sizes == [*rehearsed, (12, False), (12, False), *rehearsed, (12, False), (12, False)]


def test_a_value_that_is_read_for_a_log_is_accepted() -> None:
    """A value that is read before the losses are made, and used for a log alone."""
    log: list[float] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        log.append((outputs.argmax(1) == y).float().mean().item())
        private.step(each(outputs, y))

    assert train(classifier(), body, steps=2).updates == 2


# Hooks on parameters ------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """The weight is used through a tensor of its own, so that its gradient goes through autograd record by record."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.hooks = nn.Parameter(torch.randn(6, 3)), False

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight * 1.0
        if self.hooks:
            weight.register_hook(lambda gradient: gradient * 2)
        return x @ weight


def test_hooks_on_weights() -> None:
    torch.manual_seed(0)
    assert train(Scaled(), steps=2).updates == 2
    model = Scaled()
    model.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(Refused, match="a hook on weight"):
        train(model, steps=2)
    model = Scaled()
    model.hooks = True
    with pytest.raises(Refused, match="register_hook at"):
        train(model, steps=2)


def test_a_hook_on_the_graph_behind_a_mean() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        node = losses.mean().grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        node.register_hook(lambda gradients, _: tuple(None if one is None else one * 2 for one in gradients))
        private.step(losses)

    with pytest.raises(Refused, match="grad_fn at"):
        train(body=body, steps=2)


def test_a_buffer_that_numpy_changes_for_a_moment() -> None:
    model = classifier()
    model.register_buffer("scale", torch.ones(3))

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        outputs, array = model(x), model.scale.numpy()
        array *= -1
        losses = each(outputs * model.scale, y)
        array *= -1
        private.step(losses)

    with pytest.raises(Refused, match="no watched call made"):
        train(model, body, steps=2)


def _scaled(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """By a number of the records."""
    return each(model(x / x.max().item()), y)


def is_a_rehearsal(private: Any) -> Any:
    return private.is_rehearsal


def a_function_made_in_the_loop(private: Any) -> Any:
    return lambda losses: losses


def a_time(private: Any) -> Any:
    return datetime.now(UTC)


def a_generator(private: Any) -> Any:
    return np.random.default_rng(0)


@pytest.mark.parametrize("choose", [is_a_rehearsal, a_function_made_in_the_loop, a_time, a_generator])
def test_a_choice_that_never_comes_for_batch_and_rehearsals_alike_is_refused(choose: Any) -> None:
    """Such declarations are true, but losses would be compared with none: a number of the records moved 3.7 clips."""

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        discreet.public(choose(private))
        private.step(_scaled(model, x, y))

    with pytest.raises(Refused, match="come for a batch and for its rehearsals alike, got others each time"):
        train(body=body, steps=2)


@pytest.mark.parametrize("value", [{"a": 1}, {1, 2}, np.ones(2)], ids=lambda value: type(value).__name__)
def test_what_cannot_be_declared_is_refused_in_words(value: Any) -> None:
    with pytest.raises(Refused, match=r"to declare public, got a (dict|set|ndarray).*one by one"):
        discreet.public(value)


def flips_at_random(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    if discreet.public(random.random() < 0.2):
        x = -x
    private.step(each(model(x), y))


def drops_parts_at_random(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    losses = each(model(x), y)
    for factor in (1.0, 2.0, 3.0):
        if discreet.public(np.random.rand() < np.float64(0.5)):
            losses = losses * factor
    private.step(losses)


def a_function_from_a_list(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    private.step(each(model(discreet.public(random.choice([torch.tanh, torch.sigmoid]))(x)), y))


def drops_one_of_many_for_each_step(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
    if not hasattr(model, "dropped"):
        model.dropped = random.getrandbits(40)
    losses = each(model(x), y)
    if discreet.public(f"{model.dropped:b}").endswith("1"):
        losses = losses * 2
    if private.step(losses):
        model.dropped = random.getrandbits(40)


CHOOSING = [flips_at_random, drops_parts_at_random, a_function_from_a_list, drops_one_of_many_for_each_step]


@pytest.mark.parametrize("body", CHOOSING, ids=lambda body: body.__name__)
def test_random_choices_that_come_again_or_stay_for_a_step_are_accepted(body: Any) -> None:
    random.seed(0)
    np.random.seed(0)
    assert train(body=body, steps=6).progress.step == 6
