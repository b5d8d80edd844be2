"""Per-record gradient norms and weighted sums for any PyTorch module. Knows nothing of noise, budgets or plans."""
