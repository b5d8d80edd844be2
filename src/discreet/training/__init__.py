"""Training loop, checkpoints and privacy spending of one run. Read `step.py` first."""
