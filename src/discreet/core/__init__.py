"""Ground that every other layer stands on; imports nothing of ours."""
