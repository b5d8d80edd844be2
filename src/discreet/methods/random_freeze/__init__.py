"""Random freeze and ranked freeze (arXiv 2112.00845): sparse gradients under masks that grow."""
