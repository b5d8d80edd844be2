"""A small Llama, its last blocks with low-rank adapters, and greedy decoding.

Positions are counted from the end of the prompt: attention sees differences of positions only, so that what the
model makes of a prompt does not depend on how much of it there is room for.

Index legend: N records, T new tokens, P tokens of the prompt, W width, H heads, D numbers of a head.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Past = tuple[Tensor, Tensor]
"""Keys and values [N, H, P, D] of tokens that came before, in one block."""

PROJECTIONS: Final = ("query", "key", "value", "out", "gate", "rise", "fall")


@final
@dataclass(frozen=True, kw_only=True)
class Shape:
    """The public numbers of a Llama."""

    vocabulary: int
    width: int
    inner: int
    blocks: int
    heads: int
    shared_heads: int
    turn: float
    eps: float

    @property
    def head(self) -> int:
        return self.width // self.heads


def rotation(positions_T: Tensor, shape: Shape) -> Tensor:
    """cos and sin of every position's angles, [2, T, D/2]."""
    pairs = torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head
    angles = positions_T.double()[:, None] * shape.turn**-pairs
    return torch.stack((angles.cos(), angles.sin())).float()


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Every pair of neighbours, as a point of the plane, turned by its position's angle."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = turn[0], turn[1]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


@final
class Block(nn.Module):
    """Attention over what came before and itself, then a gated perceptron, each beside a shortcut."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        shared = shape.shared_heads * shape.head
        self.shape = shape
        self.attention_norm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.query = _linear(shape.width, shape.width)
        self.key = _linear(shape.width, shared)
        self.value = _linear(shape.width, shared)
        self.out = _linear(shape.width, shape.width)
        self.inner_norm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.gate = _linear(shape.width, shape.inner)
        self.rise = _linear(shape.width, shape.inner)
        self.fall = _linear(shape.inner, shape.width)

    def forward(
        self, x_NTW: Tensor, turn: Tensor, seen: Tensor | None, past: Past | None
    ) -> tuple[Tensor, Past]:
        """The new hidden values, and keys and values of all tokens so far; seen: [N or 1, 1, T, P + T]."""
        x = self.attention_norm(x_NTW)
        query = _turned(self._heads(self.query(x)), turn)
        key, value = _turned(self._heads(self.key(x)), turn), self._heads(self.value(x))
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        each = self.shape.heads // self.shape.shared_heads
        mixed = F.scaled_dot_product_attention(
            query, key.repeat_interleave(each, 1), value.repeat_interleave(each, 1), attn_mask=seen
        )
        x_NTW = x_NTW + self.out(mixed.transpose(1, 2).flatten(2))
        x = self.inner_norm(x_NTW)
        return x_NTW + self.fall(F.silu(self.gate(x)) * self.rise(x)), (key, value)

    def _heads(self, x: Tensor) -> Tensor:
        split: Tensor = x.unflatten(2, (-1, self.shape.head)).transpose(1, 2)
        return split


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


@final
class Adapted(nn.Module):
    """A frozen linear layer plus a trainable product of two thin ones (LoRA); at first the layer itself."""

    def __init__(self, layer: nn.Linear, rank: int, strength: float, generator: torch.Generator) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.thin = _linear(layer.in_features, rank)
        self.wide = _linear(rank, layer.out_features)
        self.strength = strength
        with torch.no_grad():
            drawn = torch.randn(self.thin.weight.shape, generator=generator)
            self.thin.weight.copy_(drawn / layer.in_features**0.5)
            self.wide.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.layer(x) + self.strength * self.wide(self.thin(x))
        return adapted


@final
class Tail(nn.Module):
    """The last blocks, the norm and the scores over the vocabulary; a record is one row of every input."""

    turn: Tensor

    def __init__(self, blocks: Sequence[Block], norm: nn.RMSNorm, table: nn.Embedding, longest: int) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), norm
        self.scores = _linear(table.embedding_dim, table.num_embeddings)
        self.scores.weight = table.weight  # tied
        self.requires_grad_(False)
        turn = rotation(torch.arange(longest), blocks[0].shape)
        self.register_buffer("turn", turn, persistent=False)

    def adapt(self, *, rank: int, strength: float, seed: int) -> None:
        """Put an adapter around every linear layer of the blocks: all that is trained."""
        generator = torch.Generator().manual_seed(seed)
        for block in self.blocks:
            for name in PROJECTIONS:
                setattr(block, name, Adapted(getattr(block, name), rank, strength, generator))

    def forward(self, hidden_NTW: Tensor, past: Tensor, prompt_NP: Tensor) -> Tensor:
        """Scores [N, T, vocabulary].

        past    keys and values of the prompt from the frozen blocks, [N, block, 2, H, P, D]
        prompt  which of its P places hold a token
        """
        held = [(past[:, place, 0], past[:, place, 1]) for place in range(len(self.blocks))]
        return self.advance(hidden_NTW, held, prompt_NP, first=0)[0]

    def advance(
        self, hidden_NTW: Tensor, past: Sequence[Past], prompt_NP: Tensor, *, first: int
    ) -> tuple[Tensor, list[Past]]:
        """Scores of tokens from position `first` on, and keys and values to go on with."""
        new = hidden_NTW.shape[1]
        turn, seen = self.turn[:, first : first + new], visible(prompt_NP, first, new)
        held = []
        for block, before in zip(self.blocks, past, strict=True):
            hidden_NTW, kept = block(hidden_NTW, turn, seen, before)
            held.append(kept)
        scores: Tensor = self.scores(self.norm(hidden_NTW))
        return scores, held


def visible(prompt_NP: Tensor, first: int, new: int) -> Tensor:
    """[N, 1, new, P + first + new]: every new token sees the prompt, all before it and itself."""
    ones = torch.ones(new, first + new, dtype=torch.bool, device=prompt_NP.device)
    rows = len(prompt_NP)
    after = ones.tril(first).expand(rows, -1, -1)
    return torch.cat((prompt_NP[:, None].expand(-1, new, -1), after), 2)[:, None]


@final
class Llama(nn.Module):
    """The frozen model, from tokens to hidden values."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.table = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.requires_grad_(False)

    def tail(self, blocks: int, longest: int) -> Tail:
        """A copy of the last `blocks` blocks, with this model's norm and table, for up to `longest` tokens."""
        chosen = [block for block in self.blocks[len(self.blocks) - blocks :] if isinstance(block, Block)]
        return Tail(copy.deepcopy(chosen), self.norm, self.table, longest)

    @torch.no_grad()
    def prompt(self, tokens: Sequence[int]) -> list[Past]:
        """Keys and values of one prompt, [1, H, P, D] in each block; its last token is at position -1."""
        numbers = torch.tensor([tokens])
        turn = rotation(torch.arange(-len(tokens), 0), self.shape)
        seen = visible(torch.ones(1, 0, dtype=torch.bool), 0, len(tokens))
        return self._through(self.table(numbers), turn, seen, [None] * len(self.blocks))[1]

    @torch.no_grad()
    def advance(
        self, tokens_NT: Tensor, past: Sequence[Past], prompt_NP: Tensor, *, first: int
    ) -> tuple[Tensor, list[Past]]:
        """Hidden values after the blocks that `past` is given for, of tokens from position `first` on."""
        new = tokens_NT.shape[1]
        turn = rotation(torch.arange(first, first + new), self.shape)
        return self._through(self.table(tokens_NT), turn, visible(prompt_NP, first, new), past)

    def _through(
        self, x_NTW: Tensor, turn: Tensor, seen: Tensor, past: Sequence[Past | None]
    ) -> tuple[Tensor, list[Past]]:
        held = []
        for place, before in enumerate(past):
            x_NTW, kept = self.blocks[place](x_NTW, turn, seen, before)
            held.append(kept)
        return x_NTW, held


