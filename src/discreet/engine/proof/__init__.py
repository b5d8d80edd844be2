"""Why no record moves another: checks on random inputs before training, and refusals during it."""
