"""Correlated noise: DP-FTRL by matrix factorisation (arXiv 2405.13763, 2505.12128) and BandMF (arXiv 2306.08153)."""
