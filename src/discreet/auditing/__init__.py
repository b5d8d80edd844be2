"""Attacks on every method: a lower bound on epsilon, with stated confidence, beside the certified and claimed one.

Read in this order: `bounds` (what a game proves), `games` (how it is played), `releases` and `whole_run` (games against
real releases of the library), `planted` (canaries in one training), `truth` (the table).
"""
