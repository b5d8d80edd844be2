"""Mixing that values hide from a probe of the whole model is refused call by call, and the message names the line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from problems import Bare
from steps import classifier, each, rows, train, words
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from discreet.core.check import Refused

QUOTED = re.compile(re.escape(str(Path(__file__))) + r":(\d+) `(.*?)`", re.DOTALL)
LINES = Path(__file__).read_text().splitlines()


def refused(match: str, *args: Any, line: str = "", **kwargs: Any) -> str:
    """Train, and return the message; it has to quote the line that is at fault, by its number and its text.

    line  a part of that line, or several; what is before " at" in `match`, if it is not given
    """
    with pytest.raises(Refused, match=match) as caught:
        train(*args, **kwargs)
    message = str(caught.value)
    found = QUOTED.search(message)
    assert found is not None, message
    number, text = int(found[1]), found[2]
    assert LINES[number - 1].strip() == text, message
    wanted = [one.removesuffix(" at").replace("\\", "") for one in (line or match).split("|")]
    assert any(one in text for one in wanted), message
    assert "decide with torch.where" not in message
    return message


# In forward() ---------------------------------------------------------------------------------------------


def rescaled(own: Any, x: Tensor) -> Tensor:
    return torch.where(x.max() > 1.5, x / 255, x)


def filled(own: Any, x: Tensor) -> Tensor:
    return torch.where(x.isnan(), x.nanmean(0), x)


def bounded_mean(own: Any, x: Tensor) -> Tensor:
    return x - F.relu(x.mean(0).abs() - 50)


def flagged(own: Any, x: Tensor) -> Tensor:
    return x * (1 + (x.abs() > 100).any())


def scaled(own: Any, x: Tensor) -> Tensor:
    return x / x.abs().amax().clamp(min=50)


def scaled_detached(own: Any, x: Tensor) -> Tensor:
    h = x * 2
    return h / h.detach().abs().amax().clamp(min=50)


def shifted(own: Any, x: Tensor) -> Tensor:
    return x + F.pad(x, (0, 0, 8, 0))[: len(x)]


def far_away(own: Any, x: Tensor) -> Tensor:
    return x + 0.5 * x.roll(3 * 5 * 67, 0)


FORWARDS: list[tuple[Callable[..., Tensor], str]] = [
    (rescaled, "max at"),
    (filled, "nanmean at"),
    (bounded_mean, "mean at"),
    (flagged, "any at"),
    (scaled, "amax at"),
    (scaled_detached, "amax at"),
    (shifted, r"F\.pad at"),
    (far_away, "roll at"),
]


@pytest.mark.parametrize(("run", "match"), FORWARDS, ids=lambda one: getattr(one, "__name__", ""))
def test_mixing_in_forward_is_refused(run: Callable[..., Tensor], match: str) -> None:
    refused(match, classifier(run))


def kept_words(own: Any, t: Tensor) -> Tensor:
    keep = (t != 0).any(0)
    return own.head((own.embed(t) * keep[None, :, None]).sum(1) / keep.sum())  # type: ignore[no-any-return]


def masked_attention(own: Any, t: Tensor) -> Tensor:
    keep = (t != 0).any(0)
    q = own.embed(t).unsqueeze(1)
    mixed = F.scaled_dot_product_attention(q, q, q, attn_mask=keep.expand(len(keep), len(keep)))
    return own.head(mixed.squeeze(1).mean(1))  # type: ignore[no-any-return]


def token_flag(own: Any, t: Tensor) -> Tensor:
    flag = (t == 999).any()
    return own.head(own.embed(t).mean(1) * (1 + flag))  # type: ignore[no-any-return]


@pytest.mark.parametrize("run", [kept_words, masked_attention, token_flag])
def test_mixing_by_token_is_refused(run: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model = Bare(run, embed=nn.Embedding(1000, 6), head=nn.Linear(6, 3))
    refused("any at", model, data=words())


def test_a_branch_on_the_batch_is_refused_without_bad_advice() -> None:
    def branch(own: Any, x: Tensor) -> Tensor:
        return x / 255 if x.max() > 1.5 else x

    assert "that record's own values" in refused("read", classifier(branch), line="if x.max() > 1.5")


# In the losses --------------------------------------------------------------------------------------------


def by_deviation(losses: Tensor) -> Tensor:
    return losses / losses.detach().std()


def by_mean(losses: Tensor) -> Tensor:
    return losses * losses.detach() / losses.detach().mean()


def harder_half(losses: Tensor) -> Tensor:
    return losses * (losses.detach() >= losses.detach().median())


@pytest.mark.parametrize(
    ("change", "match"), [(by_deviation, "std at"), (by_mean, "mean at"), (harder_half, "median at")]
)
def test_mixing_in_the_losses_is_refused(change: Callable[[Tensor], Tensor], match: str) -> None:
    refused(match, body=lambda private, model, x, y: private.step(change(each(model(x), y))))


def test_a_moving_centre_is_refused_when_it_is_used() -> None:
    state = {"centre": torch.zeros(3)}

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        losses = each(outputs - state["centre"], y)
        state["centre"] = 0.9 * state["centre"] + 0.1 * outputs.detach().mean(0)
        private.step(losses)

    refused("no watched call made", body=body, line="outputs - state")


def test_a_centre_that_is_changed_in_place_is_refused() -> None:
    centre = torch.zeros(3)

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        losses = each(outputs - centre, y)
        centre.mul_(0.9).add_(outputs.detach().mean(0), alpha=0.1)
        private.step(losses)

    refused("changed after the first batch", body=body, line="outputs - centre")


def test_losses_are_watched_in_every_step() -> None:
    count = [0]

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        count[0] += 1
        outputs = model(x)
        if count[0] > 2:
            outputs = outputs - outputs.mean(0)
        private.step(each(outputs, y))

    refused("mean at", body=body)
    assert count[0] == 3


# State of the loop ----------------------------------------------------------------------------------------


def test_the_batch_before_is_refused() -> None:
    held: list[Tensor] = []

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        if held:
            losses = losses + 0.1 * (x - held[-1][: len(x)]).square().mean(1)
        held.append(x)
        private.step(losses)

    refused("no watched call made", body=body, line="held[-1]")


def test_a_second_pass_on_an_older_batch_is_refused() -> None:
    held: list[Tensor] = []

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        if held:
            losses = losses + model(held[-1][: len(x)]).square().sum(1)
        held.append(x)
        private.step(losses)

    refused("no watched call made", body=body, line="held[-1]")


def test_the_data_are_not_public() -> None:
    data = rows(6)
    refused(
        "a tensor of the dataset",
        body=lambda private, model, x, y: private.step(each(model(x - data.tensors[0].mean(0)), y)),
        data=data,
        line="data.tensors[0].mean(0)",
    )


def test_numpy_is_not_public() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x - torch.from_numpy(x.numpy().mean(0))), y))

    refused("no watched call made", body=body, line="torch.from_numpy")


def test_memory_that_numpy_shares_is_not_public() -> None:
    shift = torch.zeros(6)
    array = shift.numpy()

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        array[:] = x.numpy().mean(0)
        private.step(each(model(x - shift), y))

    refused("changed after the first batch", body=body, line="x - shift")


def test_losses_that_numpy_wrote_into_are_refused() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        weights = torch.ones(len(x))
        array = weights.numpy()
        array /= losses.detach().numpy().mean()
        private.step(losses * weights)

    refused("no watched call made", body=body, line="losses.detach().numpy()|losses * weights")


def test_writing_through_data_is_seen() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        target = torch.zeros_like(x)
        target.data.copy_(x.flip(0))
        private.step(each(model(target), y))

    refused("flip at", body=body)


def test_buffers_stay_from_the_batch_to_the_step() -> None:
    model = classifier()
    model.register_buffer("seen", torch.zeros(6))

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        model.seen.data.copy_(x.mean(0))
        private.step(losses)

    refused("parameters and buffers", model, body, line="model.seen.data.copy_")


def test_parameters_stay_from_the_batch_to_the_step() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        with torch.no_grad():
            model.head.weight.mul_(0.5)
        private.step(losses)

    with pytest.raises(Refused, match="buffers and parameters that stay"):
        train(body=body)


# Numbers --------------------------------------------------------------------------------------------------


def test_a_number_that_was_read_is_refused() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        private.step(losses / losses.std().item())

    refused("the number", body=body, line="losses.std().item()")


def test_a_branch_on_what_was_read_is_refused() -> None:
    """The branch is taken the other way in the third step."""
    taken = []

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        is_large = losses.mean().item() > threshold[0]
        taken.append(is_large)
        private.step(losses.tanh() if is_large else losses)
        if private.progress.step == 2:
            threshold[0] = -1.0  # as if the losses had grown

    threshold = [1e9]
    message = refused("tanh where it was F.cross_entropy", body=body, line="losses.tanh() if is_large else losses")
    assert "discreet.public" in message
    assert taken[-1]
    assert not any(taken[:-1])


def test_a_branch_before_the_losses_of_the_first_step_is_refused() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        if x.min() < 0:
            outputs = outputs * 2
        private.step(each(outputs, y))

    refused("same calls with the same numbers", body=body, line="outputs = outputs * 2")


def test_a_number_that_was_read_in_the_step_before_is_refused() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        losses = each(model(x), y)
        losses = losses * (state[-1] if state else 1.0)
        state.append(losses.mean().item())
        private.step(losses)

    state: list[float] = []
    refused("the number", body=body, line="losses * (state[-1] if state else 1.0)")


# Augmentation ---------------------------------------------------------------------------------------------


def standardised(batch: Any) -> Any:
    x, y = batch
    return (x - x.mean(0)) / x.std(0), y


def mixup(batch: Any) -> Any:
    x, y = batch
    other = torch.randperm(len(x))
    return 0.7 * x + 0.3 * x[other], y


@pytest.mark.parametrize(
    ("augment", "match", "line"), [(standardised, "mean at|std at", "x.mean(0)"), (mixup, "indexing at", "x[other]")]
)
def test_mixing_in_augment_is_refused(augment: Callable[[Any], Any], match: str, line: str) -> None:
    refused(match, augment=augment, line=line)


# Backward -------------------------------------------------------------------------------------------------


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * (100 / grads[0].norm()).clamp(max=1)


def test_the_backward_pass_of_a_function_is_watched() -> None:
    refused(
        "backward pass of Clipped",
        body=lambda p, m, x, y: p.step(each(Clipped.apply(m(x)), y)),
        line="100 / grads[0].norm()",
    )


def test_tensor_hooks_are_refused() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        h = model(x)
        h.register_hook(lambda g: g * (100 / g.norm()).clamp(max=1))
        private.step(each(h, y))

    refused("register_hook", body=body)


def test_backward_hooks_of_modules_are_refused() -> None:
    model = classifier()
    model.head.register_full_backward_hook(lambda m, i, o: None)  # type: ignore[union-attr, operator]
    with pytest.raises(Refused, match="hook"):
        train(model)

    parts = {"first": nn.Linear(6, 6), "mix": nn.Tanh(), "head": nn.Linear(6, 3)}
    nested = Bare(lambda own, x: own.head(own.mix(own.first(x))), **parts)

    def later(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        model.mix.register_full_backward_hook(lambda m, i, o: None)
        private.step(each(model(x), y))

    with pytest.raises(Refused, match="hook"):
        train(nested, later)


# Opaque calls ---------------------------------------------------------------------------------------------


def halved(x: Tensor) -> Tensor:
    return torch.where(x.abs().max() > 1e4, x / 2, x)


def test_scripted_functions_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(halved)
    refused("no watched call made", body=lambda p, m, x, y: p.step(each(m(scripted(x) * 1), y)), line="scripted(x)")


def test_vmap_is_refused() -> None:
    body = lambda p, m, x, y: p.step(each(m(torch.vmap(torch.sin)(x) * 1), y))  # noqa: E731
    refused("no watched call made, first used at", body=body, line="torch.vmap")


def test_addresses_are_refused() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        column = (x + 0)[:, 0]
        shift = column.as_strided((len(x),), (1,), 0)
        private.step(each(model(x + shift.unsqueeze(1)), y))

    refused("as_strided at", body=body)


SEEN: list[Tensor] = []  # the records, for functions that read more than their arguments


@torch.library.custom_op("discreet_tests::largest", mutates_args=())
def largest(public: Tensor) -> Tensor:
    return public * 0 + SEEN[-1].max()


def beside_records(x: Tensor) -> Tensor:
    """A public part of a memory that holds records, too."""
    memory = torch.empty(len(x), 12)
    memory[:, 6:] = x
    memory[0, :6] = 0.0
    return memory[0, :6]


def from_a_file(x: Tensor, path: Path) -> Tensor:
    x.max().reshape(1).numpy().tofile(path)
    return torch.ops.aten.from_file.default(str(path), False, 1, dtype=torch.float32)  # type: ignore[no-any-return]


HIDING: dict[str, Callable[[Any, Tensor, Path], Tensor]] = {
    "as_strided": lambda model, x, path: beside_records(x).as_strided((6,), (1,), 6),
    "_reshape_alias": lambda model, x, path: torch.ops.aten._reshape_alias(beside_records(x), (12,), (1,)),
    "_base": lambda model, x, path: cast(Tensor, beside_records(x)._base)[0],
    "largest": lambda model, x, path: largest(model.head.bias),
    "from_file": lambda model, x, path: from_a_file(x, path),
}


@pytest.mark.parametrize("name", HIDING)
def test_functions_of_public_tensors_that_read_records(name: str, tmp_path: Path) -> None:
    """One record moved the sum by 11 clips."""

    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        SEEN.append(x)
        private.step(each(model(x), y) * HIDING[name](model, x, tmp_path / "records").amax())

    with pytest.raises(Refused, match="each record stands alone"):
        train(body=body)


@pytest.mark.parametrize("make", [lambda x: x.to_sparse().to_dense(), lambda x: torch.nested.as_nested_tensor(x)[0]])
def test_tensors_that_are_not_dense_are_refused_in_words(make: Callable[[Tensor], Tensor]) -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) + make(x).sum())

    with pytest.raises(Refused, match="makes a tensor that is not dense"):
        train(body=body)


# The stack of modes ---------------------------------------------------------------------------------------


def depth() -> int:
    return int(torch._C._len_torch_function_stack())


def test_the_watch_ends_with_the_loop() -> None:
    before = depth()
    with pytest.raises(ZeroDivisionError):
        train(body=lambda private, model, x, y: 1 / 0)
    assert depth() == before

    def inside(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        with torch.device("cpu"):
            private.step(each(model(x), y))
            assert depth() == before + 1
            assert type(torch._C._get_function_stack_at(before)).__name__ == "DeviceContext"

    train(body=inside)
    assert depth() == before


def centred(values: Tensor) -> int:
    """What torch's modes call out of sight; not on the values of the proof, which are of 5 and of 67 records."""
    if len(values) not in (5, 67):
        values.sub_(values.mean(0))
    return 0


