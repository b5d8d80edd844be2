"""One private run: start with `step.py`."""
