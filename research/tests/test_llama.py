"""The Llama: caches, prompts and padding change nothing; adapters begin as nothing; gradients belong to records."""

from __future__ import annotations

import pytest
import torch
from small_llama import BLOCKS, speaker
from torch import Tensor
from torch.func import functional_call, grad

from discreet.engine.engine import Engine
from research.reproductions.dice_language import record_losses
from research.tasks.llama import Heard, Llama, Tail, greedy, stacked

TOKENS = [5, 90, 33, 7, 120, 64, 9]


@pytest.fixture(scope="module")
def model() -> Llama:
    return speaker().model


def scores_of(model: Llama, tokens: list[int]) -> Tensor:
    """The slow way: the whole sequence at once, no prompt, no cache."""
    past = [(torch.zeros(1, 2, 0, 4), torch.zeros(1, 2, 0, 4))] * BLOCKS
    hidden, _ = model.advance(torch.tensor([tokens]), past, torch.ones(1, 0, dtype=torch.bool), first=0)
    return torch.nn.functional.linear(model.norm(hidden), model.table.weight)


@pytest.mark.parametrize("asked", [1, 3, 6])
def test_a_prompt_and_then_the_rest_is_the_whole(model: Llama, asked: int) -> None:
    seen = torch.ones(1, asked, dtype=torch.bool)
    hidden, _ = model.advance(torch.tensor([TOKENS[asked:]]), model.prompt(TOKENS[:asked]), seen, first=0)
    found = torch.nn.functional.linear(model.norm(hidden), model.table.weight)
    assert torch.allclose(found, scores_of(model, TOKENS)[:, asked:], atol=1e-4)


def test_no_token_sees_a_later_one(model: Llama) -> None:
    changed = [*TOKENS[:-1], 200]
    one, other = scores_of(model, TOKENS), scores_of(model, changed)
    assert torch.equal(one[:, :-1], other[:, :-1])
    assert not torch.allclose(one[:, -1], other[:, -1], atol=1e-2)


def test_the_order_of_tokens_matters(model: Llama) -> None:
    swapped = [TOKENS[1], TOKENS[0], *TOKENS[2:]]
    assert not torch.allclose(scores_of(model, TOKENS)[:, -1], scores_of(model, swapped)[:, -1], atol=1e-3)


def inputs(model: Llama, blocks: int, rows: int = 3, new: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Records with prompts of different lengths: hidden values, past, mask and next tokens."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 250, (rows, new + 1), generator=generator)
    split, room = BLOCKS - blocks, rows + 1
    hidden, pasts, masks = [], [], []
    for row in range(rows):
        asked = TOKENS[: row + 1]
        past = model.prompt(asked)
        seen = torch.ones(1, len(asked), dtype=torch.bool)
        hidden.append(model.advance(tokens[row : row + 1, :-1], past[:split], seen, first=0)[0])
        packed = [stacked([one], room) for one in past[split:]]
        pasts.append(torch.stack([torch.cat(one[:2]) for one in packed]))
        masks.append(packed[0][2][0])
    following = tokens[:, 1:].clone()
    following[0, 2:] = -100
    return torch.cat(hidden), torch.stack(pasts), torch.stack(masks), following


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_tail_ends_what_the_model_began(model: Llama, blocks: int) -> None:
    """Prompts of one to three tokens in four places: padding is not seen."""
    hidden, past, prompt, _ = inputs(model, blocks)
    found = model.tail(blocks, longest=4)(hidden, past, prompt)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 250, (3, 5), generator=generator)
    for row in range(3):
        whole = scores_of(model, [*TOKENS[: row + 1], *tokens[row, :-1].tolist()])[0, row + 1 :]
        assert torch.allclose(found[row], whole, atol=1e-4)


def adapted(model: Llama, *, trained: bool = False) -> Tail:
    tail = model.tail(2, longest=8)
    tail.adapt(rank=2, strength=1.0, seed=0)
    if trained:
        generator = torch.Generator().manual_seed(2)
        for name, parameter in tail.named_parameters():
            if name.endswith("wide.weight"):
                parameter.data = torch.randn(parameter.shape, generator=generator) / 4
    return tail


