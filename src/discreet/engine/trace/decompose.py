"""Composite torch functions taken apart into calls that the engine knows, with the parameters' own tensors.

Each function has the signature of the one it stands for and gives the same values; it runs under the watch,
so that its inner calls are seen. Index legend: T time, N records, H hidden size.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import refuse

Cell = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`F.multi_head_attention_forward`: [time, records, features] in and out, records first in between.

    A record's positions then lie side by side in memory, which attention and per-sample gradients read faster.
    """
    if query.dim() != 3 or static_k is not None or static_v is not None:
        refuse(
            "attention over a batch [time, records, features]",
            f"query of shape {tuple(query.shape)}" if static_k is None else "static keys",
            "add the record axis to the query, and leave static_k and static_v unset",
        )
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight
    q, k, v = _project(query, key, value, weights, in_proj_bias)
    N, T, E = q.shape
    if bias_k is not None and bias_v is not None:
        k, v = torch.cat([k, bias_k.expand(N, 1, E)], 1), torch.cat([v, bias_v.expand(N, 1, E)], 1)
    if add_zero_attn:
        k, v = torch.cat([k, k.new_zeros(N, 1, E)], 1), torch.cat([v, v.new_zeros(N, 1, E)], 1)
    mask = _additive_mask(attn_mask, key_padding_mask, num_heads, (N, T, k.shape[1]), q.dtype)
    q, k, v = (x.unflatten(-1, (num_heads, E // num_heads)).transpose(1, 2) for x in (q, k, v))
    dropout = dropout_p if training else 0.0
    if need_weights:
        scores = q @ k.transpose(-2, -1) / math.sqrt(E // num_heads)
        share = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
        mixed, shown = share @ v, (share.mean(1) if average_attn_weights else share)
    else:
        mixed, shown = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout), None
    # As torch lays it out: dropout behind it draws in the order of memory.
    joined = mixed.permute(2, 0, 1, 3).reshape(T, N, E)
    return F.linear(joined, out_proj_weight, out_proj_bias), shown


def _project(query: Tensor, key: Tensor, value: Tensor, weights: Any, bias: Tensor | None) -> Sequence[Tensor]:
    """Queries, keys and values, records first; `weights` are three, or one that holds them all."""
    inputs = [x.transpose(0, 1) for x in (query, key, value)]
    if isinstance(weights, Tensor):
        if query is key and key is value:  # one product: no slices of the parameter to pull back through
            return F.linear(inputs[0], weights, bias).chunk(3, -1)
        weights = weights.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]


def _additive_mask(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    num_heads: int,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
) -> Tensor | None:
    """Both masks as one term of shape [N or 1, heads or 1, T, S], -inf where a key is hidden."""
    N, T, S = shape

    def additive(mask: Tensor) -> Tensor:
        if mask.dtype == torch.bool:
            return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
        return mask.to(dtype)

    total: Tensor | None = None
    if attn_mask is not None:
        wide = F.pad(additive(attn_mask), (0, S - attn_mask.shape[-1]))
        total = wide.view(N, num_heads, T, S) if wide.dim() == 3 else wide.view(1, 1, T, S)
    if key_padding_mask is not None:
        hidden = F.pad(additive(key_padding_mask), (0, S - key_padding_mask.shape[-1])).view(N, 1, 1, S)
        total = hidden if total is None else total + hidden
    return total


def _lstm_cell(gates: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (gates + recurrent).chunk(4, -1)
    memory = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * memory.tanh(), memory


def _gru_cell(gates: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (r_x, z_x, n_x), (r_h, z_h, n_h) = gates.chunk(3, -1), recurrent.chunk(3, -1)
    reset, update = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
    candidate = (n_x + reset * n_h).tanh()
    return (candidate + update * (state[0] - candidate),)


def _tanh_cell(gates: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((gates + recurrent).tanh(),)


def _relu_cell(gates: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((gates + recurrent).relu(),)


def _direction(
    cell: Cell, sequence_TN: Tensor, state: tuple[Tensor, ...], weights: Sequence[Tensor], biased: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer in one direction; the input's product is one call for all times."""
    w_input, w_hidden, *rest = weights
    b_input, b_hidden = (rest[0], rest[1]) if biased else (None, None)
    w_out = rest[-1] if len(rest) == (3 if biased else 1) else None
    outputs = []
    for gates in F.linear(sequence_TN, w_input, b_input).unbind(0):
        state = cell(gates, F.linear(state[0], w_hidden, b_hidden), state)
        if w_out is not None:
            state = (F.linear(state[0], w_out), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs), state


def _recurrent(cell: Cell) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if not isinstance(args[3], bool):  # (data, batch_sizes, ...) is the packed form
            refuse(
                "a padded batch [records, time, features]",
                "a PackedSequence",
                "pass the padded tensor, as packing mixes the records' positions, and take each record's own last "
                "state: outputs[torch.arange(len(outputs)), lengths - 1]",
            )
        sequence, states, weights, biased, layers, dropout, training, bidirectional, batch_first = args
        states = (states,) if isinstance(states, Tensor) else tuple(states)
        directions = 2 if bidirectional else 1
        per_direction = len(weights) // (layers * directions)
        sequence = sequence.transpose(0, 1) if batch_first else sequence
        final: list[tuple[Tensor, ...]] = []
        for layer in range(layers):
            if layer and dropout and training:
                sequence = F.dropout(sequence, dropout)
            outputs = []
            for direction in range(directions):
                at = layer * directions + direction
                own = weights[at * per_direction : (at + 1) * per_direction]
                start = tuple(state[at] for state in states)
                ordered = sequence.flip(0) if direction else sequence
                output, last = _direction(cell, ordered, start, own, biased)
                outputs.append(output.flip(0) if direction else output)
                final.append(last)
            sequence = torch.cat(outputs, -1) if directions > 1 else outputs[0]
        ends = tuple(torch.stack(parts) for parts in zip(*final, strict=True))
        return (sequence.transpose(0, 1) if batch_first else sequence, *ends)

    return run


def _single(cell: Cell, returns_pair: bool) -> Callable[..., Any]:
    def run(
        input: Tensor,
        state: Any,
        w_input: Tensor,
        w_hidden: Tensor,
        b_input: Tensor | None = None,
        b_hidden: Tensor | None = None,
    ) -> Any:
        states = (state,) if isinstance(state, Tensor) else tuple(state)
        result = cell(F.linear(input, w_input, b_input), F.linear(states[0], w_hidden, b_hidden), states)
        return result if returns_pair else result[0]

    return run


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """`F.embedding_bag` on one bag per record [N, P]."""
    if input.dim() != 2 or offsets is not None:
        refuse(
            "bags as a tensor [records, entries]",
            f"indices of shape {tuple(input.shape)} with offsets",
            "pad the bags to one length and name the padding with padding_idx",
        )
    rows = F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if padding_idx is None:
        kept = torch.ones_like(input, dtype=weight.dtype).unsqueeze(-1)
    else:
        kept = (input != padding_idx % weight.shape[0]).to(weight.dtype).unsqueeze(-1)
    if mode == "max":
        hidden = rows.masked_fill(kept == 0, -math.inf).max(1).values
        return hidden.masked_fill(hidden == -math.inf, 0)
    scaled = rows * kept if per_sample_weights is None else rows * kept * per_sample_weights.unsqueeze(-1)
    return scaled.sum(1) if mode == "sum" else scaled.sum(1) / kept.sum(1).clamp(min=1)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` with a parameter in it, such as a learned relative position bias."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return F.dropout(scores.softmax(-1), dropout_p) @ value


def repeat(tensor: Tensor, *sizes: Any) -> Tensor:
    """`tensor.repeat(...)` by `expand`, which gives every copy an axis of its own: a copy belongs to one record."""
    counts = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    shape = (1,) * (len(counts) - tensor.dim()) + tuple(tensor.shape)
    alone = [size for length in shape for size in (1, length)]
    copied = [size for pair in zip(counts, shape, strict=True) for size in pair]
    whole = [count * length for count, length in zip(counts, shape, strict=True)]
    return tensor.reshape(alone).expand(copied).reshape(whole).contiguous()  # a copy, as torch makes it


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.bilinear` as one contraction."""
    product = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return product if bias is None else product + bias


def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`tensor.to(other)` takes two settings from `other` and none of its values."""
    other = args[0] if args else kwargs.get("other")
    if not isinstance(other, Tensor):
        return NotImplemented
    rest = {name: value for name, value in kwargs.items() if name != "other"}
    return tensor.to(other.device, other.dtype, *args[1:], **rest)


def type_as(tensor: Tensor, other: Tensor) -> Tensor:
    return tensor.to(other.device, other.dtype)


DECOMPOSITIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: attention,
    F.embedding_bag: embedding_bag,
    F.bilinear: bilinear,
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    Tensor.repeat: repeat,
    Tensor.to: to,
    Tensor.type_as: type_as,
    torch.lstm: _recurrent(_lstm_cell),
    torch.gru: _recurrent(_gru_cell),
    torch.rnn_tanh: _recurrent(_tanh_cell),
    torch.rnn_relu: _recurrent(_relu_cell),
    torch.lstm_cell: _single(_lstm_cell, returns_pair=True),
    torch.gru_cell: _single(_gru_cell, returns_pair=False),
    torch.rnn_tanh_cell: _single(_tanh_cell, returns_pair=False),
    torch.rnn_relu_cell: _single(_relu_cell, returns_pair=False),
}
