"""DiceSGD (arXiv 2311.14632): clipped error feedback, and certified two-level clipping."""
