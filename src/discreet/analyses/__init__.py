"""How the cost of a run is proven: step by step, or as a whole."""