def test_adapters_begin_as_nothing_and_are_all_that_is_trained(model: Llama) -> None:
    hidden, past, prompt, _ = inputs(model, 2)
    tail = adapted(model)
    assert torch.equal(tail(hidden, past, prompt), model.tail(2, longest=8)(hidden, past, prompt))
    trained = {name for name, parameter in tail.named_parameters() if parameter.requires_grad}
    assert len(trained) == 2 * 7 * 2
    assert all(name.rsplit(".", 2)[1] in ("thin", "wide") for name in trained)


def test_adapters_leave_the_public_model_alone(model: Llama) -> None:
    hidden, past, prompt, _ = inputs(model, 2)
    before = model.tail(2, longest=8)(hidden, past, prompt)
    assert not torch.allclose(adapted(model, trained=True)(hidden, past, prompt), before, atol=1e-2)
    assert torch.equal(model.tail(2, longest=8)(hidden, past, prompt), before)


@pytest.mark.parametrize("trained", [False, True])
def test_the_engine_gives_each_records_own_gradient(model: Llama, trained: bool) -> None:
    """Norms, single gradients and their sum, against torch.func on one record at a time."""
    hidden, past, prompt, following = inputs(model, 2)
    tail = adapted(model, trained=trained)
    free = {name: p.detach() for name, p in tail.named_parameters() if p.requires_grad}

    def loss(weights: dict[str, Tensor], *one: Tensor) -> Tensor:
        scores = functional_call(tail, weights, tuple(part[None] for part in one[:3]))
        return record_losses(scores, one[3][None])[0]

    each = [grad(loss)(free, *(part[row] for part in (hidden, past, prompt, following))) for row in range(3)]
    truth = torch.stack([torch.cat([one[name].flatten() for name in free]) for one in each])
    engine = Engine(tail)
    try:
        engine.begin(3)
        engine.backward(record_losses(tail(hidden, past, prompt), following))
        assert torch.allclose(engine.per_sample(0, 3), truth, atol=1e-5)
        assert torch.allclose(engine.norms()[0].float(), truth.norm(dim=1), rtol=1e-3)
        total = engine.zeros()
        engine.add_weighted(torch.tensor([[[1.0, 0.0, 2.0]]]), total)  # without the second record
        assert torch.allclose(total[0], truth[0] + 2 * truth[2], atol=1e-5)
    finally:
        engine.close()


def test_a_loss_is_its_records_own(model: Llama) -> None:
    """Leaving one record out, or changing it, moves no other loss; a mean over the batch would."""
    hidden, past, prompt, following = inputs(model, 2)
    tail = adapted(model, trained=True)
    whole = record_losses(tail(hidden, past, prompt), following)
    rest = record_losses(tail(hidden[1:], past[1:], prompt[1:]), following[1:])
    assert torch.allclose(whole[1:], rest, atol=1e-5)
    scores = tail(hidden[:1], past[:1], prompt[:1])[0, :2]  # two tokens count, padding does not
    expected = torch.nn.functional.cross_entropy(scores, following[0, :2])
    assert torch.allclose(whole[0], expected, atol=1e-5)


def test_greedy_decoding_is_the_slow_one(model: Llama) -> None:
    prompts = [TOKENS[:2], TOKENS[:6], TOKENS[2:5]]
    found = greedy(model, model.tail(2, longest=8), Heard.of(model, prompts), most=6, end=2)
    for prompt, written in zip(prompts, found, strict=True):
        text = list(prompt)
        while len(text) < len(prompt) + 6 and (not (new := text[len(prompt) :]) or new[-1] != 2):
            text.append(int(scores_of(model, text)[0, -1].argmax()))
        expected = text[len(prompt) :]
        assert written == (expected[:-1] if expected[-1] == 2 else expected)


def test_decoding_stops_at_the_end(model: Llama) -> None:
    heard = Heard.of(model, [TOKENS[:4]])
    tail = model.tail(2, longest=8)
    (free,) = greedy(model, tail, heard, most=8, end=-1)
    (stopped,) = greedy(model, tail, heard, most=8, end=free[3])
    assert stopped == free[: free.index(free[3])]
