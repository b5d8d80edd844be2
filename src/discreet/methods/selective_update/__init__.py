"""Selective update and release (Fu et al. 2023): an update is kept only if a noisy test accepts it."""
