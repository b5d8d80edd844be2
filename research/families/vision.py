"""Image models of timm and transformers, and a diffusion model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import timm
import torch
import transformers as hf
from torch import nn

from discreet import fix
from research.families.family import Family, Inputs, Scale, drawn, images

NARROW = {"channels": (8, 16, 32, 64)}


def _timm(name: str, **narrow: Any) -> Callable[[Scale], nn.Module]:
    """A model of timm without BatchNorm; `narrow` makes it small."""

    def make(scale: Scale) -> nn.Module:
        model = timm.create_model(name, num_classes=4, **({} if scale.is_wide else narrow))
        return fix(model)[0]

    return make


def _sized(name: str, wide: dict[str, Any], narrow: dict[str, Any]) -> Callable[[Scale], nn.Module]:
    """A model of timm that must know the size of its images."""

    def make(scale: Scale) -> nn.Module:
        chosen = wide if scale.is_wide else narrow
        model: nn.Module = timm.create_model(name, num_classes=4, img_size=scale.image, **chosen)
        return model

    return make


def _mixer(scale: Scale) -> nn.Module:
    width = 128 if scale.is_wide else 32
    size = {"img_size": scale.image, "patch_size": 16, "num_blocks": 2, "embed_dim": width}
    return timm.models.mlp_mixer.MlpMixer(**size, num_classes=4)  # type: ignore[no-any-return]


def _vit(scale: Scale) -> nn.Module:
    layers = {"num_hidden_layers": 2, "num_attention_heads": scale.heads, "intermediate_size": 2 * scale.hidden}
    config = hf.ViTConfig(hidden_size=scale.hidden, **layers, image_size=scale.image, patch_size=16)
    return hf.ViTForImageClassification(config)


def _pixels(scale: Scale) -> Inputs:
    (x,), _ = images(scale)
    return (), {"pixel_values": x}


def _swin(scale: Scale) -> nn.Module:
    stages = {"embed_dim": scale.hidden, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2}
    return hf.SwinForImageClassification(hf.SwinConfig(image_size=scale.image, **stages, drop_path_rate=0.2))


def _nfnet(scale: Scale) -> nn.Module:
    widths = (64, 128, 256, 384) if scale.is_wide else (16, 32, 48, 64)
    shape = timm.models.nfnet._nfres_cfg(depths=(1, 1, 1, 1), channels=widths, group_size=8)
    return timm.models.nfnet.NormFreeNet(shape, num_classes=4)  # type: ignore[no-any-return]


def _bit(scale: Scale) -> nn.Module:
    widths = {"embedding_size": scale.hidden, "hidden_sizes": [2 * scale.hidden, 4 * scale.hidden]}
    return hf.BitForImageClassification(hf.BitConfig(**widths, depths=[1, 1], num_groups=8))


def _unet(scale: Scale) -> nn.Module:
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    widths = {"block_out_channels": (scale.hidden, 2 * scale.hidden), "attention_head_dim": 8, "norm_num_groups": 4}
    return diffusers.UNet2DModel(
        sample_size=scale.image // 4, in_channels=1, out_channels=1, layers_per_block=1, **widths, **blocks
    )


def _noisy_images(scale: Scale) -> Inputs:
    side = scale.image // 4
    times = torch.randint(0, 1000, (scale.records,), generator=torch.Generator().manual_seed(2))
    return (drawn(scale, 1, side, side), times), {}


def _channels_last(scale: Scale) -> Inputs:
    (x,), _ = images(scale)
    return (x.to(memory_format=torch.channels_last),), {}


def _convnext_channels_last(scale: Scale) -> nn.Module:
    return _convnext(scale).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _efficientnet(scale: Scale) -> nn.Module:
    name = "efficientnet_b0" if scale.is_wide else "test_efficientnet"
    return fix(timm.create_model(name, num_classes=4))[0]


_convnext = _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
_VIT = _sized("vit_tiny_patch16_224", {"depth": 4}, {"depth": 2, "embed_dim": 24})
_DEIT = _sized(
    "deit_tiny_patch16_224", {"depth": 4, "drop_path_rate": 0.2}, {"depth": 2, "embed_dim": 24, "drop_path_rate": 0.2}
)
_SWIN = _sized(
    "swin_tiny_patch4_window7_224",
    {"depths": (2, 2), "num_heads": (3, 6), "window_size": 4},
    {"depths": (2, 2), "num_heads": (1, 2), "embed_dim": 16, "window_size": 4},
)
_AFTER_FIX = "after discreet.fix"

FAMILIES = (
    Family(name="ResNet-18", library="timm", settings=_AFTER_FIX, make=_timm("resnet18", **NARROW), inputs=images),
    Family(name="ResNet-50", library="timm", settings=_AFTER_FIX, make=_timm("resnet50", **NARROW), inputs=images),
    Family(name="ConvNeXt", library="timm", settings="atto", make=_convnext, inputs=images),
    Family(
        name="ConvNeXt channels-last",
        library="timm",
        settings="atto, memory_format=torch.channels_last",
        make=_convnext_channels_last,
        inputs=_channels_last,
    ),
    Family(name="ViT (timm)", library="timm", settings="tiny, 4 layers", make=_VIT, inputs=images),
    Family(
        name="DeiT",
        library="timm",
        settings="tiny, 4 layers, training mode with drop path 0.2",
        make=_DEIT,
        inputs=images,
        is_training=True,
    ),
    Family(name="Swin", library="timm", settings="tiny, two stages, windows of 4", make=_SWIN, inputs=images),
    Family(name="EfficientNet", library="timm", settings=f"B0, {_AFTER_FIX}", make=_efficientnet, inputs=images),
    Family(
        name="MobileNetV3",
        library="timm",
        settings=f"small 0.5, {_AFTER_FIX}",
        make=_timm("mobilenetv3_small_050"),
        inputs=images,
    ),
    Family(name="RegNet", library="timm", settings=f"X-200MF, {_AFTER_FIX}", make=_timm("regnetx_002"), inputs=images),
    Family(name="MLP-Mixer", library="timm", settings="2 blocks", make=_mixer, inputs=images),
    Family(name="ViT (transformers)", library="transformers", settings="2 layers", make=_vit, inputs=_pixels),
    Family(
        name="UNet2D",
        library="diffusers",
        settings="attention, a time step for each record",
        make=_unet,
        inputs=_noisy_images,
    ),
    Family(
        name="Swin (transformers)",
        library="transformers",
        settings="two stages, windows of 4, training mode with drop path 0.2",
        make=_swin,
        inputs=_pixels,
        is_training=True,
    ),
    Family(name="NFNet", library="timm", settings="4 blocks, standardised weights", make=_nfnet, inputs=images),
    Family(name="BiT", library="transformers", settings="2 blocks, standardised weights", make=_bit, inputs=_pixels),
)
