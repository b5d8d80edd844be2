"""DPSGD-DC (arXiv 2502.17772): a bounded domain, and certificates for the last iterate alone."""
