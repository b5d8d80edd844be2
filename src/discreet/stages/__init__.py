"""The stages of one private step. Settings can be imported without torch; tensors are passed as arguments."""
