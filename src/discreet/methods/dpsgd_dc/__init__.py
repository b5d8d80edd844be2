"""DPSGD-DC (arXiv 2502.17772): training in a bounded domain, and certificates for the final parameters only."""
