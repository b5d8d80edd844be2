"""Membership inference by shadow models, as in the experiments of DPSGD-DC (arXiv 2502.17772, appendix D)."""
