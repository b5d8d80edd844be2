"""Models that the engine must get right: a name, the model, and inputs for n records.

Every item of the supported list is here, with the traps of function-level interception: which axis is the
record, parameters that are derived, shared, spread, sliced or hidden in containers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from discreet.data.models import build

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Problem:
    """A model and its inputs.

    by_func  whether torch.func can differentiate it record by record; if not, autograd does, loss by loss
    rounds   how many times more it rounds than a single layer (deep float32 models)
    """

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    by_func: bool = True
    rounds: float = 1.0

    def __str__(self) -> str:
        return self.name


class Bare(nn.Module):
    """A forward pass written as a function of the module and its inputs."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * torch.randn(shape))


def floats(*shape: int) -> Callable[[int], Inputs]:
    return lambda n: ((torch.randn(n, *shape),), {})


def tokens(length: int, vocabulary: int = 10) -> Callable[[int], Inputs]:
    return lambda n: ((torch.randint(0, vocabulary, (n, length)),), {})


def pairs(first: tuple[int, ...], second: tuple[int, ...]) -> Callable[[int], Inputs]:
    return lambda n: ((torch.randn(n, *first), torch.randn(n, *second)), {})


def outputs_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts: Iterable[Any] = result.values() if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in outputs_of(part)]


def losses_of(result: Any) -> Tensor:
    """One smooth number per record, in which every output entry counts differently."""
    total: Any = 0
    for tensor in outputs_of(result):
        flat = tensor.reshape(tensor.shape[0], -1)
        weights = torch.linspace(0.7, 1.9, flat.shape[1], dtype=flat.dtype)
        total = total + (weights * (1.3 * flat).sin()).sum(1)
    return total  # type: ignore[no-any-return]


# Transformers -----------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Self-attention and a perceptron, each after a norm."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, d))
        inner: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + inner


