"""DP-SGD (Abadi et al. 2016) and its variants that differ only in how a record is bounded."""
