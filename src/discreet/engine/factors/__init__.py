"""Per-record gradients that are never formed: one file per kind of layer."""
