"""Runs under torchrun whose processes are killed at random moments."""
