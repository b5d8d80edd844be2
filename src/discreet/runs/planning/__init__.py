"""Before a run: what a budget needs, what to choose, and how long it takes."""
