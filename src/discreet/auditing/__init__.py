"""Attacks on every method: a lower bound on epsilon, with stated confidence, beside what is certified and claimed.

Read in this order: `bounds` (what a game proves), `games` (how it is played), `releases` and `whole_run` (against what
the library really releases), `one_run` and `planted` (canaries in one training), `membership`, `truth` (the table).
"""
