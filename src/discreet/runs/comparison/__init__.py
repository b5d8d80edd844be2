"""Comparing methods at one certified budget: what is trained, and the values that a page is rendered from."""