class Gpt(nn.Module):
    """Pre-norm, learned positions, the head tied to the embedding."""

    def __init__(self, *, by_ids: bool, width: int = 8, length: int = 6, vocabulary: int = 10) -> None:
        super().__init__()
        self.by_ids = by_ids
        self.embed = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length + 2, width)
        self.blocks = nn.ModuleList(Block(width, 2, causal=True) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        places = self.places(torch.arange(t).unsqueeze(0)) if self.by_ids else self.places.weight[:t]
        x = self.embed(ids) + places
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


class Bert(nn.Module):
    """Post-norm encoder with segments, a padding mask, and a pooled first token."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(10, width, padding_idx=0)
        self.places, self.segments = nn.Embedding(8, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        places = self.places(torch.arange(ids.shape[1]).expand_as(ids))
        x = self.norm(self.words(ids) + places + self.segments(segments))
        hidden = (ids == 0) & (torch.arange(ids.shape[1]) > 0)  # the first place is always seen
        x = self.encoder(x, src_key_padding_mask=hidden)
        scores: Tensor = self.head(torch.tanh(self.pool(x[:, 0])))
        return scores


class Vit(nn.Module):
    """Patches by a convolution, a class token, learned positions."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token, self.places = parameter(1, 1, width), parameter(1, 5, width)
        self.blocks = nn.Sequential(*(Block(width, 2, causal=False) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        scores: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return scores


class Lora(nn.Module):
    """A frozen layer with a trained update of low rank."""

    def __init__(self, inside: int, outside: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside).requires_grad_(False)
        self.down, self.up = parameter(rank, inside), parameter(outside, rank)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + (x @ self.down.t()) @ self.up.t() * 0.5
        return out


# Recurrent --------------------------------------------------------------------------------------------------


def recurrent(kind: type[nn.RNNBase], **settings: Any) -> Callable[[], nn.Module]:
    return lambda: Bare(lambda own, x: own.net(x)[0], net=kind(4, 5, **{"batch_first": True, **settings}))


def time_major(own: Bare, x: Tensor) -> Tensor:
    output: Tensor = own.net(x.transpose(0, 1))[0]
    return output.transpose(0, 1)


def time_major_layer(own: Bare, x: Tensor) -> Tensor:
    mixed: Tensor = own.net(x.transpose(0, 1))
    return mixed.transpose(0, 1)


def cells(own: Bare, x: Tensor) -> Tensor:
    hidden, memory = x.new_zeros(x.shape[0], 5), x.new_zeros(x.shape[0], 5)
    gru = plain = hidden
    for step in x.unbind(1):
        hidden, memory = own.lstm(step, (hidden, memory))
        gru = own.gru(hidden, gru)
        plain = own.rnn(gru, plain)
    return torch.cat([hidden, gru, plain], 1)


# Bare parameters --------------------------------------------------------------------------------------------


def bare(own: Bare, x: Tensor) -> Tensor:
    x = torch.cat([own.token.expand(x.shape[0], -1, -1), x], 1) + own.places
    x = x * own.scale.exp()
    share = (x @ x.transpose(1, 2) + own.relative[own.index].squeeze(-1)).softmax(-1)
    h = share @ x @ own.weight
    h += own.bias
    h = h + torch.einsum("ntd,de->nte", x, own.weight)
    h = torch.addmm(own.bias, h.reshape(-1, 5), own.weight.t() @ own.weight).view(h.shape)
    return h / own.scale + F.linear(x, own.weight.t())


def contracted(own: Bare, x: Tensor) -> Tensor:
    """Products that einsum gives as views, written to: of the records, then of what needs a gradient."""
    first = torch.einsum("nd,de->ne", x, own.weight).relu_()
    return torch.einsum("nd,ed->ne", first, own.weight).mul_(2) + torch.einsum("nd->n", first).unsqueeze(1)


def two_scales(own: Bare, x: Tensor) -> Tensor:
    large, small = own.conv(x).mean((2, 3)), own.conv(F.avg_pool2d(x, 2)).mean((2, 3))
    scores: Tensor = own.head(large + small)
    return scores


def cross_attention(own: Bare, x: Tensor, y: Tensor) -> Tensor:
    hidden = own.first(x, y, y)[0]
    causal = torch.ones(5, 5).triu(1).bool()
    mixed: Tensor = own.second(hidden, x, x, attn_mask=causal)[0]
    return mixed


def grouped_bias(own: Bare, x: Tensor) -> Tensor:
    """A relative position bias as the mask of fused attention."""
    q = x.view(*x.shape[:2], 2, 2).transpose(1, 2)
    bias = own.table[:, own.index].unsqueeze(0)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=bias)


def standardised(own: Bare, x: Tensor) -> Tensor:
    """Weight standardisation: the kernel is a function of the parameter."""
    centred = own.weight - own.weight.mean((1, 2, 3), keepdim=True)
    return F.conv2d(x, centred / (centred.square().sum((1, 2, 3), keepdim=True).sqrt() + 1e-3))


def hyper(own: Bare, x: Tensor) -> Tensor:
    """Weights made from the record, and a parameter that scales them."""
    made = own.maker(x).view(-1, 3, 4)
    return torch.bmm(made * own.scale, x.unsqueeze(2)).squeeze(2) + own.bias


def experts(own: Bare, x: Tensor) -> Tensor:
    gates = own.gate(x).softmax(-1)
    return torch.einsum("ne,nd,edo->no", gates, x, own.weight)


def spread(own: Bare, x: Tensor) -> Tensor:
    """A parameter spread over the records in four ways, none with the batch as an argument."""
    n = x.shape[0]
    tiled = torch.tile(own.a, (n, 1)) + own.b.repeat(n, 1) + own.c.unsqueeze(0).repeat_interleave(n, 0)
    looked_up = F.embedding(torch.zeros(n, dtype=torch.long), own.table)
    return torch.tanh(tiled + looked_up) * x


def shared_gradient(own: Bare, x: Tensor) -> Tensor:
    """Two branches whose outputs are added get one and the same gradient tensor."""
    total: Tensor = own.first(x) + own.second(x)
    return total + own.bias


def dictionary(own: Bare, *, batch: dict[str, Any]) -> dict[str, Any]:
    hidden = own.first(batch["x"]) + own.second(batch["more"][0])
    return {"hidden": hidden, "scores": [own.head(torch.tanh(hidden))]}


def detached(own: Bare, x: Tensor) -> Tensor:
    """Straight-through rounding, a stopped gradient, and a part without gradients."""
    hidden = own.first(x)
    rounded = hidden + (hidden.round() - hidden).detach()
    with torch.no_grad():
        target = own.second(hidden)
    out: Tensor = own.second(rounded) - target
    return out


def shaped_by_the_batch(own: Bare, x: Tensor) -> Tensor:
    """Parameters that take a shape or a type from a tensor of records, and the reverse."""
    h: Tensor = own.net(x)
    h = h + own.shift.view(1, 3).expand_as(h)
    h = h * own.scale.type_as(h) + own.scale.to(h)
    return h.type_as(own.scale) * own.shift.to(h, copy=True)


def pinned(own: Bare, x: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
    """Constants beside the batch: a causal mask and a number."""
    out: Tensor = (mask @ own.first(x)) * scale
    return out


def turned(own: Bare, x: Tensor) -> Tensor:
    """Positions first, by keyword; torch gives a view for one record and none for several."""
    hidden = F.linear(own.first(x).transpose(0, 1), weight=own.second.weight, bias=own.second.bias)
    return hidden.relu_().transpose(0, 1)


def in_place(own: Bare, x: Tensor) -> Tensor:
    hidden = own.first(x)
    hidden.view(-1).mul_(0.5)
    hidden += own.bias
    hidden[:, :1].add_(x[:, :1])
    hidden -= own.scale
    hidden.relu_()
    out: Tensor = own.second(hidden)
    return out


def derived_in_place(own: Bare, x: Tensor) -> Tensor:
    """What parameters alone make is written to, beside views from before; as DeBERTa scales its positions."""
    table = F.embedding(torch.tensor([2, 0]), own.table)
    first, turned = table[:1], table.t()
    table /= 3.0
    table[1].mul_(own.scale)
    table[1, 0] = 0.5
    table.clamp_(min=-0.2)
    return torch.cat([x @ turned, F.linear(x, first), F.linear(x, table)], 1)


def standardised_by_batch_norm(own: Bare, x: Tensor) -> Tensor:
    """Weights of a convolution with mean 0 and deviation 1, as NFNet and BiT have them."""
    flat = own.weight.reshape(1, len(own.weight), -1)
    weight = F.batch_norm(flat, None, None, weight=own.gain, training=True, momentum=0.0)
    return F.conv1d(x, weight.reshape_as(own.weight))


def windows(own: Bare, x: Tensor) -> Tensor:
    """A bias plus a public mask for each window of a record, as Swin has them."""
    mask = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 1.0]])
    by_record = (own.bias + mask.repeat(len(x), 1)).view(len(x), 2, 3)
    return own.net(x + by_record)


