"""Why one record cannot move another. Start with `engine/record_watch.py`, which watches one step; then read here:

lineage.py, lineage_table.py   whether a tensor is public, per record along one axis, or mixed
call_proof.py, verdicts.py     one call by itself, on values of its own (generic_values.py, small_sizes.py)
public_rows.py                 public tensors with a row for each record
calls/                         what a watched call made, who is to blame (blame.py), and calls that come again
program.py                     every batch makes its losses by the same calls with the same numbers as the rehearsals
probe.py, axes.py              the second line: the whole model on random inputs
"""