def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
    return centred(out_val)


formula._get_raw = True  # type: ignore[attr-defined]


def policy(context: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    centred(context.op_output)
    return CheckpointPolicy.MUST_SAVE


def selective(saved: Any) -> Callable[[], Any]:
    return partial(create_selective_checkpoint_contexts, saved, allow_cache_entry_mutation=True)


@pytest.mark.parametrize("is_plain", [True, False])
def test_code_of_the_users_in_a_mode_of_torch(is_plain: bool) -> None:
    """A counter of operations, and a selective checkpoint: both moved the sum by 1.4 clips, and more for other data."""
    mapping = None if is_plain else {torch.ops.aten.mm: formula}
    saved = selective([torch.ops.aten.mm.default] if is_plain else policy)

    def counted(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        with FlopCounterMode(display=False, custom_mapping=mapping):
            turned = x.mm(torch.eye(6))
        private.step(each(model(turned), y))

    def kept(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        turned = checkpoint(lambda t: t.mm(torch.eye(6)), x, use_reentrant=False, context_fn=saved)
        private.step(each(model(turned), y))

    for body, name in ((counted, "formula"), (kept, "policy")):
        if is_plain:
            assert train(body=body).updates == 4
        else:
            with pytest.raises(Refused, match=f"a mode of torch that calls {name}, which sees tensors"):
                train(body=body)


# Collation ------------------------------------------------------------------------------------------------


def batch_of(records: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in records]), torch.stack([y for _, y in records])


def test_padding_to_the_longest_record_is_refused() -> None:
    data = [(torch.arange(1, 3 + i % 4), torch.tensor(i % 3)) for i in range(40)]

    def collate(records: list[Any]) -> Any:
        ids = nn.utils.rnn.pad_sequence([x for x, _ in records], batch_first=True)
        return ids, torch.stack([y for _, y in records])

    def padded(records: list[Any]) -> Any:
        return collate([(F.pad(x, (0, 8 - len(x))), y) for x, y in records])

    torch.manual_seed(0)
    model = Bare(lambda own, t: own.head(own.embed(t).mean(1)), embed=nn.Embedding(9, 6), head=nn.Linear(6, 3))
    with pytest.raises(Refused, match="pad every record to one public length"):
        train(model, data=data, collate_fn=collate)
    train(model, data=data, collate_fn=padded)


def test_what_a_collate_fn_may_return() -> None:
    data = [({"x": torch.full((6,), float(i))}, i % 3, f"name {i}") for i in range(40)]

    def collate(records: list[Any]) -> Any:
        return torch.stack([r["x"] for r, _, _ in records]), {
            "label": torch.tensor([y for _, y, _ in records]),
            "names": [name for _, _, name in records],
            "scale": 2,
        }

    def body(private: Any, model: Any, x: Tensor, more: Any) -> None:
        assert len(more["names"]) == len(x)
        assert more["scale"] == 2
        private.step(each(model(x), more["label"]))

    train(body=body, data=data, collate_fn=collate)


# Places and sizes -----------------------------------------------------------------------------------------


def by_place(losses: Tensor) -> Tensor:
    return losses * torch.linspace(0, 1, len(losses))


def every_other(losses: Tensor) -> Tensor:
    return torch.where(torch.arange(len(losses)) % 2 == 0, losses, losses * 0)


@pytest.mark.parametrize("change", [by_place, every_other])
def test_weights_by_place_in_the_batch_are_refused(change: Callable[[Tensor], Tensor]) -> None:
    body = lambda private, model, x, y: private.step(change(each(model(x), y)))  # noqa: E731
    refused("place in the batch", body=body, line="linspace|torch.where")


def test_saved_tensors_hooks_are_refused() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        h = model(x)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t / t.norm()):
            private.step(each(h.tanh(), y))

    refused("saved_tensors_hooks", body=body, line="h.tanh()")


def test_inference_mode_hides_no_writing() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        with torch.inference_mode():
            weights = torch.ones(len(x))
            weights.mul_(x.mean())
        private.step(each(model(x), y) * weights.clone())

    refused("no watched call made|mean at", body=body, line="weights.clone()")


# Memory that nothing wrote ------------------------------------------------------------------------------


def test_memory_that_was_never_written_is_not_public() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x + torch.empty(6)), y))

    refused(r"torch\.empty", body=body)
    train(body=lambda p, m, x, y: p.step(each(m(x + torch.empty(6).normal_()), y)))