def stacked(pasts: Sequence[Past], room: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values [N, H, P, D] and which places hold a token [N, P], of prompts [1, H, p, D] set to the right."""
    short = [room - keys.shape[2] for keys, _ in pasts]
    keys, values = (
        torch.cat([F.pad(past[part], (0, 0, left, 0)) for past, left in zip(pasts, short, strict=True)])
        for part in (0, 1)
    )
    return keys, values, torch.arange(room) >= torch.tensor(short)[:, None]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Heard:
    """Prompts after the frozen model, all but their last token: keys and values of every block.

    prompt [N, P]: which places hold a token; last [N, 1]: the token that is left
    """

    past: tuple[Past, ...]
    prompt: Tensor
    last: Tensor

    @staticmethod
    def of(model: Llama, prompts: Sequence[Sequence[int]]) -> Heard:
        whole = [model.prompt(tokens[:-1]) for tokens in prompts]
        room = max(map(len, prompts)) - 1
        packed = [stacked(block, room) for block in zip(*whole, strict=True)]
        return Heard(
            past=tuple((keys, values) for keys, values, _ in packed),
            prompt=packed[0][2],
            last=torch.tensor([tokens[-1:] for tokens in prompts]),
        )


@torch.no_grad()
def greedy(model: Llama, tail: Tail, heard: Heard, *, most: int, end: int) -> list[list[int]]:
    """What follows each prompt: the likeliest token each time, until `end` or `most` of them.

    As in training, the blocks of the tail act on what is written, not on the prompt.
    """
    split = len(model.blocks) - len(tail.blocks)
    lower, upper = list(heard.past[:split]), list(heard.past[split:])
    newest = heard.last
    written: list[Tensor] = []
    going = torch.ones(len(newest), dtype=torch.bool)
    while len(written) < most and bool(going.any()):
        first = len(written)
        hidden, lower = model.advance(newest, lower, heard.prompt, first=first)
        scores, upper = tail.advance(hidden, upper, heard.prompt, first=first)
        newest = scores[:, -1:].argmax(2)
        going &= newest[:, 0] != end
        written.append(newest)
    rows = torch.cat(written, 1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]
