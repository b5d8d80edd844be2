"""What belongs to a dataset, so that it does not count as public in the training loop."""