def dropout_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 3), nn.Dropout(0.2))


def frozen_and_unused() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].weight.requires_grad_(False)
    model.register_parameter("unused", parameter(3, 2))
    return model


def evaluated(*layers: nn.Module) -> nn.Module:
    model = nn.Sequential(*layers)
    for layer in model:
        if isinstance(layer, (nn.BatchNorm2d, nn.InstanceNorm1d)):
            layer.running_mean, layer.running_var = torch.randn(4), torch.rand(4) + 0.5
    return model.eval()


def old_weight_norm() -> nn.Module:
    """The parametrisation of old: a pre-forward hook that sets the weight."""
    layer = nn.Linear(4, 5)
    scale, direction = parameter(5, 1), parameter(5, 4)
    del layer.weight
    layer.register_parameter("weight_g", scale)
    layer.register_parameter("weight_v", direction)

    def compute(module: Any, _: Any) -> None:
        module.weight = module.weight_g * module.weight_v / module.weight_v.norm(dim=1, keepdim=True)

    layer.register_forward_pre_hook(compute)
    return nn.Sequential(layer, nn.Tanh())


def _constants(n: int) -> Inputs:
    return (torch.randn(n, 6, 4), torch.ones(6, 6).tril(), torch.tensor([0.5])), {}


def _segments(n: int) -> Inputs:
    return (torch.randint(0, 10, (n, 6)), torch.randint(0, 2, (n, 6))), {}


