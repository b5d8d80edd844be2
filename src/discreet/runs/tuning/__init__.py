"""Random search whose whole cost, the choice included, is within one budget.

Read in this order: `space` (what is searched), `bill` (what it costs), `hidden` (what must stay secret), `sweep` (the
runs and the release).
"""
