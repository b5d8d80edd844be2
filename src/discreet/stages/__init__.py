"""The stages of one private step. Settings are importable without torch; tensors come as arguments."""
