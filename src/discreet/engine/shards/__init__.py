"""Models that FSDP2 divides among processes."""
