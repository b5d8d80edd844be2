"""The language model: its file, its tokens, its adapters, and that gradients belong to records."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.extra import NEEDED

pytest.importorskip("peft", reason=NEEDED)
pytest.importorskip("gguf", reason=NEEDED)

import torch
from small_llama import MERGES, TOKENS, llama, small, write_gguf
from torch import Tensor
from torch.func import functional_call, grad

from discreet.core.check import Refused
from discreet.engine.engine import Engine
from research.reproductions.dicesgd.table_3 import record_losses
from research.tasks.smollm2 import (
    Adapters,
    Heard,
    SmolLM2,
    Tail,
    adapted_past,
    greedy,
    hidden_after,
    read_prompt,
    tokenizer_of,
)

PROMPT = [5, 90, 33, 7, 120, 64, 9]
ROOM = 4


# -- tokens and the file ------------------------------------------------------------------------------------------


def pieces(text: str, size: int = len(TOKENS)) -> list[str]:
    return [TOKENS[number] for number in tokenizer_of(TOKENS, MERGES, size=size).encode(text).ids]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the", ["t", "h", "e"]),  # the joined token has the space before it
        (" the", ["Ġthe"]),
        ("cat at", ["c", "at", "Ġ", "at"]),
        (" 12", ["Ġ", "1", "2"]),
        ("it's", ["i", "t", "'", "s"]),
        ("é", ["Ã", "©"]),
        ("a\n", ["a", "Ċ"]),
        ("", []),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert pieces(text) == tokens


def test_a_smaller_vocabulary_uses_only_its_own_tokens() -> None:
    size = len(TOKENS) - 2  # without "Ġthe" and "at"
    assert pieces(" the cat", size) == ["Ġth", "e", "Ġ", "c", "a", "t"]
    assert max(tokenizer_of(TOKENS, MERGES, size=size).encode(" the cat at the mat").ids) < size


@pytest.mark.parametrize("text", ["", " the  cat,\nat £9.50 the café’s\tend ", "日本語 🙂 _x_ 'll"])
def test_decoding_restores_the_text(text: str) -> None:
    known = tokenizer_of(TOKENS, MERGES, size=len(TOKENS))
    assert known.decode(known.encode(text).ids) == text


def test_text_never_becomes_a_special_token() -> None:
    known = small()
    assert known.end == 2
    assert 2 not in known.answer("<|im_end|>")[:-1]
    assert known.prompt("at").count(known.begin) == 2


def test_text_that_the_vocabulary_does_not_cover_is_refused() -> None:
    """tokenizers drops bytes that have no token; the text would lose them silently."""
    tokens = [token for token in TOKENS if token != "z"]
    known = SmolLM2(llama(), tokenizer_of(tokens, MERGES, size=len(tokens)), Adapters(blocks=1))
    assert known.answer("a, b")[-1] == known.end
    with pytest.raises(Refused, match="text that the vocabulary covers"):
        known.answer("a, z")


def test_the_model_of_a_gguf_file(tmp_path: Path) -> None:
    """The scores of the model that was written, for the part of the vocabulary that is used."""
    model, size = llama(seed=3), len(TOKENS) - 2
    write_gguf(model, tmp_path / "tiny.gguf")
    known = SmolLM2.of_file(tmp_path / "tiny.gguf", adapters=Adapters(blocks=1), vocabulary=size)
    tokens = torch.tensor([PROMPT])
    with torch.no_grad():
        found, truth = known.model(tokens).logits, model(tokens).logits
    assert found.shape[-1] == size
    assert torch.allclose(found, truth[..., :size], atol=1e-5)
    assert known.answer(" the")[0] == TOKENS.index("Ġth")


# -- the tail and its adapters ------------------------------------------------------------------------------------


@pytest.fixture
def known() -> SmolLM2:
    model = small()
    model.reset(seed=0)
    return model


def texts() -> Tensor:
    return torch.randint(3, 250, (3, 5), generator=torch.Generator().manual_seed(1))


def inputs(known: SmolLM2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three records with prompts of one to three tokens in four places; the first text has two tokens."""
    tokens, hidden, pasts = texts(), [], []
    for row in range(3):
        prompt = read_prompt(known, PROMPT[: row + 1])
        pasts.append(adapted_past(known, prompt, ROOM))
        hidden.append(hidden_after(known, prompt, tokens[row : row + 1, :-1]))
    masks = torch.stack([torch.arange(ROOM) >= ROOM - row - 1 for row in range(3)])
    following = tokens[:, 1:].clone()
    following[0, 2:] = -100
    return torch.cat(hidden), torch.stack(pasts), masks, following


def scores_of(known: SmolLM2, tokens: list[int]) -> Tensor:
    """The slow way: the whole sequence through the whole model, without a cache."""
    with torch.no_grad():
        scores: Tensor = known.model(torch.tensor([tokens])).logits[0]
    return scores


