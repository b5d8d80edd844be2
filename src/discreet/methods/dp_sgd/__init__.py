"""DP-SGD (Abadi et al. 2016) and variants that clip differently."""
