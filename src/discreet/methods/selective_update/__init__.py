"""Selective update and release (Fu et al. 2023): keep an update only if a noisy test accepts it."""