def train(known: SmolLM2) -> None:
    """Adapters that change the model."""
    generator = torch.Generator().manual_seed(2)
    for name, parameter in known.model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 4


def test_the_tail_completes_the_public_model(known: SmolLM2) -> None:
    """Prompts of one to three tokens in four places: padding is not seen."""
    hidden, past, prompt, _ = inputs(known)
    found, tokens = Tail(known)(hidden, past, prompt), texts()
    for row in range(3):
        whole = scores_of(known, [*PROMPT[: row + 1], *tokens[row, :-1].tolist()])[row + 1 :]
        assert torch.allclose(found[row], whole, atol=1e-4)
    unmasked = Tail(known)(hidden, past, torch.ones_like(prompt))  # control: padding would be seen
    assert not torch.allclose(unmasked, found, atol=1e-3)


def test_adapters_start_at_zero_and_nothing_else_is_trained(known: SmolLM2) -> None:
    hidden, past, prompt, _ = inputs(known)
    tail = Tail(known)
    before = tail(hidden, past, prompt)
    with known.model.disable_adapter():
        assert torch.equal(tail(hidden, past, prompt), before)
    trained = [name for name, parameter in tail.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 7 * 2
    assert all("lora_A" in name or "lora_B" in name for name in trained)


def test_reset_restores_the_public_model_and_follows_the_seed(known: SmolLM2) -> None:
    hidden, past, prompt, _ = inputs(known)
    tail = Tail(known)
    before = tail(hidden, past, prompt)
    first = [p.detach().clone() for p in tail.parameters() if p.requires_grad]
    train(known)
    assert not torch.allclose(tail(hidden, past, prompt), before, atol=1e-2)
    known.reset(seed=1)
    assert torch.equal(tail(hidden, past, prompt), before)
    assert not all(
        torch.equal(a, b) for a, b in zip(first, [p for p in tail.parameters() if p.requires_grad], strict=True)
    )
    known.reset(seed=0)
    for a, b in zip(first, [p for p in tail.parameters() if p.requires_grad], strict=True):
        assert torch.equal(a, b)


def test_what_the_public_model_reads_does_not_depend_on_the_adapters(known: SmolLM2) -> None:
    before = inputs(known)
    train(known)
    for old, new in zip(before, inputs(known), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("trained", [False, True])
def test_the_engine_gives_each_records_own_gradient(known: SmolLM2, trained: bool) -> None:
    """Norms, single gradients and their sum, against torch.func on one record at a time."""
    hidden, past, prompt, following = inputs(known)
    if trained:
        train(known)
    tail = Tail(known)
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


def test_a_loss_depends_only_on_its_record(known: SmolLM2) -> None:
    """Leaving one record out moves no other loss; padding does not count."""
    hidden, past, prompt, following = inputs(known)
    train(known)
    tail = Tail(known)
    whole = record_losses(tail(hidden, past, prompt), following)
    rest = record_losses(tail(hidden[1:], past[1:], prompt[1:]), following[1:])
    assert torch.allclose(whole[1:], rest, atol=1e-5)
    scores = tail(hidden[:1], past[:1], prompt[:1])[0, :2]
    expected = torch.nn.functional.cross_entropy(scores, following[0, :2])
    assert torch.allclose(whole[0], expected, atol=1e-5)


# -- greedy decoding ----------------------------------------------------------------------------------------------


def test_greedy_decoding_is_the_slow_one(known: SmolLM2) -> None:
    prompts = [PROMPT[:2], PROMPT[:6], PROMPT[2:5]]
    found = greedy(known, Heard.of(known, prompts), most=6)
    for prompt, written in zip(prompts, found, strict=True):
        text = list(prompt)
        while len(text) < len(prompt) + 6 and (not (new := text[len(prompt) :]) or new[-1] != known.end):
            text.append(int(scores_of(known, text)[-1].argmax()))
        expected = text[len(prompt) :]
        assert written == (expected[:-1] if expected[-1] == known.end else expected)


def test_adapters_act_on_what_is_written_and_not_on_the_prompt(known: SmolLM2) -> None:
    """As in training: the prompt's keys and values are the public model's, whenever it is read."""
    train(known)
    late = Heard.of(known, [PROMPT])
    adapted = greedy(known, late, most=6)
    known.reset(seed=0)
    early = Heard.of(known, [PROMPT])
    public = greedy(known, early, most=6)
    train(known)
    assert greedy(known, early, most=6) == adapted
    assert public != adapted


def test_decoding_stops_at_the_end_token(known: SmolLM2) -> None:
    heard = Heard.of(known, [PROMPT[:4]])
    known.end = -1  # never written
    (free,) = greedy(known, heard, most=8)
    assert len(free) == 8
    known.end = free[3]
    (stopped,) = greedy(known, heard, most=8)
    assert stopped == free[: free.index(free[3])]
