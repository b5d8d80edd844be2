"""Random freeze and ranked freeze (arXiv 2112.00845): sparse gradients, with more coordinates frozen over time."""
