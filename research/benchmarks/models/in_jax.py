"""The models of the table as JAX functions, with the weights of their PyTorch twins.

Images and filters are channels last, which XLA computes faster on a CPU. JAX is imported when a function runs, so
that this file can be read without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from discreet.data.models import ResidualBlock, ResNet20
from research.benchmarks.models import BagOfTokens, Recurrent, TokenTransformer
from research.benchmarks.rows import AbsentError

Parameters = dict[str, Any]
Forward = Callable[[Parameters, Any], Any]
_EPSILON = 1e-5  # of torch's norms


def _jax() -> Any:
    return importlib.import_module("jax")


def _array(value: Tensor) -> Any:
    """A copy: JAX may write over what it is given."""
    own = value.detach() if value.is_floating_point() else value.detach().to(torch.int32)
    return _jax().numpy.array(own.contiguous().numpy(), copy=True)


def parameters_of(model: nn.Module) -> Parameters:
    """The weights by torch's names; filters as (height, width, in, out)."""
    return {
        name: _array(value.permute(2, 3, 1, 0) if value.dim() == 4 else value)
        for name, value in model.state_dict().items()
    }


def batch_of(values: Tensor) -> Any:
    """Inputs or labels; images as (n, height, width, channels)."""
    return _array(values.permute(0, 2, 3, 1) if values.dim() == 4 else values)


def forward_of(model: nn.Module) -> Forward:
    """Parameters and inputs to scores; a model that is not written here raises `AbsentError`."""
    match model:
        case nn.Sequential():
            return _sequential(model)
        case ResNet20():
            return _resnet(model)
        case TokenTransformer():
            return _transformer(model)
        case Recurrent():
            return partial(_recurrent, model.lstm.num_layers)
        case BagOfTokens():
            return _bag
        case _:
            raise AbsentError(f"{type(model).__name__} is not written for JAX")


