"""Language and feature tasks that only the reproductions use."""

from __future__ import annotations

from discreet.data.features.vision_operators import declare_vision_operators

declare_vision_operators()  # before a task imports transformers
