"""A model as the engine finds it: what it holds, what it may not hold, and whether it is as it was."""
