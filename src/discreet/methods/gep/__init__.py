"""Gradient embedding perturbation (Yu et al. 2021): noise on coefficients in a public subspace, and on the rest."""
