"""Families of models that users bring, built from their configurations at a small and at a measured size."""

from __future__ import annotations

from discreet.data.features.vision_operators import declare_vision_operators

declare_vision_operators()  # before a family imports transformers or timm