def _linear(name: str, weights: Parameters, x: Any) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _convolution(name: str, module: nn.Conv2d, weights: Parameters, x: Any) -> Any:
    (down, across), sides = module.stride, module.padding
    if isinstance(sides, str) or module.groups != 1 or module.dilation != (1, 1):
        raise AbsentError("such a convolution is not written for JAX")
    x = _jax().lax.conv_general_dilated(
        x,
        weights[f"{name}.weight"],
        window_strides=(down, across),
        padding=[(side, side) for side in sides],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return x if module.bias is None else x + weights[f"{name}.bias"]


def _layer_norm(name: str, weights: Parameters, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scale = _jax().lax.rsqrt((centred**2).mean(-1, keepdims=True) + _EPSILON)
    return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _group_norm(name: str, groups: int, weights: Parameters, x: Any) -> Any:
    n, height, width, channels = x.shape
    grouped = x.reshape(n, height, width, groups, channels // groups)
    centred = grouped - grouped.mean((1, 2, 4), keepdims=True)
    scale = _jax().lax.rsqrt((centred**2).mean((1, 2, 4), keepdims=True) + _EPSILON)
    return (centred * scale).reshape(x.shape) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _mean_2x2(weights: Parameters, x: Any) -> Any:
    lax, window = _jax().lax, (1, 2, 2, 1)
    return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / 4


def _most_2x2(weights: Parameters, x: Any) -> Any:
    lax, window = _jax().lax, (1, 2, 2, 1)
    return lax.reduce_window(x, -float("inf"), lax.max, window, window, "VALID")


def _mean_of_all(weights: Parameters, x: Any) -> Any:
    return x.mean((1, 2), keepdims=True)


def _flatten(weights: Parameters, x: Any) -> Any:
    channels_first = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    return channels_first.reshape(len(x), -1)


def _layer(name: str, module: nn.Module) -> Forward:
    match module:
        case nn.Linear():
            return partial(_linear, name)
        case nn.Conv2d():
            return partial(_convolution, name, module)
        case nn.ReLU():
            return lambda weights, x: _jax().nn.relu(x)
        case nn.Tanh():
            return lambda weights, x: _jax().numpy.tanh(x)
        case nn.AvgPool2d(kernel_size=2, stride=2, padding=0):
            return _mean_2x2
        case nn.MaxPool2d(kernel_size=2, stride=2, padding=0):
            return _most_2x2
        case nn.AdaptiveAvgPool2d(output_size=1):
            return _mean_of_all
        case nn.Flatten():
            return _flatten
        case _:
            raise AbsentError(f"{module} is not written for JAX")


def _sequential(model: nn.Sequential) -> Forward:
    layers = [_layer(name, module) for name, module in model.named_children()]

    def forward(weights: Parameters, x: Any) -> Any:
        for layer in layers:
            x = layer(weights, x)
        return x

    return forward


def _block(name: str, block: ResidualBlock, weights: Parameters, x: Any) -> Any:
    jax, groups = _jax(), block.first_norm.num_groups
    inner = _convolution(f"{name}.first", block.first, weights, x)
    inner = jax.nn.relu(_group_norm(f"{name}.first_norm", groups, weights, inner))
    inner = _convolution(f"{name}.second", block.second, weights, inner)
    inner = _group_norm(f"{name}.second_norm", groups, weights, inner)
    skipped = x[:, :: block.stride, :: block.stride]
    return jax.nn.relu(inner + jax.numpy.pad(skipped, ((0, 0), (0, 0), (0, 0), (0, block.padding))))


def _resnet(model: ResNet20) -> Forward:
    blocks = {name: block for name, block in model.blocks.named_children() if isinstance(block, ResidualBlock)}

    def forward(weights: Parameters, x: Any) -> Any:
        x = _convolution("stem", model.stem, weights, x)
        x = _jax().nn.relu(_group_norm("stem_norm", model.stem_norm.num_groups, weights, x))
        for name, block in blocks.items():
            x = _block(f"blocks.{name}", block, weights, x)
        return _linear("head", weights, x.mean((1, 2)))

    return forward


def _encoder(name: str, heads: int, weights: Parameters, x: Any) -> Any:
    """torch's encoder layer with the norms first and ReLU, without dropout."""
    jax, (n, length, width) = _jax(), x.shape
    own = f"{name}.self_attn"
    inner = _layer_norm(f"{name}.norm1", weights, x)
    packed = inner @ weights[f"{own}.in_proj_weight"].T + weights[f"{own}.in_proj_bias"]
    split = packed.reshape(n, length, 3, heads, width // heads)
    mixed = jax.nn.dot_product_attention(split[:, :, 0], split[:, :, 1], split[:, :, 2])
    x = x + _linear(f"{own}.out_proj", weights, mixed.reshape(n, length, width))
    inner = _linear(f"{name}.linear1", weights, _layer_norm(f"{name}.norm2", weights, x))
    return x + _linear(f"{name}.linear2", weights, jax.nn.relu(inner))


def _transformer(model: TokenTransformer) -> Forward:
    layers = model.blocks.named_children()
    heads = {name: layer.self_attn.num_heads for name, layer in layers if isinstance(layer, nn.TransformerEncoderLayer)}

    def forward(weights: Parameters, tokens: Any) -> Any:
        x = weights["embed.weight"][tokens] + weights["places.weight"][: tokens.shape[1]]
        for name, count in heads.items():
            x = _encoder(f"blocks.{name}", count, weights, x)
        return _linear("head", weights, _layer_norm("norm", weights, x).mean(1))

    return forward


def _lstm(layer: int, weights: Parameters, x: Any) -> Any:
    """One layer: the inputs' part of all steps at once, then a scan over the steps."""
    jax = _jax()
    jnp = jax.numpy
    into, back = weights[f"lstm.weight_ih_l{layer}"], weights[f"lstm.weight_hh_l{layer}"]
    ready = x @ into.T + weights[f"lstm.bias_ih_l{layer}"] + weights[f"lstm.bias_hh_l{layer}"]
    start = jnp.zeros((len(x), back.shape[1]), x.dtype)

    def cell(state: Any, given: Any) -> Any:
        output, memory = state
        enter, forget, new, leave = jnp.split(given + output @ back.T, 4, axis=-1)
        memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
        output = jax.nn.sigmoid(leave) * jnp.tanh(memory)
        return (output, memory), output

    _, outputs = jax.lax.scan(cell, (start, start), ready.swapaxes(0, 1))
    return outputs.swapaxes(0, 1)


def _recurrent(layers: int, weights: Parameters, x: Any) -> Any:
    for layer in range(layers):
        x = _lstm(layer, weights, x)
    return _linear("head", weights, x[:, -1])


def _bag(weights: Parameters, tokens: Any) -> Any:
    hidden = _linear("hidden", weights, weights["embed.weight"][tokens].mean(1))
    return _linear("head", weights, _jax().nn.relu(hidden))
