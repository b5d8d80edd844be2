"""Language and feature tasks that only the reproductions use."""