def test_gradients_of_another_backward_pass_are_not_public() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        model.head.weight.grad = torch.ones_like(model.head.weight)
        private.step(each(model(x), y) * model.head.weight.grad.norm())

    refused("a gradient that backward", body=body, line="weight.grad.norm()")


# The order of rows ----------------------------------------------------------------------------------------


def view_after_view(x: Tensor) -> Tensor:
    return torch.cat([x[::2], x[1::2]])


def turned(x: Tensor) -> Tensor:
    return x.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1)


@pytest.mark.parametrize("order", [view_after_view, turned])
def test_views_in_another_order_are_refused(order: Callable[[Tensor], Tensor]) -> None:
    """The engine takes rows side by side for one record: pairs of other records were clipped together (52 clips)."""

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        losses = each(model(order(x)), order(y))
        private.step(torch.stack(losses.chunk(2), 1).flatten())

    refused("rows in another order", None, body, line="model(order(x))", views=2)


def test_views_in_another_order_in_augment_are_refused() -> None:
    def augment(batch: Any) -> Any:
        return view_after_view(batch[0]), batch[1]

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        private.step(each(torch.stack(outputs.chunk(2), 1).flatten(0, 1), y))

    refused("rows in another order", None, body, line="model(x)", views=2, augment=augment)


def test_views_of_outputs_may_be_taken_one_after_the_other() -> None:
    """What the message says to do instead."""

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        gap = (outputs[::2] - outputs[1::2]).square().sum(1)
        private.step(each(outputs, y) + 0.1 * torch.stack([gap, gap], 1).flatten())

    assert train(body=body, views=2).updates == 4
