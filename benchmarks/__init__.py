"""Measurements against plain training and against peers."""