def _nested(n: int) -> Inputs:
    return (), {"batch": {"x": torch.randn(n, 4), "more": [torch.randn(n, 3)]}}


def _strided(n: int) -> Inputs:
    return (torch.randn(2 * n, 6, 4)[::2].transpose(1, 2),), {}


def _bags(n: int) -> Inputs:
    return (torch.randint(0, 6, (n, 5)), torch.randn(n, 5)), {}


S = nn.Sequential


def biased_attention(own: Bare, x: Tensor) -> Tensor:
    """As T5: a relative position bias is the mask; keys of one head serve two."""
    q, k, v = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in own.qkv(x).chunk(3, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=own.bias, scale=0.3)
    return mixed + F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], attn_mask=own.masked, enable_gqa=True)


def repeated(own: Bare, x: Tensor) -> Tensor:
    """As DeBERTa: the rows of a parameter are repeated, and meet the rows of records by a batched product."""
    rows = own.net(x).repeat_interleave(2, 0)  # [records * 2, 5, 4]
    scores = torch.bmm(rows, own.keys.repeat(len(x), 1, 1).transpose(1, 2))
    return scores.reshape(len(x), -1) + own.one.repeat(len(x), 1).sum(1, keepdim=True)


def channels_last() -> nn.Module:
    convolutions = S(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4))
    layers: nn.Module = S(convolutions, nn.Flatten(), nn.Linear(16, 3))
    return layers.to(memory_format=torch.channels_last)


def checkpointed(own: Bare, x: Tensor) -> Tensor:
    """Two regions with the same layers, whose parameters are used twice in each."""
    x = own.first(x)
    for _ in range(2):
        x = checkpoint(lambda h: own.inner(h) + own.inner(h).tanh(), x, use_reentrant=False)
    return x


def checkpointed_sum(own: Bare, x: Tensor) -> Tensor:
    """A region that saves no tensor, so that torch never runs it again."""
    return checkpoint(lambda h: h + own.bias, own.first(x), use_reentrant=False)  # type: ignore[no-any-return]


