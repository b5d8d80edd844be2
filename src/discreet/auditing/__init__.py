"""Attacks on every method: a lower bound on epsilon, with stated confidence, beside what is certified and claimed.

Read in this order: `bounds` (what a game proves), `games` (how it is played), `truth` (the table).
"""