LIST: list[Problem] = [
    # layers
    Problem("linear", lambda: S(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), floats(4)),
    Problem("linear 3-D", lambda: S(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), floats(6, 4)),
    Problem("linear 4-D", lambda: S(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), floats(2, 6, 4)),
    Problem("linear, long sequence", lambda: S(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), floats(40, 4)),
    Problem(
        "linear 3-D, in place behind it",
        lambda: S(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3), nn.ReLU(inplace=True)),
        floats(6, 4),
    ),
    Problem(
        "linear, transposed and in place behind it",
        lambda: Bare(turned, first=nn.Linear(4, 5), second=nn.Linear(5, 3)),
        floats(6, 4),
    ),
    Problem(
        "linear, bias of two dimensions",
        lambda: Bare(lambda own, x: F.linear(x, own.w, own.b), w=parameter(5, 4), b=parameter(1, 5)),
        floats(4),
    ),
    Problem("linear, wide", lambda: nn.Linear(40, 50, bias=False), floats(3, 40)),
    Problem("linear, low rank", lambda: S(nn.Linear(30, 4), nn.Linear(4, 40)), floats(9, 30)),
    Problem(
        "layer norm, one tensor for scale and shift",
        lambda: S(
            nn.Linear(4, 6), Bare(lambda self, x: F.layer_norm(x, (6,), self.both, self.both), both=parameter(6))
        ),
        floats(4),
    ),
    Problem("bilinear", lambda: nn.Bilinear(3, 4, 5), pairs((3,), (4,))),
    Problem("conv1d", lambda: nn.Conv1d(3, 5, 3, stride=2, padding=1), floats(3, 9)),
    Problem("conv2d", lambda: S(nn.Conv2d(4, 8, 3), nn.ReLU(inplace=True)), floats(4, 7, 7)),
    Problem("conv2d, one channel", lambda: nn.Conv2d(1, 1, 3, bias=False), floats(1, 5, 5)),
    Problem("conv2d, stride", lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), floats(4, 8, 7)),
    Problem("conv2d, same", lambda: nn.Conv2d(4, 6, (3, 2), padding="same", dilation=2), floats(4, 7, 6)),
    Problem("conv2d, dilation", lambda: nn.Conv2d(4, 6, 2, dilation=(2, 3), padding=(0, 2)), floats(4, 6, 6)),
    Problem("conv2d, groups", lambda: nn.Conv2d(4, 8, 3, groups=2), floats(4, 6, 6)),
    Problem("conv2d, depthwise", lambda: nn.Conv2d(4, 8, 3, groups=4), floats(4, 6, 6)),
    Problem("conv2d, circular", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), floats(4, 6, 6)),
    Problem("conv2d, reflect", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), floats(4, 6, 6)),
    Problem("conv2d, replicate", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate"), floats(4, 5, 5)),
    Problem("conv2d, many channels", lambda: nn.Conv2d(81, 80, 2, stride=2, padding=1), floats(81, 5, 4)),
    Problem("conv3d", lambda: nn.Conv3d(2, 3, 2, padding=1), floats(2, 3, 4, 3)),
    Problem(
        "conv2d over frames",
        lambda: Bare(lambda own, x: own.conv(x.flatten(0, 1)).view(len(x), -1), conv=nn.Conv2d(3, 4, 3)),
        floats(2, 3, 5, 5),
    ),
    Problem("conv_transpose1d", lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), floats(3, 5)),
    Problem(
        "conv_transpose2d",
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        floats(4, 5, 5),
    ),
    Problem("conv_transpose2d, many", lambda: nn.ConvTranspose2d(80, 81, 2, dilation=2), floats(80, 3, 3)),
    Problem("conv_transpose3d", lambda: nn.ConvTranspose3d(2, 3, 2), floats(2, 3, 3, 3)),
    Problem("embedding", lambda: nn.Embedding(10, 4, padding_idx=2), tokens(6)),
    Problem("embedding, repeated tokens", lambda: nn.Embedding(3, 4), tokens(9, 3)),
    Problem("embedding by index", lambda: Bare(lambda own, i: own.w[i].tanh(), w=parameter(10, 4)), tokens(6)),
    Problem("embedding bag, sum", lambda: nn.EmbeddingBag(10, 4, mode="sum"), tokens(5), by_func=False),
    Problem(
        "embedding bag, mean", lambda: nn.EmbeddingBag(10, 4, mode="mean", padding_idx=1), tokens(5), by_func=False
    ),
    Problem("embedding bag, max", lambda: nn.EmbeddingBag(10, 4, mode="max"), tokens(5), by_func=False),
    Problem(
        "embedding bag, weighted",
        lambda: Bare(lambda own, i, w: own.bag(i, per_sample_weights=w), bag=nn.EmbeddingBag(6, 4, mode="sum")),
        _bags,
        by_func=False,
    ),
    Problem("layer norm", lambda: S(nn.Linear(4, 6), nn.LayerNorm(6)), floats(5, 4)),
    Problem("layer norm, two axes", lambda: nn.LayerNorm((3, 4)), floats(2, 3, 4)),
    Problem("group norm", lambda: S(nn.Conv2d(3, 6, 1), nn.GroupNorm(2, 6)), floats(3, 4, 4)),
    Problem("group norm, 2-D", lambda: S(nn.Linear(3, 8), nn.GroupNorm(2, 8)), floats(3)),
    Problem("instance norm", lambda: S(nn.Conv2d(3, 3, 1), nn.InstanceNorm2d(3, affine=True)), floats(3, 4, 4)),
    Problem("instance norm, 1-D", lambda: nn.InstanceNorm1d(3, affine=True), floats(3, 6)),
    Problem(
        "instance norm, frozen statistics",
        lambda: evaluated(nn.InstanceNorm1d(4, affine=True, track_running_stats=True)),
        floats(4, 5),
    ),
    Problem("rms norm", lambda: S(nn.Linear(3, 4), nn.RMSNorm(4)), floats(5, 3)),
    Problem("prelu", lambda: S(nn.Linear(3, 4), nn.PReLU(4), nn.PReLU()), floats(3)),
    Problem("batch norm, frozen statistics", lambda: evaluated(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), floats(3, 5, 5)),
    # attention
    Problem(
        "attention",
        lambda: Bare(lambda own, x: own.net(x, x, x), net=nn.MultiheadAttention(8, 2, batch_first=True)),
        floats(5, 8),
    ),
    Problem(
        "attention, time-major",
        lambda: Bare(
            lambda own, x: own.net(*(x.transpose(0, 1),) * 3, need_weights=False)[0].transpose(0, 1),
            net=nn.MultiheadAttention(8, 2),
        ),
        floats(5, 8),
    ),
    Problem(
        "attention, crossed",
        lambda: Bare(
            cross_attention,
            first=nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=6, add_bias_kv=True, add_zero_attn=True),
            second=nn.MultiheadAttention(8, 2, batch_first=True),
        ),
        pairs((5, 8), (4, 6)),
        by_func=False,
    ),
    Problem("encoder layer", lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), floats(5, 8)),
    Problem(
        "encoder layer, pre-norm, time-major",
        lambda: Bare(time_major_layer, net=nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True)),
        floats(5, 8),
    ),
    Problem(
        "decoder layer",
        lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        pairs((4, 8), (5, 8)),
    ),
    Problem(
        "relative bias in fused attention",
        lambda: Bare(grouped_bias, table=parameter(2, 9), index=torch.randint(0, 9, (5, 5))),
        floats(5, 4),
    ),
    # recurrent
    Problem("lstm", recurrent(nn.LSTM, num_layers=2, bidirectional=True), floats(4, 4), by_func=False),
    Problem("lstm, projected", recurrent(nn.LSTM, proj_size=3), floats(4, 4), by_func=False),
    Problem("lstm, time-major", lambda: Bare(time_major, net=nn.LSTM(4, 5)), floats(4, 4), by_func=False),
    Problem("gru", recurrent(nn.GRU, num_layers=2, bidirectional=True), floats(4, 4), by_func=False),
    Problem("rnn, tanh", recurrent(nn.RNN, num_layers=2, bidirectional=True), floats(4, 4), by_func=False),
    Problem("rnn, relu", recurrent(nn.RNN, nonlinearity="relu", bias=False), floats(4, 4), by_func=False),
    Problem(
        "cells",
        lambda: Bare(cells, lstm=nn.LSTMCell(4, 5), gru=nn.GRUCell(5, 5), rnn=nn.RNNCell(5, 5)),
        floats(3, 4),
        by_func=False,
    ),
    # derived, bare and shared parameters
    Problem("weight norm", lambda: S(weight_norm(nn.Linear(4, 5)), nn.Tanh()), floats(4)),
    Problem("weight norm, conv", lambda: weight_norm(nn.Conv1d(4, 5, 3)), floats(4, 6)),
    Problem("weight norm, by hook", old_weight_norm, floats(4)),
    Problem("weight standardisation", lambda: Bare(standardised, weight=parameter(5, 3, 3, 3)), floats(3, 5, 5)),
    Problem(
        "bare parameters",
        lambda: Bare(
            bare,
            token=parameter(1, 1, 4),
            places=parameter(1, 6, 4),
            scale=parameter(),
            weight=parameter(4, 5),
            relative=parameter(9, 1),
            bias=parameter(5),
            index=torch.randint(0, 9, (6, 6)),
        ),
        floats(5, 4),
        rounds=10,
    ),
    Problem(
        "addmm",
        lambda: Bare(
            lambda o, x: torch.addmm(o.b, x.reshape(-1, 4), o.w).view(len(x), -1), w=parameter(4, 6), b=parameter(6)
        ),
        floats(5, 4),
    ),
    Problem(
        "addmm, scaled",
        lambda: Bare(lambda o, x: torch.addmm(o.b, x, o.w, beta=0.5, alpha=2), w=parameter(4, 6), b=parameter(6)),
        floats(4),
    ),
    Problem("matmul from the left", lambda: Bare(lambda o, x: o.w @ x.tanh(), w=parameter(6, 4)), floats(4, 3)),
    Problem("matmul with a vector", lambda: Bare(lambda o, x: (x @ o.w).tanh(), w=parameter(4)), floats(3, 4)),
    Problem("codebook scores", lambda: Bare(lambda o, x: F.linear(o.w, x).t(), w=parameter(6, 4)), floats(4)),
    Problem(
        "linear with a vector weight", lambda: Bare(lambda o, x: F.linear(x, o.w).tanh(), w=parameter(4)), floats(5, 4)
    ),
    Problem(
        "linear with one bias",
        lambda: Bare(lambda o, x: F.linear(x, o.w, o.b), w=parameter(5, 4), b=parameter(1)),
        floats(4),
    ),
    Problem(
        "identity transpose",
        lambda: Bare(lambda o, x: x @ o.w.transpose(0, 0) + x @ o.w.mT, w=parameter(4, 4)),
        floats(4),
    ),
    Problem("contracted", lambda: Bare(contracted, weight=parameter(4, 4)), floats(4)),
    Problem("experts", lambda: Bare(experts, gate=nn.Linear(4, 3), weight=parameter(3, 4, 5)), floats(4)),
    Problem(
        "hyper-network",
        lambda: Bare(hyper, maker=nn.Linear(4, 12), scale=parameter(3, 1), bias=parameter(3)),
        floats(4),
    ),
    Problem(
        "spread over the records",
        lambda: Bare(spread, a=parameter(4), b=parameter(4), c=parameter(4), table=parameter(2, 4)),
        floats(4),
    ),
    Problem(
        "a chosen row",
        lambda: Bare(lambda o, x: torch.where(x > 0, o.a, o.b * x).clamp(min=-2), a=parameter(4), b=parameter(3, 1)),
        floats(3, 4),
    ),
    Problem(
        "stacked parameters",
        lambda: Bare(
            lambda o, x: torch.stack([o.a, o.b]).mean(0) * x - torch.cat([o.a, o.b])[2:6],
            a=parameter(4),
            b=parameter(4),
        ),
        floats(4),
    ),
    Problem(
        "time-major rows",
        lambda: Bare(
            lambda o, x: o.net(x.transpose(0, 1).reshape(-1, 4)).view(5, -1, 3).transpose(0, 1), net=nn.Linear(4, 3)
        ),
        floats(5, 4),
    ),
    Problem(
        "two scales",
        lambda: Bare(two_scales, conv=nn.Conv2d(3, 3, 3, padding=1), head=nn.Linear(3, 2)),
        floats(3, 8, 8),
    ),
    Problem(
        "shared gradient",
        lambda: Bare(shared_gradient, first=nn.Linear(4, 3), second=nn.Linear(4, 3), bias=parameter(3)),
        floats(4),
    ),
    Problem(
        "tied, transposed",
        lambda: Bare(
            lambda o, i: torch.tanh(o.mix(o.words(i))) @ o.words.weight.T,
            words=nn.Embedding(10, 4),
            mix=nn.Linear(4, 4),
        ),
        tokens(6),
    ),
    Problem("frozen and unused", frozen_and_unused, floats(4)),
    Problem("adapters", lambda: S(Lora(4, 6), nn.Tanh(), Lora(6, 3)), floats(5, 4)),
    Problem(
        "shaped by the batch",
        lambda: Bare(shaped_by_the_batch, net=nn.Linear(4, 3), shift=parameter(3), scale=parameter(3)),
        floats(4),
    ),
    # forms of input and output
    Problem(
        "keywords and containers",
        lambda: Bare(dictionary, first=nn.Linear(4, 5), second=nn.Linear(3, 5), head=nn.Linear(5, 2)),
        _nested,
    ),
    Problem("not contiguous", lambda: S(nn.Conv1d(4, 5, 3), nn.Flatten(), nn.Linear(20, 3)), _strided),
    Problem("constants beside the batch", lambda: Bare(pinned, first=nn.Linear(4, 3)), _constants),
    Problem(
        "in-place",
        lambda: Bare(in_place, first=nn.Linear(4, 5), second=nn.Linear(5, 3), bias=parameter(5), scale=parameter(5)),
        floats(4),
        by_func=False,
    ),
    Problem(
        "derived in place",
        lambda: Bare(derived_in_place, table=parameter(4, 3), scale=parameter(3)),
        floats(3),
        by_func=False,
    ),
    Problem(
        "standardised weights",
        lambda: Bare(standardised_by_batch_norm, weight=parameter(4, 3, 2), gain=parameter(4)),
        floats(3, 5),
        by_func=False,
    ),
    Problem("windows of a record", lambda: Bare(windows, bias=parameter(3), net=nn.Linear(3, 3)), floats(2, 3)),
    Problem(
        "repeated and viewed",
        lambda: Bare(lambda o, x: x * o.a.unsqueeze(0).repeat(len(x), 1, 1).view(-1, 8).view_as(x), a=parameter(2, 4)),
        floats(2, 4),
    ),
    Problem("stopped gradients", lambda: Bare(detached, first=nn.Linear(4, 5), second=nn.Linear(5, 3)), floats(4)),
    Problem(
        "buffer", lambda: Bare(lambda o, x: o.net(x - o.mean), net=nn.Linear(4, 3), mean=torch.randn(4)), floats(4)
    ),
    # forms that libraries write
    Problem(
        "attention with a learned bias",
        lambda: Bare(biased_attention, bias=parameter(2, 5, 5), qkv=nn.Linear(4, 12), masked=parameter(1, 1, 5, 5)),
        floats(5, 4),
    ),
    Problem(
        "a parameter repeated for every record",
        lambda: Bare(repeated, keys=parameter(2, 3, 4), net=nn.Linear(4, 4), one=parameter(4)),
        floats(5, 4),
    ),
    Problem("channels last", channels_last, floats(3, 6, 6)),
    Problem(
        "checkpointed",
        lambda: Bare(checkpointed, first=nn.Linear(4, 5), inner=S(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 5))),
        floats(4),
        by_func=False,
    ),
    Problem(
        "checkpointed, nothing saved",
        lambda: Bare(checkpointed_sum, first=nn.Linear(4, 5), bias=parameter(5)),
        floats(4),
        by_func=False,
    ),
    # whole models
    Problem("gpt", lambda: Gpt(by_ids=True), tokens(6)),
    Problem("gpt, sliced positions", lambda: Gpt(by_ids=False), tokens(6)),
    Problem("bert", Bert, _segments, by_func=False),
    Problem("vit", Vit, floats(3, 8, 8)),
    Problem("resnet20", lambda: build("resnet20", shape=(3, 8, 8), classes=4, seed=0), floats(3, 8, 8)),
    Problem("patch transformer", lambda: build("transformer", shape=(1, 8, 8), classes=4, seed=0), floats(1, 8, 8)),
]


PROBLEMS = {problem.name: problem for problem in LIST}
